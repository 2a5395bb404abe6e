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
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// The TTL of the scenarios and the durations that package keeper derives from it.
const (
	ttl           = 10 * time.Second
	validFor      = 9 * time.Second // from sending the last confirmed renewal to the loss of the holds
	overdueAfter  = validFor / 2    // from sending it to the session being at risk
	renewInterval = validFor / 3    // the interval between renewals
)

// A testEnv is the environment of one scenario: a store, and clients that are named after their
// owners.
type testEnv struct {
	t     *testing.T
	store *memstore.Store

	oneByOne bool // the clients cannot join several lines in one step
	deaf     bool // the clients get no reports of waiters
	naming   bool // the store reports only the names of lines that may have changed
}

// namingStore is a store without the capability Follow.
type namingStore struct{ store.Store }

func (s namingStore) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.Follow = nil
	return caps
}

// oneByOneStore is a store without the capability EnqueueAll.
type oneByOneStore struct{ *memstore.Store }

func (s oneByOneStore) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.EnqueueAll = nil
	return caps
}

// scenario calls run with a fake clock. Afterwards it ends all faults and closes all clients, and
// checks that the store is empty one TTL later.
func scenario(t *testing.T, run func(t *testing.T, w *testEnv)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &testEnv{t: t, store: memstore.New()}
		t.Cleanup(func() { // runs after the clients were closed
			time.Sleep(ttl)
			if lines, err := store.CollectLines(w.store.Lines(context.Background(), "")); err != nil || len(lines) > 0 {
				t.Errorf("one TTL after the end the store has the lines %+v, %v, want none", lines, err)
			}
			if ids := w.store.Sessions(); len(ids) > 0 {
				t.Errorf("one TTL after the end the store has the sessions %v, want none", ids)
			}
		})
		run(t, w)
	})
}

// client returns a client that stands for one process: it has its own session. Its owner's command
// is name.
func (w *testEnv) client(name string, change ...func(*stile.Options)) *stile.Client {
	w.t.Helper()
	opts := &stile.Options{TTL: ttl, Owner: stile.Owner{Command: name}}
	for _, f := range change {
		f(opts)
	}
	var st store.Store = w.store
	if w.oneByOne {
		st = oneByOneStore{w.store}
	}
	if w.deaf {
		st = deafStore{w.store}
	}
	if w.naming {
		st = namingStore{st}
	}
	c, err := stile.New(st, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		w.store.SetFaults(nil)
		if err := c.Close(context.Background()); err != nil {
			w.t.Errorf("Close of the client %s: %v", name, err)
		}
	})
	return c
}

// strict makes a client use an entry for each hold.
func strict(o *stile.Options) { o.Turns = 1 }

// line returns the owners' commands of the entries in the store's line of name, in order. Of the
// faults, only those of reads affect it.
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

// expectLine waits until all goroutines are blocked and checks the owners' commands in the store's
// line of name.
func (w *testEnv) expectLine(name string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.line(name); !slices.Equal(got, want) {
		w.t.Fatalf("the line of %q: got %q, want %q", name, got, want)
	}
}

// session returns the ID of the session that has an entry of the client called owner.
func (w *testEnv) session(owner string) string {
	w.t.Helper()
	lines, err := store.CollectLines(w.store.Lines(context.Background(), ""))
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
	w.t.Fatalf("%s has no entry in any line", owner)
	return ""
}

// order returns the order of the entry of the client called owner in the line of name.
func (w *testEnv) order(name, owner string) uint64 {
	w.t.Helper()
	l, err := w.store.Line(context.Background(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range l.Entries {
		if e.Owner.Command == owner {
			return e.Order
		}
	}
	w.t.Fatalf("%s has no entry in the line of %q", owner, name)
	return 0
}

// faults sets the fault for the given operations; if sessions are given, only for theirs.
func (w *testEnv) faults(f memstore.Fault, ops []memstore.Op, sessions ...string) {
	w.store.SetFaults(func(c memstore.Call) memstore.Fault {
		if slices.Contains(ops, c.Op) && (len(sessions) == 0 || slices.Contains(sessions, c.Session)) {
			return f
		}
		return memstore.Fault{}
	})
}

// cut drops all requests of the session from now on.
func (w *testEnv) cut(session string) { w.faults(memstore.Fault{Drop: true}, allOps, session) }

// delayNotifications delays the notifications of the entries of the given names by an hour.
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
	memstore.SetOwner, memstore.ClaimNumber, memstore.SetRecord, memstore.Requeue, memstore.Close, memstore.Break)

// lock acquires a lock that is free.
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

// A waiter is a call of Lock, or another method that waits, in progress.
type waiter struct {
	t    *testing.T
	done chan struct{}
	hold *stile.Hold
	err  error
}

// wait calls Lock in a goroutine and returns when all goroutines are blocked.
func wait(ctx context.Context, t *testing.T, c *stile.Client, name string) *waiter {
	t.Helper()
	return waitWith(t, func() (*stile.Hold, error) { return c.Mutex(name).Lock(ctx) })
}

// waitWith is wait with another method than Lock.
func waitWith(t *testing.T, method func() (*stile.Hold, error)) *waiter {
	t.Helper()
	w := &waiter{t: t, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.hold, w.err = method()
	}()
	synctest.Wait()
	return w
}

// expectWaiting checks that the call has not returned.
func (w *waiter) expectWaiting() {
	w.t.Helper()
	synctest.Wait()
	select {
	case <-w.done:
		w.t.Fatalf("Lock returned %v, %v, want it to wait", w.hold, w.err)
	default:
	}
}

// expectHold checks that the call returns a hold within a TTL.
func (w *waiter) expectHold() *stile.Hold {
	w.t.Helper()
	return w.expectHoldWithin(ttl)
}

// expectHoldNow checks that the call returns a hold before any time passes.
func (w *waiter) expectHoldNow() *stile.Hold {
	w.t.Helper()
	synctest.Wait()
	return w.expectHoldWithin(0)
}

func (w *waiter) expectHoldWithin(d time.Duration) *stile.Hold {
	w.t.Helper()
	w.expectReturn(d)
	if w.err != nil {
		w.t.Fatalf("Lock: got error %v, want a hold", w.err)
	}
	return w.hold
}

// expectFailure checks that the call returns an error that matches all of want, before any time
// passes.
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
		w.t.Fatalf("Lock has not returned within %v", within)
	}
}

func closesWithin(ch <-chan struct{}, d time.Duration) bool {
	select {
	case <-ch:
		return true
	case <-time.After(d):
		return closed(ch) // includes a close at exactly that time
	}
}

// closed reports whether ch is closed once all goroutines are blocked.
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
			t.Errorf("got error %q, want a match of %q", fmt.Sprint(err), w)
		}
	}
}

// expectLost checks that a hold is lost for the given reason, and that all its methods agree.
func expectLost(t *testing.T, h *stile.Hold, reason stile.Reason) *stile.LostError {
	t.Helper()
	if !closed(h.Lost()) {
		t.Fatalf("the hold of %q is not lost (valid: %v), want it lost for the reason %v", h.Name(), h.Valid(), reason)
	}
	lost := asLost(t, h.Err())
	if lost.Reason != reason || lost.Name != h.Name() || lost.Token != h.Token() {
		t.Errorf("the hold of %q with token %d: got the loss %+v, want the reason %q", h.Name(), h.Token(), lost, reason)
	}
	if cause := context.Cause(h.Context()); cause != error(lost) {
		t.Errorf("cause of the hold's context: got %v, want %v", cause, lost)
	}
	if h.Valid() {
		t.Error("Valid of a lost hold: got true")
	}
	return lost
}

func asLost(t *testing.T, err error) *stile.LostError {
	t.Helper()
	var lost *stile.LostError
	if !errors.As(err, &lost) || !errors.Is(err, stile.ErrLost) {
		t.Fatalf("got error %v, want a LostError that matches ErrLost", err)
	}
	return lost
}

// expectHeld checks that a hold is valid, and that all its methods agree.
func expectHeld(t *testing.T, h *stile.Hold) {
	t.Helper()
	if !h.Valid() || h.Context().Err() != nil || h.Err() != nil || closed(h.Lost()) {
		t.Fatalf("the hold of %q has ended: valid %v, context %v, error %v",
			h.Name(), h.Valid(), context.Cause(h.Context()), h.Err())
	}
}

// A record collects values in order. It is safe for concurrent use.
type record[T any] struct {
	mu     sync.Mutex
	values []T
}

func (r *record[T]) add(x T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values = append(r.values, x)
}

// all waits until all goroutines are blocked and returns the values so far.
func (r *record[T]) all() []T {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.values)
}

// evict breaks the entry of the client called owner in a line, as an operator does.
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
	w.t.Fatalf("%s has no entry in the line of %q", owner, name)
}
