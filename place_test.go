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

// join calls Join and waits until all goroutines are blocked.
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
		t.Fatalf("the place is not ready, Ahead is %d", p.Ahead())
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
		t.Fatalf("ready: got %v, want %v", ready, !ready)
	}
	if got := p.Ahead(); got != want {
		t.Errorf("Ahead: got %d, want %d", got, want)
	}
}

// expectLeft checks that a place has ended without a hold, with an error that matches all of want.
func expectLeft(t *testing.T, p *stile.Place, want ...error) {
	t.Helper()
	if !closed(p.Ready()) {
		t.Fatal("the place is not ready, want it ended")
	}
	h, err := p.Wait(t.Context())
	if h != nil {
		t.Errorf("Wait: got the hold %v, want none", h)
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
			t.Errorf("second Wait: got %v, %v, want the same hold", again, err)
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
		<-released // the goroutine uses the test's context
		if d := time.Since(before); d != time.Hour {
			t.Errorf("Wait took %v, want 1h", d)
		}
	})
}

// The end of Wait's context ends the call but not the place.
func TestPlace_Wait_givenUp(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		p := join(t.Context(), t, bob, "a")
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := p.Wait(short); got != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: got %v, %v, want the error of its context", got, err)
		}
		expectAhead(t, p, 1)
		release(t, h)
		h = expectReady(t, p)
		if got, err := p.Wait(short); got != h || err != nil {
			t.Errorf("Wait of a ready place: got %v, %v, want the hold", got, err)
		}
		release(t, h)
	})
}

// Places are admitted in the order of their Join calls, even if one goroutine makes them without a
// pause.
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

// If the place is ready but its hold was not taken, Leave releases the hold.
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
			t.Errorf("hold of a ready place after Leave: got valid %v, error %v, want false, nil", h.Valid(), err)
		}
		if err := p.Leave(t.Context()); err != nil {
			t.Errorf("second Leave: %v", err)
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

// After a Leave during the admission the lock is not held, whichever came first.
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
		expectHeld(t, h) // it was ready before the context ended
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
			t.Errorf("Leave of a place that failed: %v", err)
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
		synctest.Wait() // Close waits for the call, and the attempt's end is reported after that
		if !closed(p.Ready()) {
			t.Error("the place is not ready after Close")
		}
		expectLeft(t, p, stile.ErrClosed)
		expectLost(t, held, stile.LostClosed)
	})
}
