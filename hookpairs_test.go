package stile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store/memstore"
)

// hookPairs checks that a client calls hooks in pairs: for each start there is one end, which gets
// the start's context, and each hold belongs to an attempt that acquired the lock.
type hookPairs struct {
	t *testing.T

	mu    sync.Mutex
	spans []*span
}

// A span is an attempt or a hold.
type span struct {
	attempt *stile.AttemptStartEvent // nil if it is a hold
	hold    *stile.HoldStartEvent    // nil if it is an attempt
	parent  *span                    // the hold's attempt
	ends    int
	outcome stile.Outcome   // of an attempt
	err     error           // of the end event
	reason  stile.EndReason // of a hold
}

type spanKey struct{ hold bool }

func newHookPairs(t *testing.T) *hookPairs { return &hookPairs{t: t} }

func (l *hookPairs) hooks() stile.Hooks {
	return stile.Hooks{
		AttemptStart: func(ctx context.Context, e stile.AttemptStartEvent) context.Context {
			if ctx.Value(spanKey{}) != nil {
				l.t.Error("AttemptStart got the context of another attempt")
			}
			return context.WithValue(ctx, spanKey{}, l.open(&span{attempt: &e}))
		},
		AttemptEnd: func(ctx context.Context, e stile.AttemptEndEvent) {
			l.mu.Lock()
			defer l.mu.Unlock()
			s, _ := ctx.Value(spanKey{}).(*span)
			if s == nil || *s.attempt != e.AttemptStartEvent {
				l.t.Errorf("AttemptEnd without AttemptStart: %+v", e)
				return
			}
			if (e.Err == nil) != (e.Outcome == stile.Acquired) || e.Waited < 0 || e.Outcome.String() == "unknown" {
				l.t.Errorf("AttemptEnd: got the inconsistent event %+v", e)
			}
			s.ends++
			s.outcome, s.err = e.Outcome, e.Err
		},
		HoldStart: func(ctx context.Context, e stile.HoldStartEvent) context.Context {
			s := &span{hold: &e}
			s.parent, _ = ctx.Value(spanKey{}).(*span)
			if s.parent == nil || s.parent.attempt.Name != e.Name || s.parent.attempt.Mode != e.Mode {
				l.t.Errorf("HoldStart without a matching attempt: %+v", e)
			}
			if ctx.Done() != nil {
				l.t.Error("the context of HoldStart can end")
			}
			return context.WithValue(ctx, spanKey{hold: true}, l.open(s))
		},
		HoldEnd: func(ctx context.Context, e stile.HoldEndEvent) {
			l.mu.Lock()
			defer l.mu.Unlock()
			s, _ := ctx.Value(spanKey{hold: true}).(*span)
			if s == nil || *s.hold != e.HoldStartEvent {
				l.t.Errorf("HoldEnd without HoldStart: %+v", e)
				return
			}
			if e.Held < 0 || e.Reason.String() == "unknown" || e.Reason == stile.EndLost && e.Err == nil {
				l.t.Errorf("HoldEnd: got the inconsistent event %+v", e)
			}
			s.ends++
			s.reason, s.err = e.Reason, e.Err
		},
	}
}

func (l *hookPairs) open(s *span) *span {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spans = append(l.spans, s)
	return s
}

// checkPaired checks, after all calls have ended, that each start had one end.
func (l *hookPairs) checkPaired() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	holds := make(map[*span]int)
	for _, s := range l.spans {
		switch {
		case s.ends == 1:
		case s.attempt != nil:
			l.t.Errorf("the attempt %+v ended %d times, want once", *s.attempt, s.ends)
		default:
			l.t.Errorf("the hold %+v ended %d times, want once", *s.hold, s.ends)
		}
		if s.hold != nil {
			holds[s.parent]++
			if s.parent != nil && s.parent.outcome != stile.Acquired || holds[s.parent] > 1 {
				l.t.Errorf("the hold %+v is hold %d of an attempt with the outcome %v, want the only one of an acquisition", *s.hold, holds[s.parent], s.parent.outcome)
			}
		}
	}
}

func (l *hookPairs) attempts() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spans {
		if s.attempt != nil {
			n++
		}
	}
	return n
}

// last returns the attempt that started last and its last hold; nil if there is none.
func (l *hookPairs) last() (attempt, hold *span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spans {
		if s.attempt != nil {
			attempt, hold = s, nil
		} else {
			hold = s
		}
	}
	return attempt, hold
}

// Whichever methods take and release a lock, and whatever the outcome, the hooks report one
// attempt, and one hold if the lock was acquired.
func TestHooks_everyOutcome(t *testing.T) {
	refused := errors.New("refused")
	heldByBob := func(t *testing.T, w *testEnv) { lock(t, w.client("bob"), "a") }
	free := func(*testing.T, *testEnv) {}
	do := func(ctx context.Context, c *stile.Client, m line.Mode) error {
		return c.Locker("a", m).Do(ctx, func(context.Context, *stile.Hold) error { return nil })
	}
	acquire := func(ctx context.Context, c *stile.Client, m line.Mode) error {
		_, err := c.Locker("a", m).Lock(ctx)
		return err
	}
	withTimeout := func(f func(context.Context, *stile.Client, line.Mode) error) func(context.Context, *stile.Client, line.Mode) error {
		return func(ctx context.Context, c *stile.Client, m line.Mode) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return f(ctx, c, m)
		}
	}
	leave := func(ctx context.Context, c *stile.Client, m line.Mode) error {
		p, err := c.Locker("a", m).Join(ctx)
		if err != nil {
			return err
		}
		time.Sleep(time.Second)
		return p.Leave(ctx)
	}
	for what, x := range map[string]struct {
		before  func(*testing.T, *testEnv)
		act     func(context.Context, *stile.Client, line.Mode) error
		outcome stile.Outcome
		reason  stile.EndReason // zero without a hold
		err     error           // the attempt's error must match it
	}{
		"Do":                  {free, do, stile.Acquired, stile.EndReleased, nil},
		"Lock, then Close":    {free, acquire, stile.Acquired, stile.EndLost, nil},
		"Lock, timed out":     {heldByBob, withTimeout(acquire), stile.TimedOut, 0, context.DeadlineExceeded},
		"Do, timed out":       {heldByBob, withTimeout(do), stile.TimedOut, 0, context.DeadlineExceeded},
		"Join and Leave":      {heldByBob, leave, stile.Canceled, 0, stile.ErrLeft},
		"Join, Leave a hold":  {free, leave, stile.Acquired, stile.EndReleased, nil},
		"Join and Close":      {heldByBob, joinAndClose, stile.Failed, 0, stile.ErrClosed},
		"Lock and Close":      {heldByBob, lockAndClose, stile.Failed, 0, stile.ErrClosed},
		"Lock after Close":    {free, closeAndLock, stile.Failed, 0, stile.ErrClosed},
		"TryLock, held":       {heldByBob, tryOnce, stile.Refused, 0, stile.ErrHeld},
		"TryLock, then Close": {free, tryOnce, stile.Acquired, stile.EndLost, nil},
		"Do panics":           {free, doPanics, stile.Acquired, stile.EndReleased, nil},
		"a bad name":          {free, badName, stile.Failed, 0, stile.ErrBadName},
		"Lock, canceled":      {heldByBob, canceled, stile.Canceled, 0, context.Canceled},
		"Lock, with a cause":  {heldByBob, canceledWithCause, stile.Canceled, 0, context.Canceled},
		"the store refuses": {func(_ *testing.T, w *testEnv) {
			w.faults(memstore.Fault{Err: refused}, on(memstore.Enqueue))
		}, acquire, stile.Failed, 0, refused},
		"the store times out": {func(_ *testing.T, w *testEnv) {
			w.faults(memstore.Fault{Err: context.DeadlineExceeded}, on(memstore.Enqueue))
		}, acquire, stile.Failed, 0, context.DeadlineExceeded},
	} {
		for _, mode := range []line.Mode{line.Exclusive, line.Shared} {
			scenario(t, func(t *testing.T, w *testEnv) {
				x.before(t, w)
				l := newHookPairs(t)
				c := w.client("ann", func(o *stile.Options) { o.Hooks = l.hooks() })
				_ = x.act(t.Context(), c, mode)
				w.heal()
				if err := c.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // Close does not wait for the goroutine that reports the end of a Join
				l.checkPaired()
				attempt, hold := l.last()
				if n := l.attempts(); n != 1 {
					t.Fatalf("%s in mode %v: got %d attempts, want 1", what, mode, n)
				}
				if attempt.outcome != x.outcome || !errors.Is(attempt.err, x.err) {
					t.Errorf("%s in mode %v: got %v, error %v, want %v, error %v", what, mode, attempt.outcome, attempt.err, x.outcome, x.err)
				}
				if (hold != nil) != (x.reason != 0) || hold != nil && hold.reason != x.reason {
					t.Errorf("%s in mode %v: got the hold %+v, want the end %v", what, mode, hold, x.reason)
				}
			})
		}
	}
}

func tryOnce(ctx context.Context, c *stile.Client, m line.Mode) error {
	_, err := c.Locker("a", m).TryLock(ctx)
	return err
}

func badName(ctx context.Context, c *stile.Client, m line.Mode) error {
	_, err := c.Locker("/", m).Join(ctx)
	return err
}

func closeAndLock(ctx context.Context, c *stile.Client, m line.Mode) error {
	return errors.Join(c.Close(ctx), func() error { _, err := c.Locker("a", m).Lock(ctx); return err }())
}

func lockAndClose(ctx context.Context, c *stile.Client, m line.Mode) error {
	closing := time.AfterFunc(time.Second, func() { _ = c.Close(context.Background()) })
	defer closing.Stop()
	_, err := c.Locker("a", m).Lock(ctx)
	return err
}

func joinAndClose(ctx context.Context, c *stile.Client, m line.Mode) error {
	_, err := c.Locker("a", m).Join(ctx)
	time.Sleep(time.Second)
	return err
}

func canceled(ctx context.Context, c *stile.Client, m line.Mode) error {
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(time.Second, cancel)
	_, err := c.Locker("a", m).Lock(ctx)
	return err
}

func canceledWithCause(ctx context.Context, c *stile.Client, m line.Mode) error {
	ctx, cancel := context.WithCancelCause(ctx)
	time.AfterFunc(time.Second, func() { cancel(errors.New("no more")) })
	_, err := c.Locker("a", m).Lock(ctx)
	return err
}

func doPanics(ctx context.Context, c *stile.Client, m line.Mode) error {
	defer func() { _ = recover() }()
	return c.Locker("a", m).Do(ctx, func(context.Context, *stile.Hold) error { panic("no") })
}

// The attempt continues with the context that AttemptStart returns, and the hold's context has the
// values of the one that HoldStart returns. With joined hooks, each end gets the context of its own
// start, even if all of them use the same key.
func TestHooks_contexts(t *testing.T) {
	type key string
	scenario(t, func(t *testing.T, w *testEnv) {
		var ends record[string]
		tracer := func(id string) stile.Hooks {
			return stile.Hooks{
				AttemptStart: func(ctx context.Context, _ stile.AttemptStartEvent) context.Context {
					return context.WithValue(ctx, key("attempt"), id)
				},
				AttemptEnd: func(ctx context.Context, _ stile.AttemptEndEvent) {
					ends.add(fmt.Sprint(id, " attempt ", ctx.Value(key("attempt"))))
				},
				HoldStart: func(ctx context.Context, _ stile.HoldStartEvent) context.Context {
					if ctx.Value(key("caller")) != "me" {
						t.Error("the context of HoldStart lacks the values of the caller's context")
					}
					return context.WithValue(ctx, key("hold"), id)
				},
				HoldEnd: func(ctx context.Context, _ stile.HoldEndEvent) {
					ends.add(fmt.Sprint(id, " hold ", ctx.Value(key("hold"))))
				},
				Contended: func(ctx context.Context, _ stile.ContentionEvent) {
					ends.add(fmt.Sprint(id, " contended ", ctx.Value(key("hold"))))
				},
			}
		}
		none := stile.Hooks{
			AttemptStart: func(context.Context, stile.AttemptStartEvent) context.Context { return nil },
			HoldStart:    func(context.Context, stile.HoldStartEvent) context.Context { return nil },
		}
		c := w.client("ann", func(o *stile.Options) {
			o.Hooks = stile.JoinHooks(tracer("x"), none, tracer("y"), tracer("z"))
		})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key("caller"), "me"))
		h, err := c.Mutex("a").Lock(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		expectHeld(t, h)
		if v := h.Context().Value(key("hold")); v != "z" {
			t.Errorf("value of the hold's context: got %v, want z, that of the last start", v)
		}
		other := wait(t.Context(), t, w.client("bob"), "a")
		again := wait(t.Context(), t, w.client("eve"), "a")
		synctest.Wait()
		release(t, h)
		want := []string{
			"z attempt z", "y attempt y", "x attempt x",
			"x contended x", "y contended y", "z contended z",
			"z hold z", "y hold y", "x hold x",
		}
		if got := ends.all(); !slices.Equal(got, want) {
			t.Errorf("hook calls: got\n%q, want\n%q", got, want)
		}
		release(t, other.expectHoldNow())
		release(t, again.expectHoldNow())
	})
}

// Contended is called once for all waiters, in this process or in another.
func TestHooks_contended(t *testing.T) {
	for what, waiter := range map[string]func(w *testEnv, ann *stile.Client) *stile.Client{
		"same process":    func(_ *testEnv, ann *stile.Client) *stile.Client { return ann },
		"another process": func(w *testEnv, _ *stile.Client) *stile.Client { return w.client("bob") },
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			var events record[stile.ContentionEvent]
			ann := w.client("ann", func(o *stile.Options) { o.Hooks.Contended = ending(events.add) })
			h := lock(t, ann, "a")
			time.Sleep(time.Minute)
			if n := len(events.all()); n > 0 {
				t.Errorf("%s: got %d calls of Contended without a waiter, want 0", what, n)
			}
			c := waiter(w, ann)
			first, second := wait(t.Context(), t, c, "a"), wait(t.Context(), t, c, "a")
			if got := events.all(); len(got) != 1 || got[0] != (stile.ContentionEvent{Name: "a", Token: h.Token()}) {
				t.Errorf("%s: Contended: got %+v, want one call", what, got)
			}
			release(t, h)
			release(t, first.expectHoldNow())
			release(t, second.expectHoldNow())
		})
	}
}
