package storetest

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func admission(s suite) {
	fair, shared := s.needs(Fair), s.needs(Fair, SharedModes)

	s.test("an exclusive entry is not admitted while another is held", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		b.waiting(1)
		b.stays(store.Waiting)
		a.withdraw()
		b.admitted()
	})

	fair.test("exclusive entries are admitted one at a time in order of arrival", func(t *testing.T, w *world) {
		name := w.name("lock")
		var places []*place
		for range 5 {
			places = append(places, w.openKept().enqueue(name, line.Exclusive))
		}
		for i, p := range places {
			p.admitted()
			for _, behind := range places[i+1:] {
				behind.neverAdmitted()
			}
			p.stays(store.Admitted)
			p.withdraw()
		}
	})

	shared.test("shared entries are admitted together", func(t *testing.T, w *world) {
		name := w.name("lock")
		var places []*place
		for range 3 {
			places = append(places, w.openKept().hold(name, line.Shared))
		}
		for _, p := range places {
			p.stays(store.Admitted)
		}
	})

	shared.test("an exclusive entry waits for every shared one ahead", func(t *testing.T, w *world) {
		name := w.name("lock")
		a, b := w.openKept().hold(name, line.Shared), w.openKept().hold(name, line.Shared)
		writer := w.openKept().enqueue(name, line.Exclusive)
		writer.waiting(2)
		a.withdraw()
		writer.waiting(1)
		writer.stays(store.Waiting)
		b.withdraw()
		writer.admitted()
	})

	shared.test("a shared entry does not overtake an exclusive one that waits", func(t *testing.T, w *world) {
		name := w.name("lock")
		reader := w.openKept().hold(name, line.Shared)
		writer := w.openKept().enqueue(name, line.Exclusive)
		late := w.openKept().enqueue(name, line.Shared)
		late.waiting(1)
		late.stays(store.Waiting)
		reader.withdraw()
		writer.admitted()
		late.stays(store.Waiting)
		writer.withdraw()
		late.admitted()
	})

	shared.test("of n slots n are admitted and each that leaves lets one in", func(t *testing.T, w *world) {
		name, mode := w.name("lock"), line.Slot(3)
		var in []*place
		for range 3 {
			in = append(in, w.openKept().hold(name, mode))
		}
		first, second := w.openKept().enqueue(name, mode), w.openKept().enqueue(name, mode)
		first.waiting(1)
		second.waiting(2)
		in[1].withdraw() // not the first of the line
		first.admitted()
		second.waiting(1)
		second.stays(store.Waiting)
		in[0].withdraw()
		second.admitted()
	})

	shared.test("one session may have several slots", func(t *testing.T, w *world) {
		name, c := w.name("lock"), w.openKept()
		a, b := c.hold(name, line.Slot(2)), c.hold(name, line.Slot(2))
		third := c.enqueue(name, line.Slot(2))
		third.waiting(1)
		b.withdraw()
		third.admitted()
		a.stays(store.Admitted)
	})

	s.test("a second exclusive entry of a session stands behind the first", func(t *testing.T, w *world) {
		name, c := w.name("lock"), w.openKept()
		first := c.hold(name, line.Exclusive)
		second := c.enqueue(name, line.Exclusive)
		second.waiting(1)
		_, err := c.try(name, line.Exclusive)
		if !isHeld(err) {
			t.Fatalf("the session's try behind its own entries returned %v, want a HeldError", err)
		}
		third := c.enqueue(name, line.Exclusive)
		third.withdraw() // and leaves the others where they are
		first.stays(store.Admitted)
		second.stays(store.Waiting)
		first.withdraw()
		second.admitted()
		w.lineOf(name, second)
		second.withdraw()
		w.lineOf(name)
	})

	fair.test("a waiter whose session has ended is not admitted when the others leave", func(_ *testing.T, w *world) {
		var a, dead, c *place
		w.expiring(func(d *client, name string) (err error) {
			a = w.openKept().hold(name, line.Exclusive)
			dead, err = d.tryEnqueue(name, line.Exclusive, false)
			c = w.openKept().enqueue(name, line.Exclusive)
			return err
		})
		dead.goneInTime()
		a.withdraw()
		c.admitted()
		c.withdraw()
		dead.stays(store.Gone)
		dead.neverAdmitted()
	})

	s.needs(Fair, Fencing, WaitersOrders).test("a waiter whose entry was broken is not admitted when the others leave", func(t *testing.T, w *world) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		c := w.openKept().enqueue(name, line.Exclusive)
		order := w.lineOf(name, a, b, c).Entries[1].Order
		if order == 0 {
			t.Fatalf("an entry that waits has no order and cannot be named to Break: Harness.Without has to name %q", WaitersOrders)
		}
		if _, err := w.breakEntry(name, order); err != nil {
			t.Fatalf("Break of an entry that waits: %v", err)
		}
		if cause := b.gone(); !errors.Is(cause, store.ErrGone) {
			t.Errorf("the broken entry went because of %v, want an error matching ErrGone", cause)
		}
		a.withdraw()
		c.admitted()
		c.withdraw()
		b.stays(store.Gone)
		b.neverAdmitted()
	})

	shared.test("lines of all modes mixed follow the rules", func(t *testing.T, w *world) {
		const clients, steps = 6, 60
		name := w.name("lock")
		var cs []*client
		for range clients {
			cs = append(cs, w.openKept())
		}
		modes := []line.Mode{line.Exclusive, line.Shared, line.Shared, line.Slot(2), line.Slot(3)}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		dice := rand.New(rand.NewPCG(seed, 0))

		// Whatever the dice say, each kind stands behind another once.
		opening := []line.Mode{line.Shared, line.Slot(2), line.Shared, line.Exclusive}
		var places []*place // the line as it should be
		for step := range steps {
			switch at := dice.IntN(clients); {
			case step < len(opening):
				places = append(places, free(cs, places).enqueue(name, opening[step]))
			case at < len(places):
				places[at].withdraw()
				places = append(places[:at:at], places[at+1:]...)
			default:
				places = append(places, free(cs, places).enqueue(name, modes[dice.IntN(len(modes))]))
			}
			var ahead []line.Mode
			for _, p := range places {
				if n := line.Blocking(p.mode, ahead); n == 0 {
					p.admitted()
				} else {
					p.waiting(n)
				}
				ahead = append(ahead, p.mode)
			}
		}
	})
}

// free returns a client that has no place among places.
func free(cs []*client, places []*place) *client {
	busy := make(map[*client]bool)
	for _, p := range places {
		busy[p.client] = true
	}
	for _, c := range cs {
		if !busy[c] {
			return c
		}
	}
	panic("storetest: everybody stands in the line")
}
