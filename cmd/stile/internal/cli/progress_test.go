package cli

import "testing"

func TestALineFitsIntoItsColumns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line    string
		columns int
		want    string
	}{
		{"", 1, ""},
		{"abcde", 5, "abcde"},
		{"abcdef", 5, "abcd…"},
		{"äöüäöü", 5, "äöüä…"},
		{"錠錠", 4, "錠錠"},
		{"錠錠", 3, "錠…"},
		{"a錠錠", 4, "a錠…"},
		{"錠錠錠", 4, "錠…"},
		{"錠", 1, "…"},
	} {
		if got := fit(c.line, c.columns); got != c.want {
			t.Errorf("%q in %d columns: %q, want %q", c.line, c.columns, got, c.want)
		}
	}
}
