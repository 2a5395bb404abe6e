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
			t.Errorf("%s: Blocking: got %d, want %d", what, got, blocking)
		}
		if got, want := p.Admitted(), blocking == 0; got != want {
			t.Errorf("%s: Admitted: got %v, want %v", what, got, want)
		}
	}
	left := func(id string, at uint64, wasAhead bool) {
		t.Helper()
		if got := p.Left(id, at); got != wasAhead {
			t.Errorf("Left(%s, %d): got %v, want %v", id, at, got, wasAhead)
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
	expect("after b left is repeated", 1)
	left("a", 10, true)
	expect("after a left", 0)
	if p.Entry() != me {
		t.Errorf("Entry: got %v, want %v", p.Entry(), me)
	}
}

func TestTracker_sameIDAgain(t *testing.T) {
	me := Entry{ID: "me", Order: 10, Mode: Exclusive}
	p := NewTracker(me, []Entry{{ID: "a", Order: 8}}) // a joined at 5, left at 7 and joined again at 8
	for _, at := range []uint64{6, 7, 8} {
		if p.Left("a", at) || p.Admitted() {
			t.Errorf("Left at %d removed an entry that joined at 8", at)
		}
	}
	if !p.Left("a", 9) || !p.Admitted() {
		t.Error("Left at 9 did not remove an entry that joined at 8")
	}
}

// A downgrade concerns one entry, not a later one with the same ID, and is final.
func TestTracker_downgraded(t *testing.T) {
	me := Entry{ID: "me", Order: 10, Mode: Shared}
	p := NewTracker(me, []Entry{{ID: "a", Order: 8}, {ID: "b", Order: 9, Mode: Shared}})
	if p.Downgraded("a", 5) || p.Downgraded("b", 9) || p.Downgraded("c", 8) || p.Downgraded("me", 10) || p.Admitted() {
		t.Error("Downgraded changed something although no exclusive entry ahead was meant")
	}
	if !p.Downgraded("a", 8) || !p.Admitted() {
		t.Error("Downgraded did not admit a reader behind the entry")
	}
	if p.Downgraded("a", 8) || !p.Admitted() {
		t.Error("the repeated Downgraded was new")
	}
	writer := NewTracker(Entry{ID: "w", Order: 11}, []Entry{{ID: "a", Order: 8}})
	if writer.Downgraded("a", 8); writer.Blocking() != 1 {
		t.Errorf("a writer behind a downgraded entry: Blocking: got %d, want 1", writer.Blocking())
	}
}

func TestTracker_tiesByID(t *testing.T) {
	me := Entry{ID: "m", Order: 5, Mode: Exclusive}
	p := NewTracker(me, []Entry{{ID: "a", Order: 5}, {ID: "z", Order: 5}})
	if got := p.Blocking(); got != 1 {
		t.Errorf("Blocking: got %d, want 1: only a", got)
	}
}

// A history has all states of a line, one for each order.
type history struct {
	at     [][]Entry // the complete line at each order
	events []departure
}

type departure struct {
	id string
	at uint64
	// If not zero, the entry with this order did not leave: it was downgraded.
	downgraded uint64
}

// deliver reports the event to a tracker.
func (d departure) deliver(p *Tracker) bool {
	if d.downgraded > 0 {
		return p.Downgraded(d.id, d.downgraded)
	}
	return p.Left(d.id, d.at)
}

func (h *history) now() []Entry { return h.at[len(h.at)-1] }

// downgrade makes an entry shared, if it is an admitted exclusive one.
func (h *history) downgrade(i int) {
	line := slices.Clone(h.now())
	if line[i].Mode != Exclusive || !Admitted(line, 0)[i] {
		return
	}
	h.events = append(h.events, departure{line[i].ID, uint64(len(h.at)), line[i].Order})
	line[i].Mode = Shared
	h.at = append(h.at, line)
}

// join, leave and downgrade each use one order.
func (h *history) join(id string, m Mode) Entry {
	e := Entry{ID: id, Order: uint64(len(h.at)), Mode: m}
	h.at = append(h.at, append(slices.Clone(h.now()), e))
	return e
}

func (h *history) leave(i int) {
	h.events = append(h.events, departure{id: h.now()[i].ID, at: uint64(len(h.at))})
	h.at = append(h.at, slices.Delete(slices.Clone(h.now()), i, i+1))
}

// A tracker follows a random line by events, some of them repeated or late, and by readings. It
// always agrees with the complete line at the newest order that it was given.
func TestTracker_agreesWithWholeLine(t *testing.T) {
	const cases = 10_000
	base := rand.Uint64()
	var admissions, rejoined, overtaken, downgrades int
	for i := range uint64(cases) {
		r := rand.New(rand.NewPCG(base, i))
		fail := func(format string, args ...any) {
			t.Fatalf("seed %d, %d: %s", base, i, fmt.Sprintf(format, args...))
		}
		n := 1 + r.IntN(3)
		h := &history{at: [][]Entry{nil}}
		// There are few IDs, so that they are reused.
		change := func(me string) {
			line := h.now()
			if len(line) > 0 && r.IntN(4) == 0 && line[0].ID != me {
				h.downgrade(0) // no other exclusive entry can be admitted
				return
			}
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
		delivered := len(h.events) // number of events delivered to the tracker

		check := func(after string) {
			line := h.at[known]
			own := slices.Index(line, me)
			if got, want := p.Admitted(), Admitted(line, 0)[own]; got != want {
				fail("%s, known to %d: Admitted: got %v, want %v in %v", after, known, got, want, line)
			}
			var ahead []Mode
			for _, e := range line[:own] {
				ahead = append(ahead, e.Mode)
			}
			if got, want := p.Blocking(), Blocking(me.Mode, ahead); got != want {
				fail("%s, known to %d: Blocking: got %d, want %d in %v", after, known, got, want, line)
			}
		}
		check("after joining")
		for range 24 {
			change("me")
			switch r.IntN(4) {
			case 0: // the next event is delivered
				if delivered == len(h.events) {
					continue
				}
				e := h.events[delivered]
				delivered++
				if e.at <= known {
					overtaken++
				}
				known = max(known, e.at)
				if e.deliver(p) && e.downgraded > 0 {
					downgrades++
				}
				check(fmt.Sprint("after ", e))
			case 1: // an old event is delivered again
				if delivered == 0 {
					continue
				}
				e := h.events[r.IntN(delivered)]
				if e.deliver(p) {
					fail("the repeated event %v: got true", e)
				}
				if slices.ContainsFunc(h.at[known], func(x Entry) bool { return x.ID == e.id && x.Before(me) }) {
					rejoined++
				}
				check(fmt.Sprint("after the repeated ", e))
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
	if admissions == 0 || rejoined == 0 || overtaken == 0 || downgrades == 0 {
		t.Errorf("got %d admissions, %d reused IDs, %d overtaken events, %d downgrades ahead, want at least one each",
			admissions, rejoined, overtaken, downgrades)
	}
}
