package stile_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// The invariants must hold whenever a failure happens. So each script is repeated with the failure
// at the first message, at the second, and so on, both while the request and while the reply is in
// flight.
//
// In each script three callers of one process and one of another lock the same name one after
// another, hold it for a second and release it. In some, the second and the last caller yield it and
// hold it for another second before that. In others, all but the second caller lock two names at once.
// Promise: P5
// Bug: CURATOR-653, CURATOR-462
func TestQueue_failureAtEachStep(t *testing.T) {
	const numbered = "numbered slots"
	const together, oneByOne = "two names in one step", "two names one by one"
	exclusive := [4]line.Mode{line.Exclusive, line.Exclusive, line.Exclusive, line.Exclusive}
	scripts := map[string][4]line.Mode{
		"exclusive":        exclusive,
		"readers":          {line.Shared, line.Shared, line.Shared, line.Exclusive},
		"a writer between": {line.Shared, line.Exclusive, line.Shared, line.Shared},
		"a writer first":   {line.Exclusive, line.Shared, line.Shared, line.Shared},
		"slots":            {line.Slot(2), line.Slot(2), line.Slot(2), line.Slot(2)},
		numbered:           {line.Slot(2), line.Slot(2), line.Slot(2), line.Slot(2)},

		"a yield":            exclusive,
		"a yield of readers": {line.Shared, line.Shared, line.Exclusive, line.Exclusive},
		"a yield of slots":   {line.Slot(2), line.Slot(2), line.Slot(2), line.Slot(2)},

		together: exclusive,
		oneByOne: exclusive,
	}
	yields := map[string]bool{"a yield": true, "a yield of readers": true, "a yield of slots": true}
	for what, modes := range scripts {
		for _, failure := range failures {
			t.Run(what+"/"+failure.name, func(t *testing.T) {
				steps := 0
				for _, reply := range []bool{false, true} {
					for step := 1; ; step++ {
						p := &trial{
							modes: modes, yields: yields[what], numbered: what == numbered, sets: what == together || what == oneByOne,
							oneByOne: what == oneByOne, failure: failure, step: step, reply: reply,
						}
						synctest.Test(t, p.run)
						if t.Failed() {
							t.Fatalf("checks failed for the failure at step %d of %d, reply in flight: %v", step, p.steps, reply)
						}
						if p.steps < step {
							break
						}
						steps++
					}
				}
				if steps < 10 {
					t.Errorf("got %d runs, want at least 10", steps)
				}
			})
		}
	}
}

// A failure is injected once into a trial.
type failure struct {
	name string
	// inject makes it happen.
	inject func(p *trial)
	// mayFail reports whether a caller may get the error because of it.
	mayFail func(p *trial, caller int, err error) bool
}

var errPanic = errors.New("panic in a hook")

var failures = []failure{
	{name: "nothing", inject: func(*trial) {}, mayFail: never},
	{
		name: "the first caller gives up", inject: func(p *trial) { p.cancel[0]() },
		mayFail: func(_ *trial, caller int, err error) bool { return caller == 0 && errors.Is(err, context.Canceled) },
	},
	{
		name: "the second caller gives up", inject: func(p *trial) { p.cancel[1]() },
		mayFail: func(_ *trial, caller int, err error) bool { return caller == 1 && errors.Is(err, context.Canceled) },
	},
	{
		name: "all callers give up", inject: func(p *trial) { p.cancel[0](); p.cancel[1](); p.cancel[2]() },
		mayFail: func(_ *trial, caller int, err error) bool { return caller < 3 && errors.Is(err, context.Canceled) },
	},
	{
		name: "the whole line is deleted",
		inject: func(p *trial) {
			l, err := p.store.Line(context.Background(), "a")
			if err != nil {
				p.t.Error(err)
			}
			for _, e := range l.Entries {
				_, _ = p.store.Break(context.Background(), "a", e.Order)
			}
		},
		mayFail: func(_ *trial, _ int, err error) bool { return lostFor(err, stile.LostEvicted) },
	},
	{
		name: "the first process is cut off for two TTLs", inject: func(p *trial) { p.cutUntil(time.Now().Add(2 * ttl)) },
		mayFail: func(_ *trial, caller int, err error) bool {
			return caller < 3 && lostFor(err, stile.LostDeadline, stile.LostExpired)
		},
	},
	{
		name: "the client is closed", inject: func(p *trial) { _ = p.client.Close(context.Background()) },
		mayFail: func(_ *trial, caller int, err error) bool {
			return caller < 3 && (errors.Is(err, stile.ErrClosed) || lostFor(err, stile.LostClosed))
		},
	},
	{
		name: "AttemptStart panics", inject: func(p *trial) { p.panicIn("AttemptStart") }, mayFail: panicked,
	},
	{
		name: "AttemptEnd panics", inject: func(p *trial) { p.panicIn("AttemptEnd") }, mayFail: panicked,
	},
	{
		name: "HoldStart panics", inject: func(p *trial) { p.panicIn("HoldStart") }, mayFail: panicked,
	},
	{
		name: "HoldEnd panics", inject: func(p *trial) { p.panicIn("HoldEnd") }, mayFail: panicked,
	},
}

func never(*trial, int, error) bool { return false }

func panicked(_ *trial, caller int, err error) bool { return caller < 3 && errors.Is(err, errPanic) }

func lostFor(err error, reasons ...stile.Reason) bool {
	lost, ok := errors.AsType[*stile.LostError](err)
	return ok && slices.Contains(reasons, lost.Reason)
}

// A trial is one run of a script with one failure.
type trial struct {
	modes    [4]line.Mode
	yields   bool // the second and the last caller yield
	numbered bool // the holds have slot numbers
	sets     bool // all but the second caller lock another name too
	oneByOne bool // on a store that has no step for that
	failure  failure
	step     int  // the message at which the failure happens
	reply    bool // it happens while the reply is in flight

	t      *testing.T
	store  *memstore.Store
	client *stile.Client // of the first three callers
	cancel [3]func()

	mu        sync.Mutex
	steps     int // number of messages so far
	finished  bool
	cut       time.Time
	panicNext string // the hook whose next call panics
	hookPairs *hookPairs
	holds     []*stile.Hold
	reached   chan struct{}
}

func (p *trial) run(t *testing.T) {
	p.t, p.store, p.reached = t, memstore.New(), make(chan struct{})
	p.hookPairs = newHookPairs(t)
	opts := &stile.Options{TTL: ttl, Hooks: stile.JoinHooks(p.hookPairs.hooks(), stile.Hooks{
		AttemptStart: starting(func(stile.AttemptStartEvent) { p.hook("AttemptStart") }),
		AttemptEnd:   ending(func(stile.AttemptEndEvent) { p.hook("AttemptEnd") }),
		HoldStart:    starting(func(stile.HoldStartEvent) { p.hook("HoldStart") }),
		HoldEnd: ending(func(e stile.HoldEndEvent) {
			if e.Reason != stile.EndLost { // a panic there would end the process
				p.hook("HoldEnd")
			}
		}),
	})}
	p.client = p.openClient(opts)
	other := p.openClient(&stile.Options{TTL: ttl})
	lock(t, other, "b") // so that it has session m1 and the other three callers have m2
	p.store.SetFaults(p.fault)
	ctxs := [4]context.Context{3: t.Context()}
	for i := range p.cancel {
		ctx, cancel := context.WithCancel(t.Context())
		ctxs[i], p.cancel[i] = ctx, cancel //nolint:fatcontext // they are independent
	}

	go func() {
		<-p.reached
		time.Sleep(time.Millisecond) // the message is in flight
		p.failure.inject(p)
	}()
	var all sync.WaitGroup
	for i, mode := range p.modes {
		c := p.client
		if i == 3 {
			c = other
		}
		l := c.Locker("a", mode)
		if p.numbered {
			l = l.Numbered()
		}
		all.Go(func() {
			if p.sets && i != 1 {
				if err := p.doWithTwo(ctxs[i], c, i); err != nil && !p.failure.mayFail(p, i, err) {
					t.Errorf("caller %d: %v", i, err)
				}
				return
			}
			if err := p.doWithLock(ctxs[i], l, p.yields && i%2 == 1); err != nil && !p.failure.mayFail(p, i, err) {
				t.Errorf("caller %d: %v", i, err)
			}
		})
		time.Sleep(100 * time.Microsecond)
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	if !closesWithin(done, 10*time.Minute) {
		t.Fatal("the callers have not returned within 10m")
	}
	p.checkEnd(other)
}

// checkEnd checks the state after all callers have returned, and closes the clients.
func (p *trial) checkEnd(other *stile.Client) {
	p.mu.Lock()
	if p.steps < p.step {
		close(p.reached)
	}
	p.finished = true
	p.mu.Unlock()
	time.Sleep(3 * ttl) // until background work has ended
	p.store.SetFaults(nil)
	if n := p.client.Queues(); n != 0 {
		p.t.Errorf("got %d queues at the end, want 0", n)
	}
	for _, name := range []string{"a", "c"} {
		if l, err := p.store.Line(p.t.Context(), name); err != nil || len(l.Entries) != 0 {
			p.t.Errorf("line at the end: got %+v, %v, want no entries", l, err)
		}
	}
	for _, c := range []*stile.Client{p.client, other} {
		if err := c.Close(context.Background()); err != nil {
			p.t.Error(err)
		}
	}
	if ids := p.store.Sessions(); len(ids) != 0 {
		p.t.Errorf("sessions at the end: got %v, want none", ids)
	}
	p.hookPairs.checkPaired()
	if n := p.hookPairs.attempts(); n < 3 {
		p.t.Errorf("got %d attempts, want 3 at least", n)
	}
}

func (p *trial) openClient(opts *stile.Options) *stile.Client {
	var st store.Store = p.store
	if p.oneByOne {
		st = oneByOneStore{p.store}
	}
	c, err := stile.New(st, opts)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// doWithLock takes the lock, holds it for a second, yields it if wanted, and holds it for another second,
// and releases it. It returns the panic of a hook
// as an error.
func (p *trial) doWithLock(caller context.Context, l stile.Locker, yields bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = r.(error)
		}
	}()
	return l.Do(caller, func(_ context.Context, h *stile.Hold) error {
		p.holdForASecond(h)
		if !yields {
			return nil
		}
		again, err := h.Yield(caller)
		if err == nil {
			p.holdForASecond(again)
		}
		return err
	})
}

// doWithTwo is doWithLock for the names a and c, in an order that depends on the caller.
func (p *trial) doWithTwo(ctx context.Context, c *stile.Client, caller int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = r.(error)
		}
	}()
	names := []string{"a", "c"}
	if caller > 0 {
		slices.Reverse(names)
	}
	m, err := c.LockAll(ctx, names...)
	if err != nil {
		return err
	}
	p.holdForASecond(m.HoldOf("a"))
	return m.Release(ctx)
}

func (p *trial) holdForASecond(h *stile.Hold) {
	p.recordHold(h)
	select {
	case <-time.After(time.Second):
	case <-h.Context().Done():
	}
	p.recordHold(nil)
}

// recordHold adds a hold, unless it is nil, and checks that no conflicting holds are valid at the
// same time.
func (p *trial) recordHold(h *stile.Hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h != nil {
		p.holds = append(p.holds, h)
	}
	var valid []line.Mode
	numbers := make(map[int]bool)
	for _, h := range p.holds {
		if h.Valid() {
			if n := h.Slot(); p.numbered && (n < 0 || n > 1 || numbers[n]) {
				p.t.Errorf("a valid hold has the slot number %d, and others have %v", n, numbers)
			}
			numbers[h.Slot()] = true
			if !line.Admits(h.Mode(), valid) {
				p.t.Errorf("a hold in mode %v is valid together with holds in %v", h.Mode(), valid)
			}
			valid = append(valid, h.Mode())
		}
	}
}

// fault counts the messages, and starts the failure at one of them, which it delays so that it is
// in flight.
func (p *trial) fault(c memstore.Call) memstore.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.cut) && c.Op != memstore.Notify && c.Session == "m2" {
		return memstore.Fault{Drop: true}
	}
	if p.finished || c.Op == memstore.Read || c.Op == memstore.Break {
		return memstore.Fault{}
	}
	p.steps++
	if p.steps != p.step {
		return memstore.Fault{}
	}
	close(p.reached)
	if p.reply && c.Op != memstore.Notify {
		return memstore.Fault{ReplyDelay: 2 * time.Millisecond}
	}
	return memstore.Fault{Delay: 2 * time.Millisecond}
}

// cutUntil drops the requests of the first process until the given time.
func (p *trial) cutUntil(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = until
}

// panicIn makes the next call of a hook panic.
func (p *trial) panicIn(hook string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.panicNext = hook
}

// hook is called by each hook.
func (p *trial) hook(name string) {
	p.mu.Lock()
	panics := p.panicNext == name
	if panics {
		p.panicNext = ""
	}
	p.mu.Unlock()
	if panics {
		panic(errPanic)
	}
}
