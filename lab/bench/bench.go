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

// A client acquires locks. It has its own connections and its own session.
type client interface {
	// Lock acquires the lock and returns the function that releases it. The hold of some contenders
	// ends with ctx, so callers must not end ctx before they have released.
	Lock(ctx context.Context, name string) (unlock func(context.Context) error, err error)
	Close()
}

// A preparer is a client that has to prepare for a contest, once its lock name is known.
type preparer interface {
	prepare(ctx context.Context, name string) error
}

// A contender is one of the things that are compared.
type contender struct {
	name         string
	connect      func(ctx context.Context, i int) (client, error) // connects client number i
	takesPart    func(contest) bool                               // whether it takes part in a contest; nil: in all
	contestsOnly bool                                             // not measured uncontended
}

// stileName is the contender that the others are compared with, unless the setting names another one.
const stileName = "Stile"

// A contest is a workload: clients that acquire and release one lock in a loop.
type contest struct {
	Clients int
	Hold    time.Duration
	Noise   bool // unrelated writes run at the same time
}

func (c contest) String() string {
	s := fmt.Sprintf("%d clients, hold %v", c.Clients, c.Hold)
	if c.Noise {
		s += ", unrelated writes"
	}
	return s
}

// A setting is the servers under test, the route to them, and the contenders.
type setting struct {
	name          string
	subject       string // the contender that the others are compared with; empty means stileName
	contenders    []contender
	contests      []contest
	contestSlices int                                                                // length of a contest in slices; zero means one
	handOverDelay func(i int) time.Duration                                          // how long the waiter has waited before hand-over i
	beforeRound   func(context.Context) error                                        // called before each round; may be nil
	commandCount  func(context.Context) (int, error)                                 // the server's count of commands or requests; may be nil
	noise         func(context.Context) (stop func() (perSecond float64, err error)) // may be nil if no contest has Noise
}

// uncontended is what one contender did without competition, and in hand-overs to a single waiter.
type uncontended struct {
	locks, unlocks, pairs series
	handOvers             series
	locksAfterPause       series    // Lock after a pause as long as the one before a hand-over
	commands              []float64 // for each pair, by turn
	givenUp               int       // calls that took longer than callTimeout
}

// contestResult is what one contender did in all rounds of a contest.
type contestResult struct {
	handOvers                series // to clients that were already waiting
	rates                    []float64
	commands                 []float64 // per acquisition
	maxAcquired, minAcquired []int     // acquisitions of the client with most and of the one with fewest, by round
	violations               int
	givenUp                  int
}

// bench measures the contenders of one setting.
type bench struct {
	setting
	config
	began          time.Time
	clients        map[string][]client
	uncontended    map[string]*uncontended
	contestResults map[contest]map[string]*contestResult
	noiseRates     map[contest][]float64
	names          atomic.Int64
}

// blockSize is the number of uncontended pairs, or of hand-overs, that one contender makes before
// the next contender's turn.
const blockSize = 25

// callTimeout is the time after which a call of Lock is given up and counted as such.
const callTimeout = 5 * time.Second

// measureSetting measures all rounds of a setting.
func measureSetting(ctx context.Context, c config, s setting) (*bench, error) {
	b := &bench{
		setting: s, config: c, began: time.Now(),
		clients: make(map[string][]client), uncontended: make(map[string]*uncontended),
		contestResults: make(map[contest]map[string]*contestResult), noiseRates: make(map[contest][]float64),
	}
	if b.subject == "" {
		b.subject = stileName
	}
	if b.commandCount == nil {
		b.commandCount = func(context.Context) (int, error) { return 0, nil }
	}
	defer b.close()
	if err := b.connect(ctx); err != nil {
		return nil, err
	}
	defer fmt.Fprintln(os.Stderr) // ends the progress line
	for round := range b.rounds {
		if b.beforeRound != nil {
			if err := b.beforeRound(ctx); err != nil {
				return nil, err
			}
		}
		if err := b.measureRound(ctx, round); err != nil {
			return nil, fmt.Errorf("%s: %w", b.name, err)
		}
	}
	return b, nil
}

func (b *bench) measureRound(ctx context.Context, round int) error {
	b.printProgress(round, "uncontended")
	results := make(map[string]*uncontended)
	for _, measure := range []func(context.Context, contender, *uncontended) error{b.measurePairs, b.measureHandOvers} {
		if err := b.measureInTurns(ctx, round, results, measure); err != nil {
			return fmt.Errorf("uncontended: %w", err)
		}
	}
	for name, a := range results {
		if b.uncontended[name] == nil {
			b.uncontended[name] = &uncontended{}
		}
		b.uncontended[name].add(a)
	}
	for _, k := range b.contests {
		b.printProgress(round, k.String())
		if err := b.measureContest(ctx, round, k); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
	}
	return nil
}

func (b *bench) printProgress(round int, what string) {
	fmt.Fprintf(os.Stderr, "\r\x1b[K%s %v  round %d of %d: %s", b.name, time.Since(b.began).Round(time.Second), round+1, b.rounds, what)
}

// runLabeled calls f for a contender, with its name as a profiler label. The goroutines that f
// starts inherit the label, including those of connections.
func runLabeled(ctx context.Context, c contender, f func(context.Context) error) (err error) {
	pprof.Do(ctx, pprof.Labels("contender", c.name), func(ctx context.Context) { err = f(ctx) })
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// connect connects as many clients of each contender as its measurements need. Each of them
// acquires a lock once, because most contenders open their connections and sessions with the first
// lock.
func (b *bench) connect(ctx context.Context) error {
	for _, c := range b.contenders {
		need := 2
		for _, k := range b.contests {
			if b.takesPart(c, k) {
				need = max(need, k.Clients)
			}
		}
		err := runLabeled(ctx, c, func(ctx context.Context) error {
			for i := range need {
				cl, err := c.connect(ctx, i)
				if err != nil {
					return err
				}
				b.clients[c.name] = append(b.clients[c.name], cl)
				if c.contestsOnly {
					continue
				}
				unlock, err := lockWithin(ctx, cl, b.newLockName(), callTimeout)
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

// takesPart reports whether a contender takes part in a contest.
func (b *bench) takesPart(c contender, k contest) bool { return c.takesPart == nil || c.takesPart(k) }

// newLockName returns the name of a lock that was never used.
func (b *bench) newLockName() string { return fmt.Sprintf("bench-%d-%d", os.Getpid(), b.names.Add(1)) }

// rotated returns the contenders in the order of the n-th measurement.
func (b *bench) rotated(n int) []contender {
	k := n % len(b.contenders)
	return slices.Concat(b.contenders[k:], b.contenders[:k])
}

// lockWithin acquires a lock, or gives it up after the timeout. It then returns a nil unlock and no
// error.
func lockWithin(ctx context.Context, c client, name string, timeout time.Duration) (unlock func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(timeout, cancel)
	release, err := c.Lock(ctx, name)
	if timer.Stop() || err == nil && ctx.Err() == nil {
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

// measureInTurns lets the contenders take turns until each has run for about one slice in total.
func (b *bench) measureInTurns(
	ctx context.Context, round int, results map[string]*uncontended, measure func(context.Context, contender, *uncontended) error,
) error {
	runtime.GC()
	for n, start := 0, time.Now(); time.Since(start) < time.Duration(len(b.contenders))*b.slice; n++ {
		for _, c := range b.rotated(round + n) {
			if c.contestsOnly {
				continue
			}
			if results[c.name] == nil {
				results[c.name] = &uncontended{locks: series{nil}, unlocks: series{nil}, pairs: series{nil}, handOvers: series{nil}, locksAfterPause: series{nil}}
			}
			if err := runLabeled(ctx, c, func(ctx context.Context) error { return measure(ctx, c, results[c.name]) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// add appends the measurements of one round.
func (a *uncontended) add(round *uncontended) {
	for _, s := range [][2]*series{
		{&a.locks, &round.locks},
		{&a.unlocks, &round.unlocks},
		{&a.pairs, &round.pairs},
		{&a.handOvers, &round.handOvers},
		{&a.locksAfterPause, &round.locksAfterPause},
	} {
		*s[0] = append(*s[0], (*s[1])[0]) // even if it is empty, because ratios compare within a round
	}
	a.commands = append(a.commands, round.commands...)
	a.givenUp += round.givenUp
}

// measurePairs measures lock and unlock without competition.
func (b *bench) measurePairs(ctx context.Context, c contender, a *uncontended) error {
	name, end := b.newLockName(), time.Now().Add(b.slice/4)
	before, pairs := 0, 0
	for n := 0; n <= blockSize && (n < 3 || time.Now().Before(end)); n++ {
		start := time.Now()
		unlock, err := lockWithin(ctx, b.clients[c.name][0], name, callTimeout)
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
		if n == 0 { // the first pair may create directories
			if before, err = b.commandCount(ctx); err != nil {
				return err
			}
			continue
		}
		pairs++
		a.locks[0] = append(a.locks[0], locked.Sub(start))
		a.unlocks[0] = append(a.unlocks[0], done.Sub(locked))
		a.pairs[0] = append(a.pairs[0], done.Sub(start))
	}
	after, err := b.commandCount(ctx)
	if pairs > 0 {
		a.commands = append(a.commands, float64(after-before)/float64(pairs))
	}
	return err
}

// measureHandOvers measures the time from just before one client releases until Lock returns in the
// other client, which is the only waiter.
func (b *bench) measureHandOvers(ctx context.Context, c contender, a *uncontended) error {
	type admission struct {
		at     time.Time
		unlock func() error
		err    error
	}
	name, end := b.newLockName(), time.Now().Add(b.slice/2)
	for n := 0; n <= blockSize && (n < 3 || time.Now().Before(end)); n++ {
		holder, waiter := b.clients[c.name][n%2], b.clients[c.name][(n+1)%2]
		start := time.Now()
		unlock, err := lockWithin(ctx, holder, name, callTimeout)
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
			unlock, err := lockWithin(ctx, waiter, name, callTimeout)
			admitted <- admission{time.Now(), unlock, err}
		}()
		time.Sleep(b.handOverDelay(n))
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
			a.handOvers[0], a.locksAfterPause[0] = append(a.handOvers[0], got.at.Sub(start)), append(a.locksAfterPause[0], locked)
		}
		time.Sleep(min(b.handOverDelay(n), 10*time.Millisecond))
	}
	return nil
}

// measureContest measures one round of a contest.
func (b *bench) measureContest(ctx context.Context, round int, k contest) (err error) {
	if k.Noise {
		stop := b.noise(ctx)
		defer func() {
			rate, e := stop()
			b.noiseRates[k], err = append(b.noiseRates[k], rate), errors.Join(err, e)
		}()
	}
	if b.contestResults[k] == nil {
		b.contestResults[k] = make(map[string]*contestResult)
	}
	for _, c := range b.rotated(round) {
		if !b.takesPart(c, k) {
			continue
		}
		runtime.GC()
		if b.contestResults[k][c.name] == nil {
			b.contestResults[k][c.name] = &contestResult{}
		}
		err := runLabeled(ctx, c, func(ctx context.Context) error { return b.measureContender(ctx, c, k, b.contestResults[k][c.name]) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) measureContender(ctx context.Context, c contender, k contest, t *contestResult) error {
	clients, name := b.clients[c.name][:k.Clients], b.newLockName()
	for _, cl := range clients {
		if p, ok := cl.(preparer); ok {
			if err := p.prepare(ctx, name); err != nil {
				return err
			}
		}
	}
	before, err := b.commandCount(ctx)
	if err != nil {
		return err
	}
	slice := b.slice * time.Duration(max(b.contestSlices, 1))
	o, err := runContest(ctx, clients, name, k.Hold, slice)
	if err != nil {
		return err
	}
	after, err := b.commandCount(ctx)
	acquired := 0
	for _, n := range o.acquired {
		acquired += n
	}
	t.handOvers = append(t.handOvers, o.handOvers)
	t.rates = append(t.rates, float64(acquired)/slice.Seconds())
	t.commands = append(t.commands, float64(after-before)/float64(max(acquired, 1)))
	t.maxAcquired, t.minAcquired = append(t.maxAcquired, slices.Max(o.acquired)), append(t.minAcquired, slices.Min(o.acquired))
	t.violations += o.violations
	t.givenUp += o.givenUp
	return err
}
