package store_test

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stilelock/stile/store"
)

// An accepted name is a path in canonical form, valid UTF-8 and without control characters. The
// error for a refused name quotes it on one line. Every beginning of an accepted name is an
// accepted prefix.
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
			t.Fatalf("CheckName(%q): got error %v, want an error: %v", name, err, !good)
		}
		if err != nil {
			checkErrorText(t, err)
			return
		}
		for end := range name + "/" { // at each character boundary
			if err := store.CheckPrefix(name[:end]); err != nil {
				t.Errorf("CheckPrefix of a beginning of the name %q: %v", name, err)
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
			t.Fatalf("CheckPrefix(%q): got error %v, want an error: %v", prefix, err, !good)
		}
		if err != nil {
			checkErrorText(t, err)
		}
	})
}

// checkErrorText checks that err matches ErrBadName and that its text is a short line of printable
// characters.
func checkErrorText(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrBadName) {
		t.Errorf("got error %v, want ErrBadName", err)
	}
	text := err.Error()
	if len(text) > 500 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("error text: got %q, want at most 500 printable bytes", text)
	}
}
