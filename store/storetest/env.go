package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// settleTime is how long the suite waits to see that something does not happen. On a fake clock it
// passes only when all goroutines are blocked.
const settleTime = 100 * time.Millisecond

// pollInterval is the interval between two reads where no notification exists.
const pollInterval = 20 * time.Millisecond

// clockRounding is the largest error of the times that a server keeps.
const clockRounding = 2 * time.Millisecond

// testEnv is the environment of one test: a store, or two clients of one, and lock names that no
// other test uses.
type testEnv struct {
	t      *testing.T
	h      Harness
	caps   store.Capabilities
	stores []store.Store
	prefix string
	brief  time.Duration // see retryLonger
	opened int
	named  int // number of names returned by newName

	limited atomic.Bool // a limit was set, so entries may have to wait for more others than before

	mu      sync.Mutex
	broken  []string  // violations reported by goroutines other than the test's
	clients []*client // not closed yet
}

func newTestEnv(t *testing.T, h Harness) *testEnv {
	st := h.Open(t)
	w := &testEnv{t: t, h: h, caps: st.Capabilities(), stores: []store.Store{st}, prefix: "storetest/" + rand.Text()[:10], brief: h.Brief}
	if h.Peer != nil {
		w.stores = append(w.stores, h.Peer(t, st))
	}
	t.Cleanup(func() { // runs before the cleanups of Open and Peer
		w.closeClients()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, b := range w.broken {
			t.Error(b)
		}
	})
	return w
}

// brokenf records that the store has broken a promise. It may be called by any goroutine during the
// test.
func (w *testEnv) brokenf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.broken) < 20 {
		w.broken = append(w.broken, fmt.Sprintf(format, args...))
	}
}

// name returns a lock name of this test.
func (w *testEnv) name(s string) string { return w.prefix + "/" + s }

// newName returns a lock name that the test has not used yet.
func (w *testEnv) newName() string {
	w.named++
	return w.name(fmt.Sprintf("lock%d", w.named))
}

// call returns the context of one call to the store, so that no call hangs the suite. Its timeout
// is far longer than a working store needs, even on a busy machine.
func (w *testEnv) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.t.Context(), w.h.TTL+w.h.Grace)
}

// line returns the line behind name.
func (w *testEnv) line(name string) store.Line {
	w.t.Helper()
	ctx, cancel := w.call()
	defer cancel()
	l, err := w.stores[len(w.stores)-1].Line(ctx, name)
	if err != nil {
		w.t.Fatalf("Line(%q): %v", name, err)
	}
	return l
}

// wantLine waits until the line behind name has exactly these entries, in this order. Clients other
// than the one that made a change may see it a little later, without a notification.
func (w *testEnv) wantLine(name string, entries ...*entry) store.Line {
	w.t.Helper()
	var want []string
	for _, p := range entries {
		want = append(want, p.client.ID())
	}
	for end := time.Now().Add(w.h.Grace); ; time.Sleep(pollInterval) {
		l := w.line(name)
		var got []string
		for _, e := range l.Entries {
			got = append(got, e.Session)
		}
		if slices.Equal(got, want) {
			return l
		}
		if time.Now().After(end) {
			w.t.Fatalf("the line of %q has the sessions %q, want %q", name, got, want)
		}
	}
}

// breakEntry breaks the entry with the given order.
func (w *testEnv) breakEntry(name string, order uint64) (store.Entry, error) {
	ctx, cancel := w.call()
	defer cancel()
	return w.stores[len(w.stores)-1].Break(ctx, name, order)
}

// client is one session and the owner of its entries.
type client struct {
	store.Session
	w     *testEnv
	store store.Store
	owner store.Owner

	mu       sync.Mutex
	sent     time.Time // send time of the last request that confirmed the session
	late     bool      // a confirmation returned too late for the test to be conclusive
	closing  bool
	lost     int // number of calls of Lost
	stopKeep func()
}

// open opens a session that is not confirmed automatically. On a busy machine a store may give up
// before the context of the call ends, so there are three attempts.
func (w *testEnv) open() *client {
	w.t.Helper()
	for attempt := 1; ; attempt++ {
		c, err := w.openOnce()
		if err == nil {
			return c
		}
		if attempt == 3 {
			w.t.Fatal(err)
		}
		w.t.Logf("%v; opening another", err)
	}
}

func (w *testEnv) openOnce() (*client, error) {
	ctx, cancel := w.call()
	defer cancel()
	return w.tryOpen(ctx, w.nextOwner(), w.h.TTL)
}

// retryLonger calls attempt with the duration Brief. attempt returns false if it took so long that
// it is inconclusive, as happens on a busy machine. It is then called again with twice the
// duration, up to TTL. In one test the duration never becomes shorter again.
func (w *testEnv) retryLonger(attempt func(brief time.Duration) bool) {
	w.t.Helper()
	for !attempt(w.brief) {
		if w.brief >= w.h.TTL {
			w.t.Fatalf("the machine is too busy: it cannot complete the start of this test within %v", w.brief)
		}
		w.brief = min(2*w.brief, w.h.TTL)
	}
}

// expiring opens a session that is left to expire, and calls prepare with it and an unused lock
// name while the session is alive. If preparing took so long that the session may have expired,
// expiring tries again with a new session and a longer TTL: see retryLonger. prepare returns the
// errors that an expired session may cause. Failures in other sessions are unrelated and may end
// the test at once.
func (w *testEnv) expiring(prepare func(c *client, name string) error) *client {
	w.t.Helper()
	var c *client
	w.retryLonger(func(brief time.Duration) bool {
		ctx, cancel := w.call()
		defer cancel()
		var err error
		if c, err = w.tryOpen(ctx, w.nextOwner(), brief); err != nil {
			w.t.Fatal(err)
		}
		err = prepare(c, w.newName())
		if since := time.Since(c.lastSent()); since >= c.guaranteed() || c.wasLate() {
			w.t.Logf("session %s was confirmed %v ago and may have expired: trying again with a TTL longer than %v (%v)",
				c.ID(), since, c.Terms().TTL, err)
			if err := c.tryClose(); err != nil { // allowed if the session has just expired: the server may be too late to say so
				w.t.Logf("Close of session %s: %v", c.ID(), err)
			}
			return false
		}
		if err != nil {
			w.t.Fatal(err)
		}
		return true
	})
	return c
}

// expiringHold returns a session that holds a lock and is left to expire, its hold, and the next
// waiter. The steps run before, while the session is alive: see expiring.
func (w *testEnv) expiringHold(steps ...func(c *client, held, next *entry) error) (c *client, held, next *entry) {
	w.t.Helper()
	c = w.expiring(func(c *client, name string) (err error) {
		if held, err = c.tryHold(name, line.Exclusive); err != nil {
			return err
		}
		next = w.openKept().enqueue(name, line.Exclusive)
		for _, step := range steps {
			if err := step(c, held, next); err != nil {
				return err
			}
		}
		return nil
	})
	return c, held, next
}

// confirmed is a step for expiringHold that confirms the session.
func confirmed(c *client, _, _ *entry) error { return c.confirmNow() }

// waitExpired opens a brief session and waits until it has expired. Anything that had at most as
// long to live when waitExpired was called has expired then too, and so have all earlier brief
// sessions that are not confirmed.
func (w *testEnv) waitExpired() {
	w.t.Helper()
	c, _, next := w.expiringHold()
	next.admittedWithin(c.Terms().TTL + 2*w.h.Grace)
	time.Sleep(settleTime) // the store may process simultaneous expirations together
}

// openKept opens a session and confirms it until the test ends.
func (w *testEnv) openKept() *client {
	w.t.Helper()
	c := w.open()
	c.keep()
	return c
}

// openWith opens a session of the given owner.
func (w *testEnv) openWith(ctx context.Context, owner store.Owner) *client {
	w.t.Helper()
	c, err := w.tryOpen(ctx, owner, w.h.TTL)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *testEnv) nextOwner() store.Owner {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened++
	return store.Owner{Host: "host.example", PID: w.opened, User: "storetest", Command: fmt.Sprintf("session %d", w.opened)}
}

// tryOpen opens a session, alternating between the test's clients. It is closed when the test ends,
// if the test does not close it.
func (w *testEnv) tryOpen(ctx context.Context, owner store.Owner, ttl time.Duration) (*client, error) {
	st := w.stores[owner.PID%len(w.stores)]
	c := &client{w: w, store: st, owner: owner, sent: time.Now(), stopKeep: func() {}}
	se, err := st.Open(ctx, store.SessionOptions{TTL: ttl, Lost: c.onLost})
	if err != nil {
		return nil, fmt.Errorf("opening a session: %w", err)
	}
	c.Session = se
	w.mu.Lock()
	w.clients = append(w.clients, c)
	w.mu.Unlock()
	return c, nil
}

// keep confirms the session until stopKeep is called or the session is lost. It confirms far more
// often than the TTL requires, because in some stores a session learns the fate of its entries only
// from confirmations.
func (c *client) keep() {
	within := c.Terms().TTL / 4
	every := min(within, c.w.h.Brief/2)
	// The test's context ends before the cleanups that close the sessions.
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	c.stopKeep = func() { cancel(); <-done }
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := c.confirm(ctx, within); errors.Is(err, store.ErrSessionLost) {
				c.reportLoss(err)
				return
			}
		}
	}()
}

// confirm confirms the session once.
func (c *client) confirm(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	sent := time.Now()
	err := c.Confirm(ctx)
	if err == nil {
		c.mu.Lock()
		// The entries may have ended before the request arrived even if the session had not.
		c.late = c.late || time.Since(c.sent) >= c.guaranteed()
		c.sent = sent
		c.mu.Unlock()
	}
	return err
}

// confirmNow confirms the session, with the timeout of any call. On a busy machine the connection
// may end, so there are three attempts if the test runs in real time.
func (c *client) confirmNow() error {
	for attempt := 1; ; attempt++ {
		err := c.confirm(c.w.t.Context(), c.w.h.TTL+c.w.h.Grace)
		if err == nil || errors.Is(err, store.ErrSessionLost) || c.w.h.Run != nil || attempt == 3 {
			return err
		}
	}
}

// wasLate reports whether a confirmation was answered only after the time that the previous one
// guaranteed was over.
func (c *client) wasLate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}

// lastSent returns when the last request that confirmed the session was sent.
func (c *client) lastSent() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// guaranteed returns the minimum time that the session lives after a confirmation was sent.
func (c *client) guaranteed() time.Duration { return c.Terms().TTL - c.Terms().Slack }

// reportLoss reports the loss of a session that keep confirms.
func (c *client) reportLoss(err error) {
	since := time.Since(c.lastSent())
	if since < c.guaranteed() {
		c.w.brokenf("session %s was lost %v after a confirmation was sent, want at least %v: %v",
			c.ID(), since, c.guaranteed(), err)
	} else {
		c.w.brokenf("session %s was lost: the suite confirmed it only after %v: "+
			"the machine is too busy for a TTL of %v: %v", c.ID(), since, c.Terms().TTL, err)
	}
}

// onLost is the session's Lost function.
func (c *client) onLost(err error) {
	c.mu.Lock()
	c.lost++
	lost, closing := c.lost, c.closing
	c.mu.Unlock()
	if lost > 1 {
		c.w.brokenf("Lost was called %d times for one session, want at most once", lost)
	}
	if closing {
		c.w.brokenf("Lost was called after Close: %v", err)
	}
	if !errors.Is(err, store.ErrSessionLost) {
		c.w.brokenf("Lost was called with an error that does not match ErrSessionLost: %v", err)
	}
}

// close closes the session and fails the test if that fails.
func (c *client) close() {
	c.w.t.Helper()
	if err := c.tryClose(); err != nil {
		c.w.t.Errorf("Close of session %s: %v", c.ID(), err)
	}
}

func (c *client) tryClose() error {
	c.stopKeep()
	ctx, cancel := context.WithTimeout(context.Background(), c.w.h.TTL+c.w.h.Grace)
	defer cancel()
	err := c.Close(ctx)
	// Set only now: Lost may be called during Close.
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.w.forget(c)
	return err
}

// closeClients closes the sessions that the test has not closed, the last first.
func (w *testEnv) closeClients() {
	w.t.Helper()
	w.mu.Lock()
	clients := slices.Clone(w.clients)
	w.mu.Unlock()
	for _, c := range slices.Backward(clients) {
		c.close()
	}
}

// forget removes a closed session, so that its memory is freed: package testing keeps the functions
// of cleanups, and all that they refer to, until the parent test has ended. A closed session of
// ZooKeeper has 1.5 MB.
func (w *testEnv) forget(c *client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clients = slices.DeleteFunc(w.clients, func(other *client) bool { return other == c })
}

// enqueue adds an entry to the line.
func (c *client) enqueue(name string, mode line.Mode) *entry {
	c.w.t.Helper()
	p, err := c.tryEnqueue(name, mode, false)
	if err != nil {
		c.w.t.Fatal(err)
	}
	return p
}

// hold adds an entry to the line and waits until it is admitted.
func (c *client) hold(name string, mode line.Mode) *entry {
	c.w.t.Helper()
	p := c.enqueue(name, mode)
	p.admitted()
	return p
}

// tryHold is hold for a session that may have expired.
func (c *client) tryHold(name string, mode line.Mode) (*entry, error) {
	p, err := c.tryEnqueue(name, mode, false)
	if err == nil {
		_, _, err = p.await(c.w.h.Grace, "admitted", isAdmitted)
	}
	return p, err
}

// try enqueues an entry with Request.Try.
func (c *client) try(name string, mode line.Mode) (*entry, error) {
	return c.tryEnqueue(name, mode, true)
}

func (c *client) tryEnqueue(name string, mode line.Mode, try bool) (*entry, error) {
	ctx, cancel := c.w.call()
	defer cancel()
	return c.enqueueWith(ctx, name, mode, try)
}

// enqueueWith returns the entry also if there is an error, so that its standings can be checked.
func (c *client) enqueueWith(ctx context.Context, name string, mode line.Mode, try bool) (*entry, error) {
	p := &entry{client: c, name: name, mode: mode, owner: c.owner, changed: make(chan struct{})}
	ticket, err := c.Enqueue(ctx, store.Request{Name: name, Mode: mode, Owner: c.owner, Try: try, Notify: p.onNotify})
	if err != nil {
		return p, fmt.Errorf("session %s, Enqueue for %q, %v: %w", c.ID(), name, mode, err)
	}
	p.ticket = ticket
	return p, nil
}

// stagger runs body repeatedly: once with a context that has ended, and with contexts that are canceled at
// times spread evenly over twice the duration of an uncanceled run.
func (w *testEnv) stagger(rounds int, body func(ctx context.Context)) {
	ended, end := context.WithCancel(w.t.Context())
	end()
	body(ended)
	start := time.Now()
	body(w.t.Context())
	span := 2 * time.Since(start)
	for range 2 { // the first run may have been slow because the machine was busy
		start = time.Now()
		body(w.t.Context())
		span = min(span, 2*time.Since(start))
	}
	for i := range rounds {
		ctx, cancel := context.WithCancel(w.t.Context())
		done := make(chan struct{})
		var canceler sync.WaitGroup
		canceler.Go(func() {
			select {
			case <-time.After(span * time.Duration(i) / time.Duration(rounds)):
			case <-done:
				return
			}
			// On a fake clock span is zero, so the cancellation is delayed by yielding instead.
			for range i {
				runtime.Gosched()
			}
			cancel()
		})
		body(ctx)
		close(done)
		canceler.Wait()
		cancel()
	}
}

// standings formats the last standings of a log. A broken store may deliver thousands.
func standings(log []store.Standing) string {
	var b strings.Builder
	const limit = 12
	if len(log) > limit {
		fmt.Fprintf(&b, "(%d earlier) ", len(log)-limit)
		log = log[len(log)-limit:]
	}
	for i, st := range log {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(st.State.String())
		switch st.State {
		case store.Waiting:
			fmt.Fprintf(&b, " behind %d", st.Ahead)
		case store.Admitted:
			fmt.Fprintf(&b, " with order %d", st.Order)
		case store.Gone:
			fmt.Fprintf(&b, " (%v)", st.Cause)
		}
	}
	return "[" + b.String() + "]"
}
