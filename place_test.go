package stile_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// join returns a place that has got as far as it gets by itself.
func join(ctx context.Context, t *testing.T, c *stile.Client, name string) *stile.Place {
	t.Helper()
	p := joinNoWait(ctx, t, c, name)
	synctest.Wait()
	return p
}

func joinNoWait(ctx context.Context, t *testing.T, c *stile.Client, name string) *stile.Place {
	t.Helper()
	p, err := c.Mutex(name).Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// expectReady returns the hold of a place that is ready.
func expectReady(t *testing.T, p *stile.Place) *stile.Hold {
	t.Helper()
	if !closed(p.Ready()) {
		t.Fatalf("the place is not ready; %d are ahead", p.Ahead())
	}
	h, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func expectAhead(t *testing.T, p *stile.Place, want int) {
	t.Helper()
	if ready := closed(p.Ready()); ready != (want == 0) {
		t.Fatalf("the place is ready: %v, want %v", ready, !ready)
	}
	if got := p.Ahead(); got != want {
		t.Errorf("%d are ahead, want %d", got, want)
	}
}

// expectLeft checks that a place that was left says so.
func expectLeft(t *testing.T, p *stile.Place, want ...error) {
	t.Helper()
	if !closed(p.Ready()) {
		t.Fatal("a place that was given up is not ready")
	}
	h, err := p.Wait(t.Context())
	if h != nil {
		t.Errorf("a place that was given up has the hold %v", h)
	}
	expectError(t, err, want...)
}

func TestJoin(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := expectReady(t, join(t.Context(), t, ann, "a"))
		expectHeld(t, h)
		p := join(t.Context(), t, bob, "a")
		expectAhead(t, p, 1)
		w.expectLine("a", "ann", "bob")
		release(t, h)
		h = expectReady(t, p)
		expectAhead(t, p, 0)
		again, err := p.Wait(t.Context())
		if again != h || err != nil {
			t.Errorf("Wait called again returned %v, %v, want the same hold", again, err)
		}
		release(t, h)
		w.expectLine("a")
	})
}

func TestPlace_Wait(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		p := join(t.Context(), t, bob, "a")
		released := make(chan struct{})
		time.AfterFunc(time.Hour, func() {
			defer close(released)
			release(t, h)
		})
		before := time.Now()
		if _, err := p.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-released // the test's context lasts until here
		if d := time.Since(before); d != time.Hour {
			t.Errorf("Wait waited for %v, want an hour", d)
		}
	})
}

// The end of the context is the end of one call, and the place does not notice.
func TestPlace_Wait_givenUp(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		p := join(t.Context(), t, bob, "a")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := p.Wait(short); got != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait returned %v, %v, want the end of its context", got, err)
		}
		expectAhead(t, p, 1)
		release(t, h)
		h = expectReady(t, p)
		if got, err := p.Wait(short); got != h || err != nil {
			t.Errorf("when the place is ready Wait returned %v, %v, want the hold", got, err)
		}
		release(t, h)
	})
}

// Whoever joined first is first: also among those that one goroutine has joined without a pause.
func TestPlace_orderOfJoining(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		for range 20 {
			h := lock(t, c, "a")
			var places []*stile.Place
			for range 5 {
				places = append(places, joinNoWait(t.Context(), t, c, "a"))
			}
			release(t, h)
			for i, p := range places {
				for j, later := range places[i+1:] {
					expectAhead(t, later, j+1)
				}
				release(t, expectReady(t, p))
			}
		}
	})
}

func TestPlace_aheadCountsDown(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h := lock(t, ann, "a")
		b := join(t.Context(), t, bob, "a")
		c1 := join(t.Context(), t, cid, "a")
		c2 := join(t.Context(), t, cid, "a")
		c3 := join(t.Context(), t, cid, "a")
		w.expectLine("a", "ann", "bob", "cid")
		expectAhead(t, b, 1)
		expectAhead(t, c1, 2)
		expectAhead(t, c2, 3)
		expectAhead(t, c3, 4)
		release(t, h)
		expectAhead(t, b, 0)
		expectAhead(t, c1, 1)
		expectAhead(t, c2, 2)
		expectAhead(t, c3, 3)
		if err := b.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectAhead(t, c1, 0)
		expectAhead(t, c2, 1)
		expectAhead(t, c3, 2)
	})
}

func TestPlace_leaveLineInStore(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h := lock(t, ann, "a")
		p := join(t.Context(), t, bob, "a")
		next := wait(t.Context(), t, cid, "a")
		w.expectLine("a", "ann", "bob", "cid")
		for range 2 {
			if err := p.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			expectLeft(t, p, stile.ErrLeft)
		}
		w.expectLine("a", "ann", "cid")
		release(t, h)
		next.expectHoldNow()
	})
}

func TestPlace_leaveLocalQueue(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h := lock(t, c, "a")
		p := join(t.Context(), t, c, "a")
		next := wait(t.Context(), t, c, "a")
		if err := p.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectLeft(t, p, stile.ErrLeft)
		release(t, h)
		next.expectHoldNow()
	})
}

// Nobody took the hold, and there is nobody else who could release it.
func TestPlace_leaveReleasesHold(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		p := join(t.Context(), t, ann, "a")
		next := wait(t.Context(), t, bob, "a")
		w.expectLine("a", "ann", "bob")
		if err := p.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		next.expectHoldNow()
		h, err := p.Wait(t.Context())
		if err != nil || h.Valid() {
			t.Errorf("the hold of a place left after it was ready: valid %v, error %v", h.Valid(), err)
		}
		if err := p.Leave(t.Context()); err != nil {
			t.Errorf("leaving again: %v", err)
		}
	})
}

func TestPlace_leaveAfterLoss(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		p := join(t.Context(), t, c, "a")
		h := expectReady(t, p)
		if _, err := c.Break(t.Context(), "a", h.Token()); err != nil {
			t.Fatal(err)
		}
		asLost(t, p.Leave(t.Context()))
	})
}

func TestPlace_leaveAtOnce(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		for range 100 {
			if err := joinNoWait(t.Context(), t, c, "a").Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.expectLine("a")
		}
	})
}

// Leaving as the turn comes: the lock is not held afterwards, whichever was first.
func TestPlace_leaveDuringAdmission(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		for range 300 {
			h := lock(t, ann, "a")
			p := join(t.Context(), t, bob, "a")
			next := wait(t.Context(), t, cid, "a")
			go func() {
				if err := p.Leave(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			release(t, h)
			release(t, next.expectHoldNow())
			w.expectLine("a")
		}
	})
}

func TestPlace_contextOfJoinEnds(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		ctx, end, cause := cancelable(t)
		inLine, inQueue := join(ctx, t, bob, "a"), join(ctx, t, ann, "a")
		w.expectLine("a", "ann", "bob")
		end()
		expectLeft(t, inLine, context.Canceled, cause)
		expectLeft(t, inQueue, context.Canceled, cause)
		w.expectLine("a", "ann")
		release(t, h)

		ctx, end, _ = cancelable(t)
		h = expectReady(t, join(ctx, t, bob, "a"))
		end()
		time.Sleep(time.Hour)
		expectHeld(t, h) // it was ready before
	})
}

func TestPlace_waitReturnsError(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		full := errors.New("database space exceeded")
		w.faults(memstore.Fault{Err: full}, on(memstore.Enqueue))
		p := join(t.Context(), t, c, "a")
		expectLeft(t, p, full)
		if err := p.Leave(t.Context()); err != nil {
			t.Errorf("leaving a place that failed: %v", err)
		}
	})
}

func TestPlace_clientCloses(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		lock(t, bob, "a")
		p := join(t.Context(), t, ann, "a")
		held := expectReady(t, join(t.Context(), t, ann, "b"))
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.Ready():
		default:
			t.Error("Close has returned and the place is not ready")
		}
		expectLeft(t, p, stile.ErrClosed)
		expectLost(t, held, stile.LostClosed)
	})
}
