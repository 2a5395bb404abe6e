package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func numbers(s suite) {
	const slots = 3
	mode := line.Slot(slots)

	s.test("the holders of all slots have all numbers", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		w.wantNumbers(slots, c.hold(name, mode), w.openKept().hold(name, mode), c.hold(name, mode))
	})

	s.test("an entry keeps its number", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		p := w.openKept().hold(name, mode)
		w.openKept().hold(name, mode).claim()
		number, order := p.claim()
		if order < p.order() {
			t.Errorf("ClaimNumber returned order %d, want at least that of the entry, %d", order, p.order())
		}
		w.openKept().hold(name, mode).claim()
		if n, o := p.claim(); n != number || o != order {
			t.Errorf("the second ClaimNumber returned number %d and order %d, want %d and %d as the first", n, o, number, order)
		}
	})

	s.test("a number is free after the withdrawal", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.freesNumbers(name, mode, func(p *entry) { p.withdraw() })
	})

	s.test("a number is free after a break", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.freesNumbers(name, mode, func(p *entry) {
			if _, err := w.breakEntry(name, p.order()); err != nil {
				t.Fatalf("Break: %v", err)
			}
		})
	})

	s.test("a number is free after the session is closed", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.freesNumbers(name, mode, func(p *entry) { p.client.close() })
	})

	s.test("a number is free after the session has expired", func(t *testing.T, w *testEnv) {
		var number int
		var name string
		c := w.expiring(func(c *client, unused string) error {
			name = unused
			p, err := c.tryHold(name, line.Slot(1))
			if err == nil {
				number, _, err = p.tryClaim(t.Context())
			}
			return err
		})
		next := w.openKept().enqueue(name, line.Slot(1))
		next.admittedWithin(c.Terms().TTL + 2*w.h.Grace)
		if n, _ := next.claim(); n != number {
			t.Errorf("the next holder of the only slot has number %d, want %d", n, number)
		}
	})

	s.needs(ReleaseAfter).test("an entry that outlasts its session keeps its number", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		p, other := c.hold(name, line.Slot(2)), w.openKept().hold(name, line.Slot(2))
		p.claim()
		number, _ := other.claim()
		p.withdrawAfter(w.h.TTL)
		c.close()
		other.withdraw()
		next := w.openKept().hold(name, line.Slot(2))
		if n, _ := next.claim(); n != number {
			t.Errorf("the next holder has number %d, want %d, the only one that is free", n, number)
		}
	})

	s.test("an entry that is gone cannot claim a number", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		withdrawn, broken := w.openKept().hold(name, mode), w.openKept().hold(name, mode)
		withdrawn.withdraw()
		if _, err := w.breakEntry(name, broken.order()); err != nil {
			t.Fatalf("Break: %v", err)
		}
		for _, p := range []*entry{withdrawn, broken} {
			ctx, cancel := w.call()
			if _, _, err := p.tryClaim(ctx); !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrSessionLost) {
				t.Errorf("ClaimNumber of an entry that is gone returned %v, want ErrGone", err)
			}
			cancel()
		}
		w.wantNumbers(slots, w.openKept().hold(name, mode), w.openKept().hold(name, mode), w.openKept().hold(name, mode))
	})

	s.test("lines have numbers of their own", func(t *testing.T, w *testEnv) {
		a, below := w.openKept().hold(w.name("lock"), line.Slot(1)), w.openKept().hold(w.name("lock/below"), line.Slot(1))
		w.wantNumbers(1, a)
		w.wantNumbers(1, below)
	})

	s.test("later claims of a number have larger orders", func(t *testing.T, w *testEnv) {
		// The entry that claims the number last was there first.
		name := w.name("lock")
		first, second := w.openKept().hold(name, line.Slot(2)), w.openKept().hold(name, line.Slot(2))
		number, earlier := second.claim()
		second.withdraw()
		third := w.openKept().hold(name, line.Slot(2))
		orders := map[int]uint64{number: earlier}
		for _, p := range []*entry{first, third} {
			n, order := p.claim()
			if order <= orders[n] {
				t.Errorf("a claim of number %d has order %d, want more than that of an earlier claim, %d", n, order, orders[n])
			}
			orders[n] = order
		}
	})

	// Bug: CURATOR-462
	s.test("canceled claims leave nothing", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		w.stagger(40, func(ctx context.Context) {
			p := c.hold(name, mode)
			_, _, _ = p.tryClaim(ctx)
			p.withdraw()
		})
		w.wantNumbers(slots, c.hold(name, mode), w.openKept().hold(name, mode), w.openKept().hold(name, mode))
	})

	s.test("entries admitted together get different numbers", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		for range 5 {
			leaving := w.openKept()
			for range slots {
				leaving.hold(name, mode).claim()
			}
			next := make([]*entry, slots)
			for i := range next {
				next[i] = w.openKept().enqueue(name, mode)
			}
			leaving.close()
			w.wantNumbers(slots, next...)
			var all sync.WaitGroup
			for _, p := range next {
				all.Go(p.withdraw)
			}
			all.Wait()
		}
	})

	s.test("holds of many sessions have different numbers with increasing orders", func(t *testing.T, w *testEnv) {
		const clients, rounds = 6, 15
		name := w.name("lock")
		h := numberHolders{holder: make(map[int]*entry), last: make(map[int]uint64)}
		var all sync.WaitGroup
		for range clients {
			c := w.openKept()
			all.Go(func() {
				for range rounds {
					if err := h.hold(c, name, mode); err != nil {
						w.brokenf("%v", err)
						return
					}
				}
			})
		}
		all.Wait()
	})
}

// claim claims a number for an admitted entry.
func (p *entry) claim() (number int, order uint64) {
	p.client.w.t.Helper()
	ctx, cancel := p.client.w.call()
	defer cancel()
	number, order, err := p.tryClaim(ctx)
	if err != nil {
		p.client.w.t.Fatal(err)
	}
	return number, order
}

func (p *entry) tryClaim(ctx context.Context) (number int, order uint64, err error) {
	number, order, err = p.ticket.Extensions().ClaimNumber(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("session %s, ClaimNumber for %q: %w", p.client.ID(), p.name, err)
	}
	return number, order, nil
}

// wantNumbers lets the entries claim numbers at the same time, when they are admitted, and checks that
// they get all numbers.
func (w *testEnv) wantNumbers(slots int, entries ...*entry) {
	w.t.Helper()
	numbers, errs := make([]int, len(entries)), make([]error, len(entries))
	var all sync.WaitGroup
	for i, p := range entries {
		p.admitted()
		all.Go(func() {
			ctx, cancel := w.call()
			defer cancel()
			numbers[i], _, errs[i] = p.tryClaim(ctx)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
	seen := make(map[int]bool)
	for _, n := range numbers {
		if n < 0 || n >= slots || seen[n] {
			w.t.Fatalf("%d holders of %d slots have the numbers %v, want different ones from 0 to %d", len(entries), slots, numbers, slots-1)
		}
		seen[n] = true
	}
}

// freesNumbers checks that a holder's number is free after leave: the next holders claim all numbers
// but that of the one that stays.
func (w *testEnv) freesNumbers(name string, mode line.Mode, leave func(p *entry)) {
	w.t.Helper()
	stays := w.openKept().hold(name, mode)
	kept, _ := stays.claim()
	next := make([]*entry, mode.Slots()-1)
	for i := range next {
		p := w.openKept().hold(name, mode)
		p.claim()
		next[i] = w.openKept().enqueue(name, mode)
		leave(p)
		next[i].admitted()
	}
	taken := map[int]bool{kept: true}
	for _, p := range next {
		n, _ := p.claim()
		if taken[n] {
			w.t.Fatalf("two holders of %q have the number %d", name, n)
		}
		taken[n] = true
	}
}

// numberHolders are the holders of the numbers of one name.
type numberHolders struct {
	mu     sync.Mutex
	holder map[int]*entry
	last   map[int]uint64
}

// hold holds a slot with a number for a moment.
func (h *numberHolders) hold(c *client, name string, mode line.Mode) error {
	p, err := c.tryHold(name, mode)
	if err != nil {
		return err
	}
	ctx, cancel := c.w.call()
	defer cancel()
	number, order, err := p.tryClaim(ctx)
	if err != nil {
		return err
	}
	h.mu.Lock()
	other, last := h.holder[number], h.last[number]
	h.holder[number], h.last[number] = p, max(order, last)
	h.mu.Unlock()
	switch {
	case other != nil:
		return fmt.Errorf("two entries of %q have the number %d at the same time", name, number)
	case order <= last:
		return fmt.Errorf("a claim of number %d of %q has order %d after %d", number, name, order, last)
	}
	time.Sleep(rand.N(time.Millisecond))
	h.mu.Lock()
	h.holder[number] = nil
	h.mu.Unlock()
	return p.tryWithdraw()
}
