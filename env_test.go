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
	"github.com/stilelock/stile/store/memstore"
)

// The durations of a session with the TTL that the scenarios use, as package keeper derives them.
const (
	ttl           = 10 * time.Second
	validFor      = 9 * time.Second // what is held counts as lost that long after the last confirmed renewal was sent
	overdueAfter  = validFor / 2    // and as at risk that long after it
	renewInterval = validFor / 3    // renewals are due that often
)

// world is what one scenario plays in: a store, and clients that are named after their owners.
type testEnv struct {
	t     *testing.T
	store *memstore.Store
}

// scenario plays on a fake clock. When it is over, all faults end and all clients are closed; one TTL later nothing may
// be left in the store, whatever went wrong before.
func scenario(t *testing.T, play func(t *testing.T, w *testEnv)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &testEnv{t, memstore.New()}
		t.Cleanup(func() { // after the clients were closed
			time.Sleep(ttl)
			if lines, err := w.store.Lines(context.Background(), ""); err != nil || len(lines) > 0 {
				t.Errorf("when everything is over, lines are left: %+v, %v", lines, err)
			}
			if ids := w.store.Sessions(); len(ids) > 0 {
				t.Errorf("when everything is over, sessions are left: %v", ids)
			}
		})
		play(t, w)
	})
}

// client returns a client as another process would have it: with a session of its own. Its owner's command is name.
func (w *testEnv) client(name string, change ...func(*stile.Options)) *stile.Client {
	w.t.Helper()
	opts := &stile.Options{TTL: ttl, Owner: stile.Owner{Command: name}}
	for _, f := range change {
		f(opts)
	}
	c, err := stile.New(w.store, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		w.store.SetFaults(nil)
		if err := c.Close(context.Background()); err != nil {
			w.t.Errorf("closing the client of %s: %v", name, err)
		}
	})
	return c
}

// line returns the commands of those who stand in the line behind name in the store, in order. It goes past all faults
// but those on reading.
func (w *testEnv) line(name string) []string {
	w.t.Helper()
	l, err := w.store.Line(context.Background(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range l.Entries {
		names = append(names, e.Owner.Command)
	}
	return names
}

// expectLine checks, when nothing moves any more, who stands in the line behind name in the store.
func (w *testEnv) expectLine(name string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.line(name); !slices.Equal(got, want) {
		w.t.Fatalf("in the line of %q stand %q, want %q", name, got, want)
	}
}

// session returns the id of the session with which the client called owner stands in some line.
func (w *testEnv) session(owner string) string {
	w.t.Helper()
	lines, err := w.store.Lines(context.Background(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range lines {
		for _, e := range l.Entries {
			if e.Owner.Command == owner {
				return e.Session
			}
		}
	}
	w.t.Fatalf("%s stands in no line", owner)
	return ""
}

// faults puts the fault on the given operations. Where sessions are given, on theirs only.
func (w *testEnv) faults(f memstore.Fault, ops []memstore.Op, sessions ...string) {
	w.store.SetFaults(func(c memstore.Call) memstore.Fault {
		if slices.Contains(ops, c.Op) && (len(sessions) == 0 || slices.Contains(sessions, c.Session)) {
			return f
		}
		return memstore.Fault{}
	})
}

// cut loses all requests of the session, from now on.
func (w *testEnv) cut(session string) { w.faults(memstore.Fault{Drop: true}, allOps, session) }

// deafen keeps what happens in the lines behind the names from those who stand there, for an hour.
func (w *testEnv) delayNotifications(names ...string) {
	w.store.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Op == memstore.Notify && slices.Contains(names, c.Name) {
			return memstore.Fault{Delay: time.Hour}
		}
		return memstore.Fault{}
	})
}

// heal ends all faults.
func (w *testEnv) heal() { w.store.SetFaults(nil) }

func on(ops ...memstore.Op) []memstore.Op { return ops }

var allOps = on(memstore.Open, memstore.Confirm, memstore.Enqueue, memstore.Withdraw,
	memstore.SetOwner, memstore.Close, memstore.Break)

// lock takes a lock that is free.
func lock(t *testing.T, c *stile.Client, name string) *stile.Hold {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	h, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !h.Valid() {
		t.Fatalf("Lock returned a hold of %q that is not valid: %v", name, h.Err())
	}
	return h
}

func release(t *testing.T, h *stile.Hold) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// waiter is a call of Lock under way.
type waiter struct {
	t    *testing.T
	done chan struct{}
	hold *stile.Hold
	err  error
}

// wait calls Lock and lets it wait. When it returns, the call has got as far as it gets by itself.
func wait(ctx context.Context, t *testing.T, c *stile.Client, name string) *waiter {
	t.Helper()
	w := &waiter{t: t, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.hold, w.err = c.Mutex(name).Lock(ctx)
	}()
	synctest.Wait()
	return w
}

// waits checks that the call has not returned.
func (w *waiter) expectWaiting() {
	w.t.Helper()
	synctest.Wait()
	select {
	case <-w.done:
		w.t.Fatalf("Lock has returned (%v, %v), want it to wait", w.hold, w.err)
	default:
	}
}

// gets checks that the call has returned a hold, or does before the next TTL has passed.
func (w *waiter) expectHold() *stile.Hold {
	w.t.Helper()
	return w.expectHoldWithin(ttl)
}

// getsNow checks that the call has returned a hold, without any time passing.
func (w *waiter) expectHoldNow() *stile.Hold {
	w.t.Helper()
	synctest.Wait()
	return w.expectHoldWithin(0)
}

func (w *waiter) expectHoldWithin(d time.Duration) *stile.Hold {
	w.t.Helper()
	w.expectReturn(d)
	if w.err != nil {
		w.t.Fatalf("Lock: %v, want a hold", w.err)
	}
	return w.hold
}

// fails checks that the call has returned an error that matches all of want, without any time passing.
func (w *waiter) expectFailure(want ...error) {
	w.t.Helper()
	synctest.Wait()
	w.expectReturn(0)
	if w.err == nil {
		w.t.Fatalf("Lock succeeded, want an error matching %v", want)
	}
	expectError(w.t, w.err, want...)
}

func (w *waiter) expectReturn(within time.Duration) {
	w.t.Helper()
	select {
	case <-w.done:
		return
	default:
	}
	if !closesWithin(w.done, within) {
		w.t.Fatalf("Lock waits for longer than %v", within)
	}
}

func closesWithin(ch <-chan struct{}, d time.Duration) bool {
	select {
	case <-ch:
		return true
	case <-time.After(d):
		return closed(ch) // what happens at that very moment counts
	}
}

// closed reports whether ch is closed when nothing moves any more.
func closed(ch <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func expectError(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("the error is %q, want one that matches %q", fmt.Sprint(err), w)
		}
	}
}

// expectLost checks that a hold is lost, for the reason given, and that everything about it says so.
func expectLost(t *testing.T, h *stile.Hold, reason stile.Reason) *stile.LostError {
	t.Helper()
	if !closed(h.Lost()) {
		t.Fatalf("the hold of %q is not lost (valid: %v), want it lost: %v", h.Name(), h.Valid(), reason)
	}
	lost := asLost(t, h.Err())
	if lost.Reason != reason || lost.Name != h.Name() || lost.Token != h.Token() {
		t.Errorf("the hold of %q with token %d was lost with %+v, want the reason %q", h.Name(), h.Token(), lost, reason)
	}
	if cause := context.Cause(h.Context()); cause != error(lost) {
		t.Errorf("the cause of the context's end is %v, want %v", cause, lost)
	}
	if h.Valid() {
		t.Error("a lost hold is valid")
	}
	return lost
}

func asLost(t *testing.T, err error) *stile.LostError {
	t.Helper()
	var lost *stile.LostError
	if !errors.As(err, &lost) || !errors.Is(err, stile.ErrLost) {
		t.Fatalf("the error is %v, want a LostError, matching ErrLost", err)
	}
	return lost
}

// expectHeld checks that a hold is as good as it was on the first day.
func expectHeld(t *testing.T, h *stile.Hold) {
	t.Helper()
	if !h.Valid() || h.Context().Err() != nil || h.Err() != nil || closed(h.Lost()) {
		t.Fatalf("the hold of %q is not held any more: valid %v, context %v, error %v",
			h.Name(), h.Valid(), context.Cause(h.Context()), h.Err())
	}
}

// record keeps what it is told, in order.
type record[T any] struct {
	mu     sync.Mutex
	values []T
}

func (r *record[T]) add(x T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values = append(r.values, x)
}

// all returns what was told so far, when nothing moves any more.
func (r *record[T]) all() []T {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.values)
}

// takeOut takes the entry of the client called owner out of a line, as an operator does.
func (w *testEnv) evict(name, owner string) {
	w.t.Helper()
	l, err := w.store.Line(context.Background(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range l.Entries {
		if e.Owner.Command == owner {
			if _, err := w.store.Break(context.Background(), name, e.Order); err != nil {
				w.t.Fatal(err)
			}
			return
		}
	}
	w.t.Fatalf("%s does not stand in the line of %q", owner, name)
}
