package lab_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

const (
	machineName    = "lock"
	machineClients = 3
	machineTTL     = 10 * time.Second
)

// A kind of lock as the machine uses it.
type lockKind string

const (
	mutexKind     lockKind = "mutex"
	rwKind        lockKind = "read-write lock"
	semaphoreKind lockKind = "semaphore"
	electionKind  lockKind = "election"
)

// machineCounts counts what the machines have done, because what never happened was not tested (etcd
// #6408).
type machineCounts map[string]int

// Random sequences of calls by three clients, of faults and of what operators do. After each step the
// model checks the holds; when the store has been healthy for a while, who holds the lock is exactly who
// is at the front of the line. A failing sequence is reduced to a short one.
// Promise: P1, P3, P5, P7
// Bug: etcd #6408, CURATOR-653
func TestMachine(t *testing.T) {
	for kind, want := range map[lockKind][]string{
		mutexKind:     {"lock", "try", "yield"},
		rwKind:        {"lock", "read", "try", "try to read", "downgrade", "yield"},
		semaphoreKind: {"lock", "try", "resize", "yield", "number"},
		electionKind:  {"lock", "yield", "proclaim", "observe"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			counts := make(machineCounts)
			rapid.Check(t, func(r *rapid.T) { runMachine(t, r, kind, counts, true, nil) })
			for _, what := range append(want, "lost", "canceled", "fault", "healthy", "waited") {
				if counts[what] < 10 {
					t.Errorf("%q happened %d times, want at least 10: %v", what, counts[what], counts)
				}
			}
			t.Log(counts)
		})
	}
}

// Each model finds a store that breaks its rule.
func TestMachine_findsBrokenRules(t *testing.T) {
	quick := map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "1s"}
	for name, value := range quick {
		f := flag.Lookup(name)
		before := f.Value.String()
		if err := f.Value.Set(value); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Value.Set(before) }()
	}
	elsewhere := func(name string) string { return name + "/elsewhere" }
	for _, tt := range []struct {
		rule  string
		kind  lockKind
		wants string // a regular expression of the message
		store func(client int, st store.Store) store.Store
	}{
		{"one holder", mutexKind, "held beside 1 others", func(client int, st store.Store) store.Store {
			return changedStore{Store: st, request: func(r *store.Request) {
				if client == 1 {
					r.Name = elsewhere(r.Name)
				}
			}}
		}},
		{"rising tokens", mutexKind, "the largest so far is", func(_ int, st store.Store) store.Store {
			return changedStore{Store: st, request: func(r *store.Request) {
				notify := r.Notify
				r.Notify = func(s store.Standing) {
					s.Order = 1<<40 - s.Order
					notify(s)
				}
			}}
		}},
		{"no reader beside a writer", rwKind, "held beside 1 others", func(_ int, st store.Store) store.Store {
			return changedStore{Store: st, request: func(r *store.Request) {
				if r.Mode == line.Shared {
					r.Name = elsewhere(r.Name)
				}
			}}
		}},
		{"n slots", semaphoreKind, `others, writer false|slot number \d of`, func(_ int, st store.Store) store.Store {
			return changedStore{Store: st, request: func(r *store.Request) { r.Mode = line.Slot(r.Mode.Slots() + 1) }}
		}},
		{"one leader", electionKind, "held beside 1 others", func(client int, st store.Store) store.Store {
			return changedStore{Store: st, request: func(r *store.Request) {
				if client == 1 {
					r.Name = elsewhere(r.Name)
				}
			}}
		}},
		{"the first candidate leads", electionKind, "observed", func(_ int, st store.Store) store.Store {
			return changedStore{Store: st, reading: func(l *store.Line) {
				if n := len(l.Entries); n > 1 {
					l.Entries[0], l.Entries[n-1] = l.Entries[n-1], l.Entries[0]
					l.Entries[0].Admitted, l.Entries[n-1].Admitted = true, false
				}
			}}
		}},
		{"no waiter is forgotten", mutexKind, "although", func(_ int, st store.Store) store.Store {
			return changedStore{Store: st, request: func(r *store.Request) {
				waits, notify := false, r.Notify
				r.Notify = func(s store.Standing) {
					if waits = waits || s.State == store.Waiting; !waits || s.State != store.Admitted {
						notify(s)
					}
				}
			}}
		}},
	} {
		t.Run(tt.rule, func(t *testing.T) {
			r := &failureRecorder{name: t.Name()}
			func() {
				defer func() {
					if p := recover(); p != nil && p != errFailed {
						panic(p)
					}
				}()
				rapid.Check(r, func(rt *rapid.T) { runMachine(t, rt, tt.kind, make(machineCounts), tt.wants == "although", tt.store) })
			}()
			if !regexp.MustCompile(tt.wants).MatchString(r.output.String()) {
				t.Errorf("got %q, want a failure that matches %q", r.output.String(), tt.wants)
			}
		})
	}
}

// A changedStore breaks a store: it changes requests and readings.
type changedStore struct {
	store.Store
	request func(*store.Request)
	reading func(*store.Line)
}

func (s changedStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	se, err := s.Store.Open(ctx, opts)
	if err != nil || s.request == nil {
		return se, err
	}
	return changedSession{se, s.request}, nil
}

func (s changedStore) Line(ctx context.Context, name string) (store.Line, error) {
	l, err := s.Store.Line(ctx, name)
	if err == nil && s.reading != nil {
		s.reading(&l)
	}
	return l, err
}

type changedSession struct {
	store.Session
	request func(*store.Request)
}

func (s changedSession) Enqueue(ctx context.Context, r store.Request) (store.Ticket, error) {
	s.request(&r)
	return s.Session.Enqueue(ctx, r)
}

var errFailed = errors.New("the check failed")

// A failureRecorder is a test that is expected to fail.
type failureRecorder struct {
	name   string
	failed bool
	output strings.Builder
}

func (r *failureRecorder) Helper()                      {}
func (r *failureRecorder) Name() string                 { return r.name }
func (r *failureRecorder) Logf(f string, args ...any)   { fmt.Fprintf(&r.output, f+"\n", args...) }
func (r *failureRecorder) Log(args ...any)              { fmt.Fprintln(&r.output, args...) }
func (r *failureRecorder) Skipf(f string, args ...any)  { panic(fmt.Sprintf(f, args...)) }
func (r *failureRecorder) Skip(args ...any)             { panic(fmt.Sprint(args...)) }
func (r *failureRecorder) SkipNow()                     { panic("skipped") }
func (r *failureRecorder) Errorf(f string, args ...any) { r.Logf(f, args...); r.Fail() }
func (r *failureRecorder) Error(args ...any)            { r.Log(args...); r.Fail() }
func (r *failureRecorder) Fatalf(f string, args ...any) { r.Errorf(f, args...); panic(errFailed) }
func (r *failureRecorder) Fatal(args ...any)            { r.Error(args...); panic(errFailed) }
func (r *failureRecorder) FailNow()                     { r.Fail(); panic(errFailed) }
func (r *failureRecorder) Fail()                        { r.failed = true }
func (r *failureRecorder) Failed() bool                 { return r.failed }

// A machine is one run: three clients of one lock.
type machine struct {
	r      *rapid.T
	kind   lockKind
	slots  int
	counts machineCounts
	mem    *memstore.Store
	client []*stile.Client
	stop   context.CancelFunc // of the observer
	ctx    context.Context

	model    *model
	observer *observerModel
	calls    []*lockCall // that wait or hold
	made     int
	limit    int  // the operator's
	healthy  bool // no fault since the last step healthy
	front    bool // the line can be read, so its front is checked

	mu       sync.Mutex
	sessions map[string]int // the client of each session
	cut      [machineClients]bool
	next     map[memstore.Op]memstore.Fault
	faults   int
	seen     *stile.Leader // last seen by the observer
	seenErr  error
}

// A lockCall is a call that wants the lock, and then its hold.
type lockCall struct {
	id        string
	client    int
	exclusive bool
	shares    bool // has no entry of its own
	numbered  bool
	try       bool
	canceled  bool
	cancel    context.CancelFunc

	result     chan callResult // gets the result when the call returns
	callResult                 // its result, once check has seen it

	entered bool // in the model
}

type callResult struct {
	hold *stile.Hold
	lead *stile.Leadership
	err  error
}

// runMachine runs a random sequence in a bubble. change, if not nil, breaks the store of a client.
func runMachine(t *testing.T, r *rapid.T, kind lockKind, counts machineCounts, front bool, change func(client int, st store.Store) store.Store) {
	var failure any // a failure must not leave the bubble as a panic
	synctest.Test(t, func(*testing.T) {
		defer func() { failure = recover() }()
		m := newMachine(r, kind, counts, change)
		m.front = front
		defer m.close()
		m.run()
	})
	if fmt.Sprintf("%T", failure) == "rapid.invalidData" {
		panic(failure) // in a line of its own, because rapid tells failures apart by their lines
	}
	if failure != nil {
		panic(failure)
	}
}

func newMachine(r *rapid.T, kind lockKind, counts machineCounts, change func(client int, st store.Store) store.Store) *machine {
	m := &machine{
		r: r, kind: kind, counts: counts, mem: memstore.New(), healthy: true,
		model: &model{limit: 1}, observer: &observerModel{},
		sessions: make(map[string]int), next: make(map[memstore.Op]memstore.Fault),
	}
	switch kind {
	case rwKind:
		m.model.limit = 1 << 20
	case semaphoreKind:
		m.slots = rapid.IntRange(1, 3).Draw(r, "slots")
		m.model.limit = m.slots
	}
	for i := range machineClients {
		var st store.Store = m.mem
		if change != nil {
			st = change(i, st)
		}
		c, err := stile.New(sessionRecorder{st, func(id string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.sessions[id] = i
		}}, &stile.Options{TTL: machineTTL, Owner: stile.Owner{PID: i + 1}})
		if err != nil {
			r.Fatal(err)
		}
		m.client = append(m.client, c)
	}
	m.mem.SetFaults(m.fault)
	m.ctx, m.stop = context.WithCancel(context.Background())
	if kind == electionKind {
		go m.observe()
	}
	return m
}

// A sessionRecorder reports the sessions that are opened.
type sessionRecorder struct {
	store.Store
	opened func(id string)
}

func (s sessionRecorder) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	se, err := s.Store.Open(ctx, opts)
	if err == nil {
		s.opened(se.ID())
	}
	return se, err
}

// close ends everything that runs in the bubble.
func (m *machine) close() {
	m.stop()
	m.mem.SetFaults(nil)
	for _, c := range m.calls {
		c.cancel()
	}
	for _, c := range m.client {
		_ = c.Close(context.Background())
	}
	synctest.Wait()
}

// fault returns the fault of a call to the store.
func (m *machine) fault(c memstore.Call) memstore.Fault {
	m.mu.Lock()
	defer m.mu.Unlock()
	if client, ok := m.sessions[c.Session]; ok && m.cut[client] {
		if c.Op == memstore.Notify {
			return memstore.Fault{Delay: machineTTL}
		}
		return ending(c.Op, memstore.Fault{Drop: true})
	}
	f, ok := m.next[c.Op]
	if ok {
		delete(m.next, c.Op)
		m.faults++
	}
	return f
}

// ending returns a fault after which the call ends. Except for confirmations, which have timeouts, a lost
// request would wait until its session ends: the memory store does not repeat it as others do.
func ending(op memstore.Op, f memstore.Fault) memstore.Fault {
	if (f.Drop || f.LoseReply) && op != memstore.Confirm {
		f.Err = errors.New("unreachable")
		f.Drop = false
	}
	return f
}

func (m *machine) observe() {
	for l, err := range m.client[machineClients-1].Election(machineName).Observe(m.ctx) {
		m.mu.Lock()
		m.seen, m.seenErr = l, err
		m.mu.Unlock()
	}
}

func (m *machine) run() {
	actions := map[string]func(*rapid.T){
		"":        func(*rapid.T) { m.check() },
		"lock":    func(*rapid.T) { m.start("lock", true, false) },
		"release": func(*rapid.T) { m.release() },
		"cancel":  func(*rapid.T) { m.cancel() },
		"yield":   func(*rapid.T) { m.yield() },
		"break":   func(*rapid.T) { m.breakEntry() },
		"wait": func(r *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 15_000).Draw(r, "ms")) * time.Millisecond)
		},
		"cut":     func(r *rapid.T) { m.cutOff(rapid.IntRange(0, machineClients-1).Draw(r, "client")) },
		"fault":   func(*rapid.T) { m.faultNext() },
		"heal":    func(*rapid.T) { m.heal() },
		"healthy": func(*rapid.T) { m.awaitHealth() },
	}
	switch m.kind {
	case rwKind:
		actions["read"] = func(*rapid.T) { m.start("read", false, false) }
		actions["try to read"] = func(*rapid.T) { m.start("try to read", false, true) }
		actions["downgrade"] = func(*rapid.T) { m.downgrade() }
	case semaphoreKind:
		actions["lock"] = func(*rapid.T) { m.start("lock", false, false) }
		actions["resize"] = func(*rapid.T) { m.resize() }
	case electionKind:
		actions["proclaim"] = func(*rapid.T) { m.proclaim() }
	}
	if m.kind != electionKind {
		actions["try"] = func(*rapid.T) { m.start("try", m.kind != semaphoreKind, true) }
	}
	m.r.Repeat(actions)

	// Everybody gets the lock in the end, and nothing is left over.
	for round := 0; len(m.calls) > 0; round++ {
		if round > m.made+10 {
			m.r.Fatalf("after %d rounds %d calls still wait, although each round releases a hold", round, len(m.calls))
		}
		m.awaitHealth()
		m.check()
		if holds := m.with(func(c *lockCall) bool { return c.hold != nil }); len(holds) > 0 {
			m.end(holds[0])
		}
	}
	m.awaitHealth()
	if l := m.line(); len(l.Entries) > 0 {
		m.r.Fatalf("entries at the end: %+v", l.Entries)
	}
}

// with returns the calls for which is returns true.
func (m *machine) with(is func(c *lockCall) bool) []*lockCall {
	return slices.DeleteFunc(slices.Clone(m.calls), func(c *lockCall) bool { return !is(c) })
}

// pick draws one of the calls for which is returns true. Without one, the step is skipped.
func (m *machine) pick(is func(c *lockCall) bool) *lockCall {
	calls := m.with(is)
	if len(calls) == 0 {
		m.r.Skip("none")
	}
	return calls[rapid.IntRange(0, len(calls)-1).Draw(m.r, "call")]
}

func waiting(c *lockCall) bool { return c.hold == nil && c.err == nil }
func holding(c *lockCall) bool { return c.hold != nil }

// begin runs f, which waits for the lock, and returns when all goroutines are blocked.
func (m *machine) begin(c *lockCall, f func(ctx context.Context) (*stile.Hold, *stile.Leadership, error)) {
	ctx, cancel := context.WithCancel(m.ctx)
	c.cancel, c.canceled = cancel, false
	c.callResult, c.entered = callResult{}, false
	result := make(chan callResult, 1)
	c.result = result
	go func() {
		hold, lead, err := f(ctx)
		result <- callResult{hold, lead, err}
	}()
	synctest.Wait()
}

// start starts a call.
func (m *machine) start(what string, exclusive, try bool) {
	m.made++
	c := &lockCall{
		id: fmt.Sprint("call ", m.made), client: rapid.IntRange(0, machineClients-1).Draw(m.r, "client"),
		exclusive: exclusive, try: try,
	}
	if m.kind == rwKind && !exclusive {
		c.shares = rapid.Bool().Draw(m.r, "shares")
	}
	if m.kind == semaphoreKind {
		c.numbered = rapid.Bool().Draw(m.r, "numbered")
	}
	m.counts[what]++
	opts := stile.LockOptions{Reason: c.id}
	if c.shares {
		opts = stile.LockOptions{}
	}
	m.calls = append(m.calls, c)
	client := m.client[c.client]
	m.begin(c, func(ctx context.Context) (hold *stile.Hold, lead *stile.Leadership, err error) {
		switch m.kind {
		case electionKind:
			if lead, err = client.Election(machineName).With(opts).Campaign(ctx, c.id); err != nil {
				return nil, nil, err
			}
			return lead.Hold, lead, nil
		case semaphoreKind:
			s := client.Semaphore(machineName, m.slots).With(opts)
			if c.numbered {
				s = s.Numbered()
			}
			method := map[bool]func(context.Context) (*stile.Hold, error){false: s.Acquire, true: s.TryAcquire}[try]
			hold, err = method(ctx)
		case mutexKind:
			l := client.Mutex(machineName).With(opts)
			method := map[bool]func(context.Context) (*stile.Hold, error){false: l.Lock, true: l.TryLock}[try]
			hold, err = method(ctx)
		default:
			l := client.RWMutex(machineName).With(opts)
			method := map[[2]bool]func(context.Context) (*stile.Hold, error){
				{true, false}: l.Lock, {true, true}: l.TryLock, {false, false}: l.RLock, {false, true}: l.TryRLock,
			}[[2]bool{exclusive, try}]
			hold, err = method(ctx)
		}
		return hold, nil, err
	})
}

// shortly returns a context that ends after a second.
func (m *machine) shortly() context.Context {
	ctx, cancel := context.WithTimeout(m.ctx, time.Second)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func (m *machine) release() { m.end(m.pick(holding)) }

// end releases a hold.
func (m *machine) end(c *lockCall) {
	m.leave(c)
	m.calls = slices.DeleteFunc(m.calls, func(other *lockCall) bool { return other == c })
	err := c.hold.Release(m.shortly())
	if c.hold.Valid() {
		m.r.Fatalf("%s: the hold is valid after its release", c.id)
	}
	if err != nil && m.healthy && !errors.Is(err, stile.ErrLost) {
		m.r.Fatalf("%s: Release: %v", c.id, err)
	}
	c.cancel()
}

func (m *machine) cancel() {
	c := m.pick(waiting)
	c.canceled = true
	c.cancel()
	m.counts["canceled"]++
}

func (m *machine) yield() {
	c := m.pick(holding)
	m.leave(c)
	m.counts["yield"]++
	hold, lead := c.hold, c.lead
	m.begin(c, func(ctx context.Context) (*stile.Hold, *stile.Leadership, error) {
		if lead != nil {
			lead, err := lead.Yield(ctx)
			if err != nil {
				return nil, nil, err
			}
			return lead.Hold, lead, nil
		}
		hold, err := hold.Yield(ctx)
		return hold, nil, err
	})
}

func (m *machine) downgrade() {
	c := m.pick(func(c *lockCall) bool { return holding(c) && c.exclusive && c.entered && c.hold.Valid() })
	err := c.hold.Downgrade(m.shortly())
	m.counts["downgrade"]++
	if err != nil && m.healthy {
		m.r.Fatalf("%s: Downgrade: %v", c.id, err)
	}
	// Whether or not it was confirmed, the hold does not count as exclusive any more.
	m.model.downgrade()
	c.exclusive = false
}

func (m *machine) proclaim() {
	c := m.pick(func(c *lockCall) bool { return holding(c) && c.hold.Valid() })
	if err := c.lead.Proclaim(m.shortly(), c.id+" again"); err != nil && m.healthy {
		m.r.Fatalf("%s: Proclaim: %v", c.id, err)
	}
	m.counts["proclaim"]++
}

func (m *machine) resize() {
	limit := rapid.IntRange(0, m.slots+1).Draw(m.r, "limit")
	if err := m.client[0].Resize(m.shortly(), machineName, limit); err != nil {
		if m.healthy {
			m.r.Fatalf("Resize: %v", err)
		}
		return
	}
	m.limit = limit
	m.counts["resize"]++
}

// breakEntry removes an entry, as an operator does. If the holder cannot be notified, another may be
// admitted before it knows (P1), so the store must be healthy.
func (m *machine) breakEntry() {
	entries := m.line().Entries
	if !m.healthy || len(entries) == 0 {
		m.r.Skip("none")
	}
	e := entries[rapid.IntRange(0, len(entries)-1).Draw(m.r, "entry")]
	if _, err := m.mem.Break(m.shortly(), machineName, e.Order); err == nil {
		m.counts["break"]++
	}
}

func (m *machine) line() store.Line {
	m.r.Helper()
	l, err := m.mem.Line(m.ctx, machineName)
	if err != nil {
		m.r.Fatal(err)
	}
	return l
}

func (m *machine) cutOff(client int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut[client] = true
	m.healthy = false
}

func (m *machine) faultNext() {
	op := rapid.SampledFrom([]memstore.Op{
		memstore.Open, memstore.Confirm, memstore.Enqueue, memstore.Withdraw, memstore.Requeue, memstore.SetOwner,
		memstore.Downgrade, memstore.ClaimNumber, memstore.Notify,
	}).Draw(m.r, "operation")
	ms := rapid.IntRange(1, 12_000)
	var f memstore.Fault
	switch rapid.IntRange(0, 4).Draw(m.r, "fault") {
	case 0:
		f.Delay = time.Duration(ms.Draw(m.r, "ms")) * time.Millisecond
	case 1:
		f.ReplyDelay = time.Duration(ms.Draw(m.r, "ms")) * time.Millisecond
	case 2:
		f.LoseReply = true
	case 3:
		f.Drop = true
	case 4:
		f.Err, f.LoseReply = errors.New("failed"), rapid.Bool().Draw(m.r, "carried out")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next[op] = ending(op, f)
	m.healthy = false
}

// heal ends all faults. Their consequences may last.
func (m *machine) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut = [machineClients]bool{}
	clear(m.next)
	m.counts["fault"] += m.faults
	m.faults = 0
}

// awaitHealth ends all faults and waits until their consequences are over.
func (m *machine) awaitHealth() {
	m.heal()
	time.Sleep(4 * machineTTL)
	synctest.Wait()
	m.healthy = true
	m.counts["healthy"]++
}

// leave removes a hold from the model.
func (m *machine) leave(c *lockCall) {
	if !c.entered {
		return
	}
	c.entered = false
	m.model.leave(c.exclusive)
	if c.numbered {
		m.model.unclaim(c.hold.Slot())
	}
}

// check compares all calls with the model.
func (m *machine) check() {
	synctest.Wait()
	var entering []*lockCall
	for _, c := range slices.Clone(m.calls) {
		if waiting(c) {
			select {
			case c.callResult = <-c.result:
			default:
				m.counts["waited"]++
				continue
			}
		}
		switch {
		case c.err != nil:
			m.checkError(c)
			m.calls = slices.DeleteFunc(m.calls, func(other *lockCall) bool { return other == c })
			c.cancel()
		case c.hold.Valid():
			if !c.entered {
				entering = append(entering, c)
			}
		default:
			m.counts["lost"]++
			m.leave(c)
			m.calls = slices.DeleteFunc(m.calls, func(other *lockCall) bool { return other == c })
			// A hold that is not valid is released nevertheless, as programs do.
			if err := c.hold.Release(m.shortly()); err == nil {
				m.r.Fatalf("%s: Release of a hold that was lost returned nil", c.id)
			}
			c.cancel()
		}
	}
	slices.SortFunc(entering, func(a, b *lockCall) int { return cmp.Compare(a.hold.Token(), b.hold.Token()) })
	for _, c := range entering {
		c.entered = true
		if err := m.model.enter(c.hold.Token(), c.exclusive); err != nil {
			m.r.Fatalf("%s: %v", c.id, err)
		}
		if c.numbered {
			m.counts["number"]++
			if err := m.model.claim(c.hold.Slot(), c.hold.SlotToken()); err != nil {
				m.r.Fatalf("%s: %v", c.id, err)
			}
		}
	}
	if m.healthy && m.front {
		m.checkFront()
	}
	if m.kind == electionKind {
		m.checkObserver()
	}
}

// checkError fails if an error has no explanation.
func (m *machine) checkError(c *lockCall) {
	switch {
	case c.canceled && errors.Is(c.err, context.Canceled), c.try && errors.Is(c.err, stile.ErrHeld), !m.healthy,
		errors.Is(c.err, stile.ErrLost),                               // the hold was lost before Yield
		c.numbered && errors.Is(c.err, stile.ErrNoNumber),             // just after the limit was lowered
		c.numbered && (errors.Is(c.err, stile.ErrGone) || c.canceled): // broken or canceled during the claim
	default:
		m.r.Fatalf("%s: %v", c.id, c.err)
	}
}

// checkFront checks in a healthy store that the calls at the front of the line hold the lock, and no
// others.
func (m *machine) checkFront() {
	entries := m.line().Entries
	limit := m.slots
	if m.limit > 0 {
		limit = min(limit, m.limit)
	}
	holders, lastOrder := 0, uint64(0)
	for i, e := range entries {
		if e.Order <= lastOrder {
			m.r.Fatalf("order %d behind %d: %+v", e.Order, lastOrder, entries)
		}
		lastOrder = e.Order
		front := i == 0
		switch m.kind {
		case rwKind:
			front = i == 0 || !slices.ContainsFunc(entries[:i+1], func(e store.Entry) bool { return e.Mode == line.Exclusive })
		case semaphoreKind:
			front = i < limit
		}
		for _, c := range m.calls {
			if c.id != e.Owner.Reason {
				continue
			}
			if c.hold != nil {
				holders++
			}
			switch {
			case front && c.hold == nil:
				m.r.Fatalf("%s waits although it is at the front of %+v", c.id, entries)
			case !front && c.hold != nil && (m.kind != semaphoreKind || m.limit == 0):
				m.r.Fatalf("%s holds the lock although it is not at the front of %+v", c.id, entries)
			}
		}
	}
	if len(entries) == 0 && len(m.calls) > 0 {
		m.r.Fatalf("%d calls wait or hold, although the line is empty", len(m.calls))
	}
}

// checkObserver checks what the observer has seen. In a healthy store it is the last state.
func (m *machine) checkObserver() {
	if m.healthy {
		time.Sleep(200 * time.Millisecond) // Observe may take a tenth of a second
		synctest.Wait()
	}
	m.mu.Lock()
	seen, err := m.seen, m.seenErr
	m.mu.Unlock()
	if err != nil {
		return
	}
	leaders := m.with(func(c *lockCall) bool { return holding(c) && c.hold.Valid() })
	if seen != nil {
		m.counts["observe"]++
		id := seen.Owner.Reason
		if err := m.observer.see(id, seen.Token); err != nil {
			m.r.Fatal(err)
		}
		for i, e := range m.line().Entries {
			if e.Owner.Reason == id && i > 0 && e.Order<<store.TurnBits == seen.Token {
				m.r.Fatalf("observed %q, which is not the first in the line: %+v", id, m.line().Entries)
			}
		}
	}
	switch {
	case !m.healthy || !m.front || len(leaders) == 0 && len(m.calls) > 0:
	case len(leaders) == 0 && seen != nil:
		m.r.Fatalf("observed %+v at last, although nobody leads", seen)
	case len(leaders) > 0 && (seen == nil || seen.Token != leaders[0].hold.Token() || seen.Value != leaders[0].lead.Value()):
		m.r.Fatalf("observed %+v at last, but %s leads with token %d and value %q", seen, leaders[0].id, leaders[0].hold.Token(), leaders[0].lead.Value())
	}
}
