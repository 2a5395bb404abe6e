package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func limits(s suite) {
	mode := line.Slot(3)

	s.test("no more slots are admitted than the limit allows", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.setLimit(name, 2)
		first := w.openKept().hold(name, mode)
		w.openKept().hold(name, mode)
		next := w.openKept().enqueue(name, mode)
		next.stays(store.Waiting)
		first.withdraw()
		next.admitted()
	})

	// Bug: redisson #6664
	s.test("raising the limit admits waiters", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.setLimit(name, 1)
		w.openKept().hold(name, mode)
		second, third := w.openKept().enqueue(name, mode), w.openKept().enqueue(name, mode)
		third.stays(store.Waiting)
		w.setLimit(name, 2)
		second.admitted()
		third.stays(store.Waiting)
		w.setLimit(name, 3)
		third.admitted()
	})

	s.test("removing the limit admits waiters", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.setLimit(name, 1)
		w.openKept().hold(name, mode)
		second, third := w.openKept().enqueue(name, mode), w.openKept().enqueue(name, mode)
		second.stays(store.Waiting)
		w.setLimit(name, 0)
		second.admitted()
		third.admitted()
		w.wantLimit(name, 0)
	})

	s.test("lowering the limit removes no entry", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		holders := []*entry{w.openKept().hold(name, mode), w.openKept().hold(name, mode), w.openKept().hold(name, mode)}
		w.setLimit(name, 1)
		next := w.openKept().enqueue(name, mode)
		next.stays(store.Waiting)
		for _, p := range holders[:2] {
			p.withdraw()
		}
		next.stays(store.Waiting)
		holders[2].stays(store.Admitted)
		holders[2].withdraw()
		next.admitted()
	})

	s.test("a waiter obeys a limit that was lowered", func(t *testing.T, w *testEnv) {
		// A client may need some time to receive the limit, and more on a busy machine.
		for delay := w.h.Grace / 64; !w.obeysLoweredLimit(delay); delay *= 2 {
			if delay > w.h.Grace {
				t.Fatalf("%v after the limit was lowered, a waiter was admitted by the old one", delay)
			}
		}
	})

	s.test("a limit above the number of slots has no effect", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.setLimit(name, 10)
		for range mode.Slots() {
			w.openKept().hold(name, mode)
		}
		w.openKept().enqueue(name, mode).stays(store.Waiting)
	})

	s.test("a line shows its limit, also without entries", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.wantLimit(name, 0)
		w.setLimit(name, 5)
		w.wantLimit(name, 5)
		w.openKept().hold(name, mode)
		w.wantLimit(name, 5)
		w.setLimit(name, 7)
		w.wantLimit(name, 7)
		if lines := w.lines(name); len(lines) != 1 || lines[0].Limit != 7 {
			t.Errorf("Lines returned %+v, want one line with the limit 7", lines)
		}
		w.setLimit(name, 0)
		w.wantLimit(name, 0)
	})

	s.test("a limit outlasts all sessions", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		c := w.openKept()
		c.hold(name, mode)
		w.setLimit(name, 1)
		c.close()
		w.wantLine(name)
		w.wantLimit(name, 1)
		w.openKept().hold(name, mode)
		w.openKept().enqueue(name, mode).stays(store.Waiting)
	})

	s.test("a limit does not concern other modes and names", func(t *testing.T, w *testEnv) {
		name, below := w.name("lock"), w.name("lock/below")
		w.setLimit(name, 1)
		w.openKept().hold(below, mode)
		w.openKept().hold(below, mode)
		w.wantLimit(below, 0)
		w.openKept().hold(name, line.Shared).withdraw()
		p := w.openKept().hold(name, line.Shared)
		w.openKept().hold(name, line.Shared).withdraw()
		p.withdraw()
		w.openKept().hold(name, line.Exclusive)
	})

	// Bug: kazoo #213
	s.test("a try beyond the limit returns a HeldError", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		w.setLimit(name, 1)
		p, err := w.openKept().try(name, mode)
		if err != nil {
			t.Fatalf("a try within the limit: %v", err)
		}
		if _, err := w.openKept().try(name, mode); !isHeld(err) {
			t.Errorf("a try beyond the limit returned %v, want a HeldError", err)
		}
		p.withdraw()
		if _, err := w.openKept().try(name, mode); err != nil {
			t.Errorf("a try when the slot is free again: %v", err)
		}
	})

	s.needs(SlotNumbers, Fencing).test("claimed numbers are within the limit", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		first, second, third := w.openKept().hold(name, mode), w.openKept().hold(name, mode), w.openKept().hold(name, mode)
		w.setLimit(name, 2)
		w.wantNumbers(2, first, second)
		ctx, cancel := w.call()
		defer cancel()
		if n, _, err := third.tryClaim(ctx); !errors.Is(err, store.ErrNoNumber) {
			t.Errorf("ClaimNumber beyond the limit returned %d, %v, want ErrNoNumber", n, err)
		}
		w.setLimit(name, 3)
		if n, _ := third.claim(); n != 2 {
			t.Errorf("ClaimNumber after the limit was raised returned %d, want 2", n)
		}
	})
}

// obeysLoweredLimit reports whether an entry that waits when the limit is lowered is admitted by the new
// limit, if its client has the given time to receive it.
func (w *testEnv) obeysLoweredLimit(delay time.Duration) bool {
	w.t.Helper()
	name, mode := w.newName(), line.Slot(3)
	holders := []*entry{w.openKept().hold(name, mode), w.openKept().hold(name, mode), w.openKept().hold(name, mode)}
	next := w.openKept().enqueue(name, mode)
	next.waiting(1)
	w.setLimit(name, 1)
	time.Sleep(delay)
	holders[0].withdraw()
	time.Sleep(settleTime)
	if st, _, _, _ := next.latest(); st.State != store.Waiting {
		return false
	}
	holders[1].withdraw()
	holders[2].withdraw()
	next.admitted()
	return true
}

// setLimit sets the operator's limit.
func (w *testEnv) setLimit(name string, limit int) {
	w.t.Helper()
	w.limited.Store(true)
	ctx, cancel := w.call()
	defer cancel()
	if err := w.stores[0].Capabilities().SetLimit(ctx, name, limit); err != nil {
		w.t.Fatalf("SetLimit(%q, %d): %v", name, limit, err)
	}
}

// wantLimit waits until the line has the limit: other clients may see it a little later.
func (w *testEnv) wantLimit(name string, limit int) {
	w.t.Helper()
	for end := time.Now().Add(w.h.Grace); ; time.Sleep(pollInterval) {
		got := w.line(name).Limit
		if got == limit {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("the line of %q has the limit %d, want %d", name, got, limit)
		}
	}
}

// lines returns the lines whose name begins with prefix.
func (w *testEnv) lines(prefix string) []store.Line {
	w.t.Helper()
	ctx, cancel := w.call()
	defer cancel()
	ls, err := store.CollectLines(w.stores[len(w.stores)-1].Lines(ctx, prefix))
	if err != nil {
		w.t.Fatalf("Lines(%q): %v", prefix, err)
	}
	return ls
}
