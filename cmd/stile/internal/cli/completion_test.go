package cli

import (
	"testing"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
)

// The description of a completed name says who holds the lock.
func TestDescribe(t *testing.T) {
	t.Parallel()
	slot, reader := bob(), ann()
	slot.Mode, reader.Mode = line.Slot(3), line.Shared
	for _, c := range []struct {
		line stile.Line
		want string
	}{
		{lineOf("a"), ""},
		{lineOf("a", ann(), bob()), "held by ann@web-3 pid 812 (deploy.sh), 1 waiting"},
		{lineOf("a", foreign()), "held"},
		{stile.Line{Holders: []stile.Entry{reader, reader}}, "2 hold it"},
		{stile.Line{Holders: []stile.Entry{slot, slot}, Limit: 2}, "2 of 2 slots taken"},
		{stile.Line{Holders: []stile.Entry{slot, slot}}, "2 of 3 slots taken"},
	} {
		if got := describe(c.line); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
