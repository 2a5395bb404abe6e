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

// A ledger checks that the hooks of a client are called in pairs: each start that has returned has one end, which gets the
// context of its start, and each hold comes from an attempt that has acquired.
type hookPairs struct {
	t *testing.T

	mu    sync.Mutex
	spans []*span
}

// A span is one attempt, or one hold.
type span struct {
	attempt *stile.AttemptStartEvent // nil if it is a hold
	hold    *stile.HoldStartEvent    // nil if it is an attempt
	parent  *span                    // the hold's attempt
	ends    int
	outcome stile.Outcome   // of an attempt
	err     error           // what the end was called with
	reason  stile.EndReason // of a hold
}

type spanKey struct{ hold bool }

func newHookPairs(t *testing.T) *hookPairs { return &hookPairs{t: t} }

func (l *hookPairs) hooks() stile.Hooks {
	return stile.Hooks{
		AttemptStart: func(ctx context.Context, e stile.AttemptStartEvent) context.Context {
			if ctx.Value(spanKey{}) != nil {
				l.t.Error("an attempt starts with the context of another")
			}
			return context.WithValue(ctx, spanKey{}, l.open(&span{attempt: &e}))
		},
		AttemptEnd: func(ctx context.Context, e stile.AttemptEndEvent) {
			l.mu.Lock()
			defer l.mu.Unlock()
			s, _ := ctx.Value(spanKey{}).(*span)
			if s == nil || *s.attempt != e.AttemptStartEvent {
				l.t.Errorf("an attempt ended that has not started: %+v", e)
				return
			}
			if (e.Err == nil) != (e.Outcome == stile.Acquired) || e.Waited < 0 || e.Outcome.String() == "unknown" {
				l.t.Errorf("an attempt ended as %+v", e)
			}
			s.ends++
			s.outcome, s.err = e.Outcome, e.Err
		},
		HoldStart: func(ctx context.Context, e stile.HoldStartEvent) context.Context {
			s := &span{hold: &e}
			s.parent, _ = ctx.Value(spanKey{}).(*span)
			if s.parent == nil || s.parent.attempt.Name != e.Name || s.parent.attempt.Mode != e.Mode {
				l.t.Errorf("a hold started without an attempt: %+v", e)
			}
			if ctx.Done() != nil {
				l.t.Error("the context of a hold's start can end")
			}
			return context.WithValue(ctx, spanKey{hold: true}, l.open(s))
		},
		HoldEnd: func(ctx context.Context, e stile.HoldEndEvent) {
			l.mu.Lock()
			defer l.mu.Unlock()
			s, _ := ctx.Value(spanKey{hold: true}).(*span)
			if s == nil || *s.hold != e.HoldStartEvent {
				l.t.Errorf("a hold ended that has not started: %+v", e)
				return
			}
			if e.Held < 0 || e.Reason.String() == "unknown" || e.Reason == stile.EndLost && e.Err == nil {
				l.t.Errorf("a hold ended as %+v", e)
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

// settled checks, when all is over, that each start has had its end.
func (l *hookPairs) checkPaired() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	holds := make(map[*span]int)
	for _, s := range l.spans {
		switch {
		case s.ends == 1:
		case s.attempt != nil:
			l.t.Errorf("the attempt %+v has ended %d times", *s.attempt, s.ends)
		default:
			l.t.Errorf("the hold %+v has ended %d times", *s.hold, s.ends)
		}
		if s.hold != nil {
			holds[s.parent]++
			if s.parent != nil && s.parent.outcome != stile.Acquired || holds[s.parent] > 1 {
				l.t.Errorf("the hold %+v is number %d of an attempt that ended as %v", *s.hold, holds[s.parent], s.parent.outcome)
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

// last returns the last attempt and the last hold that have started; nil if there is none.
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

// However a lock is asked for and given back, and whatever the outcome, the hooks see one attempt, and one hold if there was
// one.
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
		reason  stile.EndReason // zero if there is no hold
		err     error           // what the attempt's error matches
	}{
		"Do":                 {free, do, stile.Acquired, stile.EndReleased, nil},
		"Lock, then Close":   {free, acquire, stile.Acquired, stile.EndLost, nil},
		"Lock, timed out":    {heldByBob, withTimeout(acquire), stile.TimedOut, 0, context.DeadlineExceeded},
		"Do, timed out":      {heldByBob, withTimeout(do), stile.TimedOut, 0, context.DeadlineExceeded},
		"Join and Leave":     {heldByBob, leave, stile.Canceled, 0, stile.ErrLeft},
		"Join, got, Leave":   {free, leave, stile.Acquired, stile.EndReleased, nil},
		"Join and Close":     {heldByBob, joinAndClose, stile.Failed, 0, stile.ErrClosed},
		"Lock and Close":     {heldByBob, lockAndClose, stile.Failed, 0, stile.ErrClosed},
		"Lock after Close":   {free, closeAndLock, stile.Failed, 0, stile.ErrClosed},
		"TryLock":            {heldByBob, tryOnce, stile.Refused, 0, stile.ErrHeld},
		"TryLock, got":       {free, tryOnce, stile.Acquired, stile.EndLost, nil},
		"Do panics":          {free, doPanics, stile.Acquired, stile.EndReleased, nil},
		"a bad name":         {free, badName, stile.Failed, 0, stile.ErrBadName},
		"Lock, canceled":     {heldByBob, canceled, stile.Canceled, 0, context.Canceled},
		"Lock, with a cause": {heldByBob, canceledWithCause, stile.Canceled, 0, context.Canceled},
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
				l.checkPaired()
				attempt, hold := l.last()
				if n := l.attempts(); n != 1 {
					t.Fatalf("%s in mode %v: %d attempts were seen, want one", what, mode, n)
				}
				if attempt.outcome != x.outcome || !errors.Is(attempt.err, x.err) {
					t.Errorf("%s in mode %v: it ended as %v: %v, want %v: %v", what, mode, attempt.outcome, attempt.err, x.outcome, x.err)
				}
				if (hold != nil) != (x.reason != 0) || hold != nil && hold.reason != x.reason {
					t.Errorf("%s in mode %v: the hold is %+v, want the end %v", what, mode, hold, x.reason)
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

// The contexts: the attempt goes on with what its start returns, and the hold's context has what the hold's start returns.
// With joined hooks each end gets what its own start returned, though all use one key.
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
						t.Error("the hold's start does not get the values of the caller's context")
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
			t.Errorf("the hold's context has the value %v, want that of the last start", v)
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
			t.Errorf("called were\n%q, want\n%q", got, want)
		}
		release(t, other.expectHoldNow())
		release(t, again.expectHoldNow())
	})
}

// Contended is called once, for those who wait here and elsewhere, and the store is asked for it only if there is the hook.
func TestHooks_contended(t *testing.T) {
	for what, waiter := range map[string]func(w *testEnv, ann *stile.Client) *stile.Client{
		"here":      func(_ *testEnv, ann *stile.Client) *stile.Client { return ann },
		"elsewhere": func(w *testEnv, _ *stile.Client) *stile.Client { return w.client("bob") },
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			var events record[stile.ContentionEvent]
			ann := w.client("ann", func(o *stile.Options) { o.Hooks.Contended = ending(events.add) })
			h := lock(t, ann, "a")
			time.Sleep(time.Minute)
			if n := len(events.all()); n > 0 {
				t.Errorf("%s: Contended was called %d times, and nobody waits", what, n)
			}
			c := waiter(w, ann)
			first, second := wait(t.Context(), t, c, "a"), wait(t.Context(), t, c, "a")
			if got := events.all(); len(got) != 1 || got[0] != (stile.ContentionEvent{Name: "a", Token: h.Token()}) {
				t.Errorf("%s: Contended was called with %+v, want once", what, got)
			}
			release(t, h)
			release(t, first.expectHoldNow())
			release(t, second.expectHoldNow())
		})
	}
}
