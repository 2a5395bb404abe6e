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
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// settle is how long the suite waits to see that something does not happen. On a fake clock it means: until
// nothing moves any more.
const settle = 100 * time.Millisecond

// look is how often the suite looks again where nothing tells it.
const look = 20 * time.Millisecond

// tick is by how much a server may round the times it keeps.
const tick = 2 * time.Millisecond

// world is what one test lives in: a store, or two clients of one, and names that nobody else uses.
type world struct {
	t      *testing.T
	h      Harness
	caps   store.Capabilities
	stores []store.Store
	prefix string
	opened int
	named  int // how many names newName has given

	mu     sync.Mutex
	broken []string // promises seen broken by goroutines other than the test's
}

func newWorld(t *testing.T, h Harness) *world {
	st := h.Open(t)
	w := &world{t: t, h: h, caps: st.Capabilities(), stores: []store.Store{st}, prefix: "storetest/" + rand.Text()[:10]}
	if h.Peer != nil {
		w.stores = append(w.stores, h.Peer(t, st))
	}
	t.Cleanup(func() { // the last cleanup but those of Open and Peer: all sessions are closed
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, b := range w.broken {
			t.Error(b)
		}
	})
	return w
}

// brokenf records that the store has broken a promise. It may be called by any goroutine, during the test.
func (w *world) brokenf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.broken) < 20 {
		w.broken = append(w.broken, fmt.Sprintf(format, args...))
	}
}

// name returns a lock name of this test.
func (w *world) name(s string) string { return w.prefix + "/" + s }

// newName returns one that the test has not used yet.
func (w *world) newName() string {
	w.named++
	return w.name(fmt.Sprintf("lock%d", w.named))
}

// call returns the context of one call to the store, so that no call hangs the suite. It ends long after a store that works
// has answered, however busy the machine is.
func (w *world) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.t.Context(), w.h.TTL+w.h.Grace)
}

// line returns the line behind name.
func (w *world) line(name string) store.Line {
	w.t.Helper()
	ctx, cancel := w.call()
	defer cancel()
	l, err := w.stores[len(w.stores)-1].Line(ctx, name)
	if err != nil {
		w.t.Fatalf("Line(%q): %v", name, err)
	}
	return l
}

// lineOf waits until exactly these places stand in the line behind name, in this order. Others may see a change
// a little later than the one who made it, and nothing tells them.
func (w *world) lineOf(name string, places ...*place) store.Line {
	w.t.Helper()
	var want []string
	for _, p := range places {
		want = append(want, p.client.ID())
	}
	for end := time.Now().Add(w.h.Grace); ; time.Sleep(look) {
		l := w.line(name)
		var got []string
		for _, e := range l.Entries {
			got = append(got, e.Session)
		}
		if slices.Equal(got, want) {
			return l
		}
		if time.Now().After(end) {
			w.t.Fatalf("in the line of %q stand the sessions %q, want %q", name, got, want)
		}
	}
}

// breakEntry takes somebody's entry out.
func (w *world) breakEntry(name string, order uint64) (store.Entry, error) {
	ctx, cancel := w.call()
	defer cancel()
	return w.stores[len(w.stores)-1].Break(ctx, name, order)
}

// client is one session, and who asks for entries with it.
type client struct {
	store.Session
	w     *world
	store store.Store
	owner store.Owner

	mu       sync.Mutex
	sent     time.Time // before the last request was sent that was confirmed
	late     bool      // a confirmation was answered too late to show anything
	closing  bool
	lost     int // how often Lost was called
	stopKeep func()
}

// open opens a session that nobody confirms.
func (w *world) open() *client {
	w.t.Helper()
	ctx, cancel := w.call()
	defer cancel()
	return w.openWith(ctx, w.nextOwner())
}

// inTime runs attempt with a brief time. It returns false when so much time has passed that it could show nothing, as
// happens on a busy machine, and is run again then with a time twice as long: nothing has been seen of the store that
// could be right or wrong.
func (w *world) inTime(attempt func(brief time.Duration) bool) {
	w.t.Helper()
	for brief := w.h.Brief; !attempt(brief); brief = min(2*brief, w.h.TTL) {
		if brief >= w.h.TTL {
			w.t.Fatalf("the machine is too busy: it cannot do within %v what this test begins with", brief)
		}
	}
}

// expiring opens a session that nobody confirms afterwards, and has prepare do with it what has to be done while it
// lives, under a name that is new each time. Prepare may be called again: see inTime. It returns the errors that a session
// may cause that is over too soon. What it does with other sessions has nothing to do with this, and may fail at once.
func (w *world) expiring(prepare func(c *client, name string) error) *client {
	w.t.Helper()
	var c *client
	w.inTime(func(brief time.Duration) bool {
		ctx, cancel := w.call()
		defer cancel()
		var err error
		if c, err = w.tryOpen(ctx, w.nextOwner(), brief); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(c.leave)
		err = prepare(c, w.newName())
		if since := time.Since(c.lastSent()); since >= c.guaranteed() || c.wasLate() {
			w.t.Logf("session %s was confirmed %v ago, and can be over: once more with a longer TTL than %v (%v)",
				c.ID(), since, c.Terms().TTL, err)
			c.leave()
			return false
		}
		if err != nil {
			w.t.Fatal(err)
		}
		return true
	})
	return c
}

// doomed returns a session that holds a lock and is left to expire, its hold, and one who waits behind it. Each of the
// steps is something done before with the session, see expiring.
func (w *world) doomed(steps ...func(c *client, held, next *place) error) (c *client, held, next *place) {
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

// confirmed is a step of doomed.
func confirmed(c *client, _, _ *place) error { return c.confirmNow() }

// wantOver waits until everything has ended that is to end by itself and was to live as long as brief sessions do, counted
// from before the call: until a session has that is opened now.
func (w *world) wantOver() {
	w.t.Helper()
	c, _, next := w.doomed()
	next.admittedWithin(c.Terms().TTL + 2*w.h.Grace)
	time.Sleep(settle) // the store may carry out together what comes at the same time
}

// openKept opens a session and confirms it until the test is over.
func (w *world) openKept() *client {
	w.t.Helper()
	c := w.open()
	c.keep()
	return c
}

// openWith opens a session that is closed when the test is over.
func (w *world) openWith(ctx context.Context, owner store.Owner) *client {
	w.t.Helper()
	c, err := w.tryOpen(ctx, owner, w.h.TTL)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.leave)
	return c
}

func (w *world) nextOwner() store.Owner {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened++
	return store.Owner{Host: "host.example", PID: w.opened, User: "storetest", Command: fmt.Sprintf("session %d", w.opened)}
}

// tryOpen opens a session, with each of the test's clients in turn.
func (w *world) tryOpen(ctx context.Context, owner store.Owner, ttl time.Duration) (*client, error) {
	st := w.stores[owner.PID%len(w.stores)]
	c := &client{w: w, store: st, owner: owner, sent: time.Now(), stopKeep: func() {}}
	se, err := st.Open(ctx, store.SessionOptions{TTL: ttl, Lost: c.hearLoss})
	if err != nil {
		return nil, fmt.Errorf("opening a session: %w", err)
	}
	c.Session = se
	return c, nil
}

// keep confirms the session until stopKeep is called or the session is lost: far more often than its TTL needs, because on
// some stores that is when a session learns what has become of its entries.
func (c *client) keep() {
	within := c.Terms().TTL / 4
	every := min(within, c.w.h.Brief/2)
	// Not the test's own context: that ends before the cleanups, which close the sessions first.
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
		// Its entries may have ended before the request arrived, though the session had not yet.
		c.late = c.late || time.Since(c.sent) >= c.guaranteed()
		c.sent = sent
		c.mu.Unlock()
	}
	return err
}

// confirmNow confirms the session once, with the time that any call has.
func (c *client) confirmNow() error { return c.confirm(c.w.t.Context(), c.w.h.TTL+c.w.h.Grace) }

// wasLate reports whether a confirmation was answered only after what the one before had guaranteed.
func (c *client) wasLate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}

// lastSent is when the last request was sent that confirmed the session.
func (c *client) lastSent() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// guaranteed is how long after a confirmation was sent the session cannot have ended.
func (c *client) guaranteed() time.Duration { return c.Terms().TTL - c.Terms().Slack }

// reportLoss is called when a session was lost that is being kept.
func (c *client) reportLoss(err error) {
	since := time.Since(c.lastSent())
	if since < c.guaranteed() {
		c.w.brokenf("session %s was lost only %v after a confirmation was sent; it should live for %v: %v",
			c.ID(), since, c.guaranteed(), err)
	} else {
		c.w.brokenf("session %s was lost: the suite came to confirm it only after %v, too late: "+
			"the machine is too busy for a TTL of %v: %v", c.ID(), since, c.Terms().TTL, err)
	}
}

// hearLoss is the Lost function of the session.
func (c *client) hearLoss(err error) {
	c.mu.Lock()
	c.lost++
	lost, closing := c.lost, c.closing
	c.mu.Unlock()
	if lost > 1 {
		c.w.brokenf("Lost was called %d times for one session", lost)
	}
	if closing {
		c.w.brokenf("Lost was called after Close: %v", err)
	}
	if !errors.Is(err, store.ErrSessionLost) {
		c.w.brokenf("Lost was called with an error that does not match ErrSessionLost: %v", err)
	}
}

// close closes the session and checks that it could be.
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
	// Not before: a loss during Close is no mistake.
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	return err
}

// leave is close at the end of a test, when a second Close is not what is tested.
func (c *client) leave() {
	c.mu.Lock()
	closed := c.closing
	c.mu.Unlock()
	if !closed {
		c.close()
	}
}

// enqueue puts an entry in.
func (c *client) enqueue(name string, mode line.Mode) *place {
	c.w.t.Helper()
	p, err := c.tryEnqueue(name, mode, false)
	if err != nil {
		c.w.t.Fatal(err)
	}
	return p
}

// hold puts an entry in and waits until it is admitted.
func (c *client) hold(name string, mode line.Mode) *place {
	c.w.t.Helper()
	p := c.enqueue(name, mode)
	p.admitted()
	return p
}

// tryHold is hold for a session that may be over.
func (c *client) tryHold(name string, mode line.Mode) (*place, error) {
	p, err := c.tryEnqueue(name, mode, false)
	if err == nil {
		_, _, err = p.await(c.w.h.Grace, "admitted", isAdmitted)
	}
	return p, err
}

// try tries for an entry.
func (c *client) try(name string, mode line.Mode) (*place, error) {
	return c.tryEnqueue(name, mode, true)
}

func (c *client) tryEnqueue(name string, mode line.Mode, try bool) (*place, error) {
	ctx, cancel := c.w.call()
	defer cancel()
	return c.enqueueWith(ctx, name, mode, try)
}

// enqueueWith returns the place even if there is an error, to show what it heard.
func (c *client) enqueueWith(ctx context.Context, name string, mode line.Mode, try bool) (*place, error) {
	p := &place{client: c, name: name, mode: mode, owner: c.owner, changed: make(chan struct{})}
	ticket, err := c.Enqueue(ctx, store.Request{Name: name, Mode: mode, Owner: c.owner, Try: try, Notify: p.hear})
	if err != nil {
		return p, fmt.Errorf("session %s, Enqueue for %q, %v: %w", c.ID(), name, mode, err)
	}
	p.ticket = ticket
	return p, nil
}

// stagger runs body with contexts that end at moments spread over twice the time that body takes with one that
// does not end.
func (w *world) stagger(rounds int, body func(ctx context.Context)) {
	start := time.Now()
	body(w.t.Context())
	span := 2 * time.Since(start)
	for range 2 { // the machine may have been busy with something else
		start = time.Now()
		body(w.t.Context())
		span = min(span, 2*time.Since(start))
	}
	for i := range rounds {
		ctx, cancel := context.WithCancel(w.t.Context())
		done := make(chan struct{})
		var canceller sync.WaitGroup
		canceller.Go(func() {
			select {
			case <-time.After(span * time.Duration(i) / time.Duration(rounds)):
			case <-done:
				return
			}
			// A fake clock stands still while body runs, and span is zero: goroutines have to take turns instead.
			for range i {
				runtime.Gosched()
			}
			cancel()
		})
		body(ctx)
		close(done)
		canceller.Wait()
		cancel()
	}
}

// standings describes what was told, the last of it if it is long: stores that say too much may go on for thousands.
func standings(log []store.Standing) string {
	var b strings.Builder
	const most = 12
	if len(log) > most {
		fmt.Fprintf(&b, "(%d before) ", len(log)-most)
		log = log[len(log)-most:]
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
