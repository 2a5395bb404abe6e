package line_test

import (
	"testing"

	"github.com/stilelock/stile/line"
)

func TestFreeNumber(t *testing.T) {
	for _, c := range []struct {
		taken []int
		slots int
		want  int
		ok    bool
	}{
		{nil, 1, 0, true},
		{[]int{0}, 1, 0, false},
		{[]int{1, 3, 0}, 5, 2, true},
		{[]int{2, 1, 0}, 3, 0, false},
		{[]int{4, 9}, 2, 0, true}, // numbers beyond the slots take nothing
		{[]int{0, 4, 1}, 2, 0, false},
	} {
		if n, ok := line.FreeNumber(c.taken, c.slots); n != c.want || ok != c.ok {
			t.Errorf("FreeNumber(%v, %d): got %d, %v, want %d, %v", c.taken, c.slots, n, ok, c.want, c.ok)
		}
	}
}
