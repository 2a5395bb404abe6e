package observe

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stilelock/stile"
)

func TestSteps(t *testing.T) {
	waiting := func(token uint64) stile.Entry {
		return stile.Entry{Token: token, Session: "s", Owner: stile.Owner{Since: time.Unix(int64(token), 0)}}
	}
	for _, others := range []int{0, 100} { // many entries are found in another way
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			var behind []stile.Entry
			for n := range others {
				behind = append(behind, waiting(uint64(1000+n)))
			}
			second := waiting(2)
			second.Token = 0 // the store assigns it later
			before := stile.Line{Holders: []stile.Entry{waiting(1)}, Waiters: append([]stile.Entry{second, waiting(3)}, behind...)}
			now := stile.Line{Holders: []stile.Entry{waiting(2)}, Waiters: append(slices.Clone(behind), waiting(5000))}
			var got []string
			for _, s := range Steps(before, now) {
				got = append(got, fmt.Sprint(s.Entry.Token, " ", s.What))
			}
			if want := []string{"1 ended", "3 left", "2 holds", "5000 waits"}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if steps := Steps(now, now); len(steps) > 0 {
				t.Errorf("got %v for a line that has not changed", steps)
			}
		})
	}
}
