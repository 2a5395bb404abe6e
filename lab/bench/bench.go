package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A client is one user of locks, with connections and a session of its own.
type client interface {
	// Lock waits for the lock, and returns what releases it. With some contenders a lock ends with the context it was taken
	// with: so that does not end before the release.
	Lock(ctx context.Context, name string) (unlock func(context.Context) error, err error)
	Close()
}

// A preparer is a client that wants to know the name of a contest before it begins.
type preparer interface {
	prepare(ctx context.Context, name string) error
}

// A contender is one of the things that are compared. Client i of it connects.
type contender struct {
	name     string
	connect  func(ctx context.Context, i int) (client, error)
	contests func(contest) bool // whether it takes part; nil: in all
	onlyIn   bool               // it takes part in contests only
}

// stileName is the contender that the others are compared with.
const stileName = "Stile"

// A contest is one way to fight for a lock.
type contest struct {
	Clients int
	Hold    time.Duration
	Noise   bool // unrelated requests go on meanwhile
}

func (c contest) String() string {
	s := fmt.Sprintf("%d clients, hold %v", c.Clients, c.Hold)
	if c.Noise {
		s += ", unrelated writes"
	}
	return s
}

// A setting is servers, a way to them, and those who are compared there.
type setting struct {
	name       string
	contenders []contender
	contests   []contest
	slices     int                                                                // how many a contest lasts; zero is one
	settle     func(i int) time.Duration                                          // how long the next in line waits before hand-over i
	between    func(context.Context) error                                        // before each round; may be nil
	commands   func(context.Context) (int, error)                                 // how many the server has carried out; may be nil
	noise      func(context.Context) (stop func() (perSecond float64, err error)) // nil if no contest has it
}

// alone is what a contender does while nobody else wants the lock, and a hand-over to one who waits.
type alone struct {
	locks, unlocks, pairs series
	handOvers             series
	afterPause            series // Lock by the client that will hand over, after the pause that a hand-over takes
	givenUp               int
}

// together is what has come of a contest.
type together struct {
	handOvers   series // to clients that stood waiting
	rates       []float64
	commands    []float64 // for each acquisition
	most, least []int     // acquisitions of one client
	violations  int
	givenUp     int
}

// bench measures in one setting.
type bench struct {
	setting
	config
	began   time.Time
	clients map[string][]client
	alone   map[string]*alone
	fights  map[contest]map[string]*together
	noises  map[contest][]float64
	names   atomic.Int64
}

// block is how many uncontended pairs, or hand-overs, one contender does before it is the next one's turn.
const block = 25

// patience is how long one call may take before it is given up and counted.
const patience = 5 * time.Second

// in measures in a setting.
func in(ctx context.Context, c config, s setting) (*bench, error) {
	b := &bench{
		setting: s, config: c, began: time.Now(),
		clients: make(map[string][]client), alone: make(map[string]*alone),
		fights: make(map[contest]map[string]*together), noises: make(map[contest][]float64),
	}
	defer b.close()
	if err := b.connect(ctx); err != nil {
		return nil, err
	}
	defer fmt.Fprintln(os.Stderr) // the line of progress ends
	for round := range b.rounds {
		if b.between != nil {
			if err := b.between(ctx); err != nil {
				return nil, err
			}
		}
		if err := b.round(ctx, round); err != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
	}
	return b, nil
}

func (b *bench) round(ctx context.Context, round int) error {
	b.progress(round, "uncontended")
	now := make(map[string]*alone)
	for _, measure := range []func(context.Context, contender, *alone) error{b.pairs, b.handOvers} {
		if err := b.inTurns(ctx, round, now, measure); err != nil {
			return fmt.Errorf("uncontended: %w", err)
		}
	}
	for name, a := range now {
		if b.alone[name] == nil {
			b.alone[name] = &alone{}
		}
		b.alone[name].add(a)
	}
	for _, k := range b.contests {
		b.progress(round, k.String())
		if err := b.contest(ctx, round, k); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
	}
	return nil
}

func (b *bench) progress(round int, what string) {
	fmt.Fprintf(os.Stderr, "\r\x1b[K%s %v  round %d of %d: %s", b.name, time.Since(b.began).Round(time.Second), round+1, b.rounds, what)
}

// as calls f for a contender, with its name as a label for the profile. The goroutines that f starts inherit it, those of
// connections too.
func as(ctx context.Context, c contender, f func(context.Context) error) (err error) {
	pprof.Do(ctx, pprof.Labels("contender", c.name), func(ctx context.Context) { err = f(ctx) })
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// connect connects as many clients of each as it will need, and has each take a lock: with most contenders that opens
// connections and sessions.
func (b *bench) connect(ctx context.Context) error {
	for _, c := range b.contenders {
		need := 2
		for _, k := range b.contests {
			if b.fight(c, k) {
				need = max(need, k.Clients)
			}
		}
		err := as(ctx, c, func(ctx context.Context) error {
			for i := range need {
				cl, err := c.connect(ctx, i)
				if err != nil {
					return err
				}
				b.clients[c.name] = append(b.clients[c.name], cl)
				if c.onlyIn {
					continue
				}
				unlock, err := attempt(ctx, cl, b.fresh(), patience)
				if err == nil && unlock != nil {
					err = unlock()
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) close() {
	var closing sync.WaitGroup
	for _, all := range b.clients {
		for _, c := range all {
			closing.Go(c.Close)
		}
	}
	closing.Wait()
}

// fight reports whether a contender takes part in a contest.
func (b *bench) fight(c contender, k contest) bool { return c.contests == nil || c.contests(k) }

// fresh returns the name of a lock that was not there before.
func (b *bench) fresh() string { return fmt.Sprintf("bench-%d-%d", os.Getpid(), b.names.Add(1)) }

// turns returns the contenders in the order in which they are measured the n-th time.
func (b *bench) turns(n int) []contender {
	k := n % len(b.contenders)
	return slices.Concat(b.contenders[k:], b.contenders[:k])
}

// attempt takes a lock, or gives it up. A nil unlock without an error means that it was given up.
func attempt(ctx context.Context, c client, name string, within time.Duration) (unlock func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	enough := time.AfterFunc(within, cancel)
	release, err := c.Lock(ctx, name)
	if enough.Stop() || err == nil && ctx.Err() == nil {
		if err != nil {
			cancel()
			return nil, err
		}
		return func() error { defer cancel(); return release(ctx) }, nil
	}
	cancel()
	if err == nil {
		err = release(context.WithoutCancel(ctx))
	} else {
		err = nil
	}
	return nil, err
}

// inTurns has each contender measured again and again, for a slice each in all.
func (b *bench) inTurns(
	ctx context.Context, round int, now map[string]*alone, measure func(context.Context, contender, *alone) error,
) error {
	runtime.GC()
	for n, start := 0, time.Now(); time.Since(start) < time.Duration(len(b.contenders))*b.slice; n++ {
		for _, c := range b.turns(round + n) {
			if c.onlyIn {
				continue
			}
			if now[c.name] == nil {
				now[c.name] = &alone{locks: series{nil}, unlocks: series{nil}, pairs: series{nil}, handOvers: series{nil}, afterPause: series{nil}}
			}
			if err := as(ctx, c, func(ctx context.Context) error { return measure(ctx, c, now[c.name]) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// add appends what was measured in a round.
func (a *alone) add(round *alone) {
	for _, s := range [][2]*series{
		{&a.locks, &round.locks},
		{&a.unlocks, &round.unlocks},
		{&a.pairs, &round.pairs},
		{&a.handOvers, &round.handOvers},
		{&a.afterPause, &round.afterPause},
	} {
		*s[0] = append(*s[0], (*s[1])[0]) // even if it is empty: ratios are within rounds
	}
	a.givenUp += round.givenUp
}

// pairs measures Lock and unlock of a lock that nobody else wants.
func (b *bench) pairs(ctx context.Context, c contender, a *alone) error {
	name, end := b.fresh(), time.Now().Add(b.slice/4)
	for n := 0; n <= block && (n < 3 || time.Now().Before(end)); n++ {
		start := time.Now()
		unlock, err := attempt(ctx, b.clients[c.name][0], name, patience)
		if err != nil {
			return err
		}
		if unlock == nil {
			a.givenUp++
			continue
		}
		locked := time.Now()
		if err := unlock(); err != nil {
			return err
		}
		done := time.Now()
		if n == 0 {
			continue // directories may have been made
		}
		a.locks[0] = append(a.locks[0], locked.Sub(start))
		a.unlocks[0] = append(a.unlocks[0], done.Sub(locked))
		a.pairs[0] = append(a.pairs[0], done.Sub(start))
	}
	return nil
}

// handOvers measures the time from just before one client releases until Lock returns in the other, which waits alone.
func (b *bench) handOvers(ctx context.Context, c contender, a *alone) error {
	type admission struct {
		at     time.Time
		unlock func() error
		err    error
	}
	name, end := b.fresh(), time.Now().Add(b.slice/2)
	for n := 0; n <= block && (n < 3 || time.Now().Before(end)); n++ {
		holder, waiter := b.clients[c.name][n%2], b.clients[c.name][(n+1)%2]
		start := time.Now()
		unlock, err := attempt(ctx, holder, name, patience)
		if err != nil {
			return err
		}
		if unlock == nil {
			a.givenUp++
			continue
		}
		locked := time.Since(start)
		admitted := make(chan admission, 1)
		go func() {
			unlock, err := attempt(ctx, waiter, name, patience)
			admitted <- admission{time.Now(), unlock, err}
		}()
		time.Sleep(b.settle(n))
		start = time.Now()
		if err := unlock(); err != nil {
			return err
		}
		got := <-admitted
		if got.err != nil {
			return got.err
		}
		if got.unlock == nil {
			a.givenUp++
			continue
		}
		if err := got.unlock(); err != nil {
			return err
		}
		if n > 0 {
			a.handOvers[0], a.afterPause[0] = append(a.handOvers[0], got.at.Sub(start)), append(a.afterPause[0], locked)
		}
		time.Sleep(min(b.settle(n), 10*time.Millisecond))
	}
	return nil
}

// contest measures one round of a contest.
func (b *bench) contest(ctx context.Context, round int, k contest) (err error) {
	if k.Noise {
		stop := b.noise(ctx)
		defer func() {
			rate, e := stop()
			b.noises[k], err = append(b.noises[k], rate), errors.Join(err, e)
		}()
	}
	if b.fights[k] == nil {
		b.fights[k] = make(map[string]*together)
	}
	for _, c := range b.turns(round) {
		if !b.fight(c, k) {
			continue
		}
		runtime.GC()
		if b.fights[k][c.name] == nil {
			b.fights[k][c.name] = &together{}
		}
		err := as(ctx, c, func(ctx context.Context) error { return b.measureFight(ctx, c, k, b.fights[k][c.name]) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measureFight(ctx context.Context, c contender, k contest, t *together) error {
	clients, name := b.clients[c.name][:k.Clients], b.fresh()
	for _, cl := range clients {
		if p, ok := cl.(preparer); ok {
			if err := p.prepare(ctx, name); err != nil {
				return err
			}
		}
	}
	count := func(context.Context) (int, error) { return 0, nil }
	if b.commands != nil {
		count = b.commands
	}
	before, err := count(ctx)
	if err != nil {
		return err
	}
	slice := b.slice * time.Duration(max(b.slices, 1))
	o, err := fight(ctx, clients, name, k.Hold, slice)
	if err != nil {
		return err
	}
	after, err := count(ctx)
	acquired := 0
	for _, n := range o.acquired {
		acquired += n
	}
	t.handOvers = append(t.handOvers, o.handOvers)
	t.rates = append(t.rates, float64(acquired)/slice.Seconds())
	t.commands = append(t.commands, float64(after-before)/float64(max(acquired, 1)))
	t.most, t.least = append(t.most, slices.Max(o.acquired)), append(t.least, slices.Min(o.acquired))
	t.violations += o.violations
	t.givenUp += o.givenUp
	return err
}
