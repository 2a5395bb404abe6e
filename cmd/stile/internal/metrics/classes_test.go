package metrics

import (
	"strings"
	"testing"

	"github.com/stilelock/stile/internal/lockclass"
)

func TestClasses_of(t *testing.T) {
	for _, tt := range []struct{ mappings, name, class string }{
		{"", "orders/42", "orders"},
		{"", "orders/eu/42", "orders"},
		{"", "nightly-backup", lockclass.Other},
		{"", "/orders", lockclass.Other},
		{"", "", lockclass.Other},
		{"", "a\xffb/1", "a\uFFFDb"},
		{"", strings.Repeat("x", 64) + "/1", strings.Repeat("x", 64)},
		{"", strings.Repeat("x", 65) + "/1", lockclass.Other},
		{"nightly-backup=backups", "nightly-backup", "backups"},
		{"nightly-backup=backups", "nightly-backup-2", lockclass.Other},
		{"nightly-*=nightly", "nightly-", "nightly"},
		{"nightly-*=nightly", "a nightly-backup", lockclass.Other},
		{"*/deploy=deploys", "eu/web/deploy", "deploys"},
		{"tenant/*/orders/*=orders", "tenant/7/orders/42", "orders"},
		{"tenant/*/orders/*=orders", "tenant/7/bills/42", "tenant"},
		{"a*b*c=x", "abc", "x"},
		{"a*b*c=x", "a-b-b-c", "x"},
		{"a*b*c=x", "ac", lockclass.Other},
		{"ab*ba=x", "aba", lockclass.Other},
		{"*=all", "orders/42", "all"},
		{"*=all", "", "all"},
		{"*=all,orders/*=orders, orders/eu/*=eu", "orders/eu/1", "eu"}, // the longest
		{"orders/eu/*=eu,orders/*=orders,*=all", "orders/eu/1", "eu"},
		{"b*=2,*b=1", "bb", "1"}, // of equal length: the first in alphabetical order
		{"a=b=c", "a=b", "c"},
		{"orders/*=\U0001f4e6", "orders/1", "\U0001f4e6"},
	} {
		var c Classes
		if tt.mappings != "" {
			if err := c.Set(tt.mappings); err != nil {
				t.Fatalf("%q: %v", tt.mappings, err)
			}
		}
		if class, _ := c.of(tt.name); class != tt.class {
			t.Errorf("%q: class of %q: got %q, want %q", tt.mappings, tt.name, class, tt.class)
		}
		var again Classes
		if s := c.String(); s != "" && (again.Set(s) != nil || again.String() != s) {
			t.Errorf("%q: Set does not accept String's %q", tt.mappings, s)
		}
	}
}

func TestClasses_refuses(t *testing.T) {
	for mappings, want := range map[string]string{
		"":                             "want PATTERN=CLASS",
		"orders":                       "want PATTERN=CLASS",
		"=orders":                      "want PATTERN=CLASS",
		"orders/*=":                    "want PATTERN=CLASS",
		"a=b,":                         "want PATTERN=CLASS",
		"a=b,a=c":                      "two classes",
		"a=\xff":                       "UTF-8",
		"a=" + strings.Repeat("x", 65): "maximum is 64",
	} {
		if err := new(Classes).Set(mappings); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", mappings, err, want)
		}
	}
}

// Any name has a class that can be a label, and any pattern that Set accepts can be matched.
func FuzzClasses(f *testing.F) {
	f.Add("a*b=c", "a/b")
	f.Add("*=x,a/*=y", "\xff/")
	f.Fuzz(func(t *testing.T, mappings, name string) {
		var c Classes
		if c.Set(mappings) != nil {
			c = Classes{}
		}
		if class, _ := c.of(name); class == "" || len(class) > lockclass.MaxBytes || strings.ToValidUTF8(class, "") != class {
			t.Errorf("class of %q: got %q", name, class)
		}
	})
}
