package line

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestTracker_movesUp(t *testing.T) {
	me := Entry{ID: "me", Order: 5, Mode: Exclusive}
	p := NewTracker(me, []Entry{{ID: "a", Order: 1}, {ID: "b", Order: 3}, me, {ID: "c", Order: 7}})
	expect := func(what string, blocking int) {
		t.Helper()
		if got := p.Blocking(); got != blocking {
			t.Errorf("%s: %d block, want %d", what, got, blocking)
		}
		if got, want := p.Admitted(), blocking == 0; got != want {
			t.Errorf("%s: admitted %v, want %v", what, got, want)
		}
	}
	left := func(id string, at uint64, wasAhead bool) {
		t.Helper()
		if got := p.Left(id, at); got != wasAhead {
			t.Errorf("%s left at %d: had been ahead %v, want %v", id, at, got, wasAhead)
		}
	}

	expect("behind a and b", 2)
	left("c", 8, false)
	left("nobody", 8, false)
	left("me", 8, false)
	expect("after others left", 2)
	left("b", 9, true)
	expect("after b left", 1)
	left("b", 9, false)
	expect("after b left is heard again", 1)
	left("a", 10, true)
	expect("after a left", 0)
	if p.Entry() != me {
		t.Errorf("the place is that of %v, want %v", p.Entry(), me)
	}
}

func TestTracker_sameIDAgain(t *testing.T) {
	me := Entry{ID: "me", Order: 10, Mode: Exclusive}
	p := NewTracker(me, []Entry{{ID: "a", Order: 8}}) // a stood at 5, left at 7 and joined again at 8
	for _, at := range []uint64{6, 7, 8} {
		if p.Left("a", at) || p.Admitted() {
			t.Errorf("an entry that joined at 8 was taken for one that left at %d", at)
		}
	}
	if !p.Left("a", 9) || !p.Admitted() {
		t.Error("an entry that joined at 8 and left at 9 is still there")
	}
}

func TestTracker_tiesByID(t *testing.T) {
	me := Entry{ID: "m", Order: 5, Mode: Exclusive}
	p := NewTracker(me, []Entry{{ID: "a", Order: 5}, {ID: "z", Order: 5}})
	if got := p.Blocking(); got != 1 {
		t.Errorf("%d block, want 1: a, and not z", got)
	}
}

// history is a line with all its past: what it was at each point of its order.
type history struct {
	at     [][]Entry // index is the point of order; each a complete line
	events []departure
}

type departure struct {
	id string
	at uint64
}

func (h *history) now() []Entry { return h.at[len(h.at)-1] }

// join and leave take up one point of the order each.
func (h *history) join(id string, m Mode) Entry {
	e := Entry{ID: id, Order: uint64(len(h.at)), Mode: m}
	h.at = append(h.at, append(slices.Clone(h.now()), e))
	return e
}

func (h *history) leave(i int) {
	h.events = append(h.events, departure{h.now()[i].ID, uint64(len(h.at))})
	h.at = append(h.at, slices.Delete(slices.Clone(h.now()), i, i+1))
}

// A place is told of a random line by events, some of them repeated or late, and by readings in between. At each
// point it knows what the whole line knew at the newest point it was told of.
func TestTracker_agreesWithWholeLine(t *testing.T) {
	const cases = 10_000
	base := rand.Uint64()
	var admissions, rejoined, overtaken int
	for i := range uint64(cases) {
		r := rand.New(rand.NewPCG(base, i))
		fail := func(format string, args ...any) {
			t.Fatalf("seed %d, %d: %s", base, i, fmt.Sprintf(format, args...))
		}
		n := 1 + r.IntN(3)
		h := &history{at: [][]Entry{nil}}
		// Ids are few, so that they come again.
		change := func(me string) {
			line := h.now()
			if len(line) > 0 && r.IntN(2) == 0 {
				if gone := r.IntN(len(line)); line[gone].ID != me {
					h.leave(gone)
				}
				return
			}
			id := string(rune('a' + r.IntN(6)))
			if id != me && !slices.ContainsFunc(line, func(e Entry) bool { return e.ID == id }) {
				h.join(id, randomMode(r, n))
			}
		}
		for range r.IntN(16) {
			change("")
		}
		me := h.join("me", randomMode(r, n))
		known := me.Order
		p := NewTracker(me, h.now())
		delivered := len(h.events) // events from here on are news

		check := func(after string) {
			line := h.at[known]
			own := slices.Index(line, me)
			if got, want := p.Admitted(), Admitted(line)[own]; got != want {
				fail("%s, known to %d: admitted %v, want %v in %v", after, known, got, want, line)
			}
			var ahead []Mode
			for _, e := range line[:own] {
				ahead = append(ahead, e.Mode)
			}
			if got, want := p.Blocking(), Blocking(me.Mode, ahead); got != want {
				fail("%s, known to %d: %d block, want %d in %v", after, known, got, want, line)
			}
		}
		check("after joining")
		for range 24 {
			change("me")
			switch r.IntN(4) {
			case 0: // the next event arrives
				if delivered == len(h.events) {
					continue
				}
				e := h.events[delivered]
				delivered++
				if e.at <= known {
					overtaken++
				}
				known = max(known, e.at)
				p.Left(e.id, e.at)
				check(fmt.Sprint("told ", e))
			case 1: // an old event arrives again
				if delivered == 0 {
					continue
				}
				e := h.events[r.IntN(delivered)]
				if p.Left(e.id, e.at) {
					fail("%v was news a second time", e)
				}
				if slices.ContainsFunc(h.at[known], func(x Entry) bool { return x.ID == e.id && x.Before(me) }) {
					rejoined++
				}
				check(fmt.Sprint("told again ", e))
			case 2: // a reading overtakes the events
				if r.IntN(4) == 0 {
					known = uint64(len(h.at) - 1)
					p.Reread(h.now())
					check("after reading")
				}
			}
			if p.Admitted() {
				admissions++
			}
		}
	}
	if admissions == 0 || rejoined == 0 || overtaken == 0 {
		t.Errorf("admitted %d times, %d ids stood again, %d events overtaken: each must happen", admissions, rejoined, overtaken)
	}
}
