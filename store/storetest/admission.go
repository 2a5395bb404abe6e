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

	s.test("an exclusive entry is not admitted while another is held", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		b.waiting(1)
		b.stays(store.Waiting)
		a.withdraw()
		b.admitted()
	})

	fair.test("exclusive entries are admitted one at a time in order of arrival", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		var entries []*entry
		for range 5 {
			entries = append(entries, w.openKept().enqueue(name, line.Exclusive))
		}
		for i, p := range entries {
			p.admitted()
			for _, behind := range entries[i+1:] {
				behind.neverAdmitted()
			}
			p.stays(store.Admitted)
			p.withdraw()
		}
	})

	shared.test("shared entries are admitted together", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		var entries []*entry
		for range 3 {
			entries = append(entries, w.openKept().hold(name, line.Shared))
		}
		for _, p := range entries {
			p.stays(store.Admitted)
		}
	})

	shared.test("an exclusive entry waits for all shared ones ahead", func(t *testing.T, w *testEnv) {
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

	// Bug: redisson #5379
	shared.test("a shared entry does not overtake a waiting exclusive one", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		reader := w.openKept().hold(name, line.Shared)
		writer := w.openKept().enqueue(name, line.Exclusive)
		lastReader := w.openKept().enqueue(name, line.Shared)
		lastReader.waiting(1)
		lastReader.stays(store.Waiting)
		reader.withdraw()
		writer.admitted()
		lastReader.stays(store.Waiting)
		writer.withdraw()
		lastReader.admitted()
	})

	// Bug: redisson #6664
	shared.test("of n slots n are admitted and each withdrawal admits one more", func(t *testing.T, w *testEnv) {
		name, mode := w.name("lock"), line.Slot(3)
		var in []*entry
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

	shared.test("a session may hold several slots", func(t *testing.T, w *testEnv) {
		name, c := w.name("lock"), w.openKept()
		a, b := c.hold(name, line.Slot(2)), c.hold(name, line.Slot(2))
		third := c.enqueue(name, line.Slot(2))
		third.waiting(1)
		b.withdraw()
		third.admitted()
		a.stays(store.Admitted)
	})

	s.test("a second exclusive entry of a session waits behind the first", func(t *testing.T, w *testEnv) {
		name, c := w.name("lock"), w.openKept()
		first := c.hold(name, line.Exclusive)
		second := c.enqueue(name, line.Exclusive)
		second.waiting(1)
		_, err := c.try(name, line.Exclusive)
		if !isHeld(err) {
			t.Fatalf("a try behind the session's own entries returned %v, want a HeldError", err)
		}
		third := c.enqueue(name, line.Exclusive)
		third.withdraw() // must not affect the others
		first.stays(store.Admitted)
		second.stays(store.Waiting)
		first.withdraw()
		second.admitted()
		w.wantLine(name, second)
		second.withdraw()
		w.wantLine(name)
	})

	// Bug: etcd #16221
	fair.test("a waiter of an expired session is not admitted when others leave", func(_ *testing.T, w *testEnv) {
		var a, dead, c *entry
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

	// Bug: etcd #16221
	s.needs(Fair, Fencing, WaitersOrders).test("a broken waiter is not admitted when others leave", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		a := w.openKept().hold(name, line.Exclusive)
		b := w.openKept().enqueue(name, line.Exclusive)
		c := w.openKept().enqueue(name, line.Exclusive)
		order := w.wantLine(name, a, b, c).Entries[1].Order
		if order == 0 {
			t.Fatalf("a waiter has no order and cannot be broken: add %q to Harness.Without", WaitersOrders)
		}
		if _, err := w.breakEntry(name, order); err != nil {
			t.Fatalf("Break of a waiter: %v", err)
		}
		if cause := b.gone(); !errors.Is(cause, store.ErrGone) {
			t.Errorf("the broken entry is gone with cause %v, want an error matching ErrGone", cause)
		}
		a.withdraw()
		c.admitted()
		c.withdraw()
		b.stays(store.Gone)
		b.neverAdmitted()
	})

	shared.test("lines of random modes follow the admission rules", func(t *testing.T, w *testEnv) {
		const clients, steps = 6, 60
		var cs []*client
		for range clients {
			cs = append(cs, w.openKept())
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))

		for _, kind := range []struct {
			modes   []line.Mode
			opening []line.Mode // a fixed sequence, so that each mode waits behind another at least once
		}{
			{
				[]line.Mode{line.Exclusive, line.Shared, line.Shared},
				[]line.Mode{line.Exclusive, line.Shared, line.Shared, line.Exclusive},
			},
			{[]line.Mode{line.Slot(2)}, nil},
			{[]line.Mode{line.Slot(3)}, nil},
		} {
			name := w.newName()
			var entries []*entry // the expected line
			for step := range steps {
				switch at := rng.IntN(clients); {
				case step < len(kind.opening):
					entries = append(entries, free(cs, entries).enqueue(name, kind.opening[step]))
				case at < len(entries):
					entries[at].withdraw()
					entries = append(entries[:at:at], entries[at+1:]...)
				default:
					entries = append(entries, free(cs, entries).enqueue(name, kind.modes[rng.IntN(len(kind.modes))]))
				}
				var ahead []line.Mode
				for _, p := range entries {
					if n := line.Blocking(p.mode, ahead); n == 0 {
						p.admitted()
					} else {
						p.waiting(n)
					}
					ahead = append(ahead, p.mode)
				}
			}
		}
	})
}

// free returns a client without an entry among entries.
func free(cs []*client, entries []*entry) *client {
	busy := make(map[*client]bool)
	for _, p := range entries {
		busy[p.client] = true
	}
	for _, c := range cs {
		if !busy[c] {
			return c
		}
	}
	panic("storetest: every client has an entry in the line")
}
