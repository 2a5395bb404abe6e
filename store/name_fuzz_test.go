package store_test

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stilelock/stile/store"
)

// A name that is accepted is a path of parts that can be written in one way only, in text that any server and any terminal
// takes; a name that is refused is named in the error, in one line, whatever is in it. The beginnings of a name are prefixes.
func FuzzCheckName(f *testing.F) {
	for _, name := range []string{
		"a", "a/b", "ä/日/🔒", "", "/", "a/", "/a", "a//b", ".", "a/..", "a/.b", "a\nb", "a\x00", "\u0085", "\xff", "a\xc3", "\u2028",
		".stile", "-n", "{a}", "~41", strings.Repeat("x", store.MaxNameBytes), strings.Repeat("x", store.MaxNameBytes+1), strings.Repeat("ä", 300),
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		good := name != "" && len(name) <= store.MaxNameBytes && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
		for _, bad := range []string{"//", "/./", "/../"} {
			good = good && !strings.Contains("/"+name+"/", bad)
		}
		err := store.CheckName(name)
		if (err == nil) != good {
			t.Fatalf("%q: the error is %v, want one: %v", name, err, !good)
		}
		if err != nil {
			wantsToBeRead(t, err)
			return
		}
		for end := range name + "/" { // where its characters begin
			if err := store.CheckPrefix(name[:end]); err != nil {
				t.Errorf("%q is a name, and what it begins with is refused: %v", name, err)
			}
		}
	})
}

func FuzzCheckPrefix(f *testing.F) {
	for _, prefix := range []string{"", "a", "a/", "/", "..", "a\tb", "\xff", strings.Repeat("x", store.MaxNameBytes+1)} {
		f.Add(prefix)
	}
	f.Fuzz(func(t *testing.T, prefix string) {
		good := len(prefix) <= store.MaxNameBytes && utf8.ValidString(prefix) && !strings.ContainsFunc(prefix, unicode.IsControl)
		err := store.CheckPrefix(prefix)
		if (err == nil) != good {
			t.Fatalf("%q: the error is %v, want one: %v", prefix, err, !good)
		}
		if err != nil {
			wantsToBeRead(t, err)
		}
	})
}

// wantsToBeRead checks that the error of a bad name is a short line of printable characters.
func wantsToBeRead(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrBadName) {
		t.Errorf("the error %v is not one of a bad name", err)
	}
	text := err.Error()
	if len(text) > 500 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("the error is %q", text)
	}
}
