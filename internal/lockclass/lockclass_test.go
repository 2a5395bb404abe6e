package lockclass_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stilelock/stile/internal/lockclass"
)

func TestOf(t *testing.T) {
	for name, want := range map[string]string{
		"orders/42":                           "orders",
		"orders/eu/42":                        "orders",
		"nightly-backup":                      "other",
		"/orders":                             "other",
		"":                                    "other",
		"a\xffb/1":                            "a\uFFFDb",
		strings.Repeat("x", 64) + "/1":        strings.Repeat("x", 64),
		strings.Repeat("x", 65) + "/1":        "other",
		strings.Repeat("\xff\x00", 32) + "/1": "other", // valid UTF-8 is longer
	} {
		if got := lockclass.Of(name); got != want {
			t.Errorf("Of(%q): got %q, want %q", name, got, want)
		}
	}
}

// Only so many classes become labels, always the same.
func TestSet_isLimited(t *testing.T) {
	var s lockclass.Set
	for range 2 {
		for i := range 2 * lockclass.Max {
			class := fmt.Sprint(i)
			want := class
			if i >= lockclass.Max {
				want = lockclass.Other
			}
			if got := s.Limit(class); got != want {
				t.Errorf("Limit(%s): got %q, want %q", class, got, want)
			}
		}
		if got := s.Limit(lockclass.Other); got != lockclass.Other {
			t.Errorf("Limit(other): got %q", got)
		}
	}
}

func FuzzOf(f *testing.F) {
	f.Add("orders/42")
	f.Add("\xff/")
	f.Fuzz(func(t *testing.T, name string) {
		if class := lockclass.Of(name); class == "" || len(class) > lockclass.MaxBytes || !utf8.ValidString(class) {
			t.Errorf("Of(%q): got %q", name, class)
		}
	})
}
