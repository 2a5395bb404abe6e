package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// variant is one of the things that are compared.
type variant int

const (
	raw variant = iota
	stock
	ours
	variants
)

func (v variant) String() string { return [variants]string{"raw", "concurrency.Mutex", "Stile"}[v] }

// mostClients is the number of clients in the largest contest.
const mostClients = 32

// contests returns what is fought, in the order of the report.
func contests() []contest {
	var all []contest
	for _, clients := range []int{2, 10, mostClients} {
		for _, hold := range []time.Duration{0, 3 * time.Millisecond} {
			for _, puts := range []bool{false, true} {
				all = append(all, contest{clients, hold, puts})
			}
		}
	}
	return all
}

// bench is one run of the program.
type bench struct {
	etcd   *etcd
	rounds int
	slice  time.Duration
	began  time.Time

	connections []*clientv3.Client
	clients     [variants][]client
	other       *clientv3.Client // for what is not measured

	pairs    [variants]series // of Lock and Unlock together, and apart
	locks    [variants]series
	unlocks  [variants]series
	contests []*contestResult
	took     time.Duration
}

// contestResult is what the rounds of one contest have shown.
type contestResult struct {
	contest
	handOvers  [variants]series
	duel       series              // raw hand-overs while the one who releases queues again
	rates      [variants][]float64 // acquisitions a second, by round; none for raw
	violations [variants]int
	putRates   []float64 // unrelated puts a second, by round
}

func (b *bench) violations() int {
	n := 0
	for _, c := range b.contests {
		for _, v := range c.violations {
			n += v
		}
	}
	return n
}

// measure connects all clients, warms them up, and goes the rounds.
func (b *bench) measure(ctx context.Context) (err error) {
	if b.other, err = b.dial(); err != nil {
		return err
	}
	for v, count := range [variants]int{raw: 2, stock: mostClients, ours: mostClients} {
		if err := b.connect(ctx, variant(v), count); err != nil {
			return fmt.Errorf("connect %v: %w", variant(v), err)
		}
	}
	if err := b.warmUp(ctx); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	for _, c := range contests() {
		b.contests = append(b.contests, &contestResult{contest: c})
	}
	defer fmt.Fprintln(os.Stderr) // the line of progress ends
	for round := range b.rounds {
		if err := b.compact(ctx); err != nil {
			return fmt.Errorf("compact: %w", err)
		}
		b.progress(round, "uncontended")
		if err := b.uncontended(ctx, round); err != nil {
			return fmt.Errorf("uncontended: %w", err)
		}
		for _, c := range b.contests {
			b.progress(round, c.String())
			if err := b.contended(ctx, round, c); err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
		}
	}
	b.took = time.Since(b.began)
	return nil
}

func (b *bench) progress(round int, what string) {
	took := time.Since(b.began).Round(time.Second)
	fmt.Fprintf(os.Stderr, "\r\x1b[K%v  round %d of %d: %s", took, round+1, b.rounds, what)
}

// labelled runs f with a label for the profile. The goroutines that f starts inherit it, those of connections too.
func labelled(ctx context.Context, v variant, f func(context.Context) error) (err error) {
	name := [variants]string{"raw", "stock", "stile"}[v]
	pprof.Do(ctx, pprof.Labels("variant", name), func(ctx context.Context) { err = f(ctx) })
	return err
}

// dial returns a new connection, which lasts as long as the bench.
func (b *bench) dial() (*clientv3.Client, error) {
	cli, err := b.etcd.client()
	if err == nil {
		b.connections = append(b.connections, cli)
	}
	return cli, err
}

func (b *bench) connect(ctx context.Context, v variant, count int) error {
	connector := [variants]connector{connectRaw, connectStock, connectStile}[v]
	return labelled(ctx, v, func(ctx context.Context) error {
		for range count {
			cli, err := b.dial()
			if err != nil {
				return err
			}
			c, err := connector(ctx, cli)
			if err != nil {
				return err
			}
			b.clients[v] = append(b.clients[v], c)
		}
		return nil
	})
}

func (b *bench) close() {
	for _, cli := range b.connections {
		_ = cli.Close()
	}
}

// warmUp does a little of everything and throws the measurements away.
func (b *bench) warmUp(ctx context.Context) error {
	warm := bench{etcd: b.etcd, slice: min(b.slice, 500*time.Millisecond), clients: b.clients, other: b.other}
	if err := warm.uncontended(ctx, -1); err != nil {
		return err
	}
	for _, clients := range []int{2, mostClients} {
		c := &contestResult{contest: contest{clients: clients}}
		if err := warm.contended(ctx, -1, c); err != nil {
			return err
		}
	}
	return nil
}

// compact forgets the history of all keys, so that the rounds begin alike.
func (b *bench) compact(ctx context.Context) error {
	resp, err := b.other.Put(ctx, "compaction", "")
	if err != nil {
		return err
	}
	_, err = b.other.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
	return err
}

// turns returns the variants in the order in which they are measured in a round.
func turns(round int) []variant {
	order := []variant{raw, stock, ours}
	k := (round + len(order)) % len(order)
	return slices.Concat(order[k:], order[:k])
}

// block is how many uncontended pairs one variant does before it is the next one's turn.
const block = 25

// uncontended measures Lock and Unlock of locks that nobody else wants, for a slice per variant.
func (b *bench) uncontended(ctx context.Context, round int) error {
	var locks, unlocks, pairs [variants][]time.Duration
	runtime.GC()
	order := turns(round)
	for n, start := 0, time.Now(); time.Since(start) < time.Duration(len(order))*b.slice; n++ {
		for _, v := range turns(round + n) {
			err := labelled(ctx, v, func(ctx context.Context) error {
				l := b.clients[v][0].lock(fmt.Sprintf("uncontended/%d/%d/%d", round, n, v))
				for range block {
					start := time.Now()
					if err := l.Lock(ctx); err != nil {
						return err
					}
					locked := time.Now()
					if err := l.Unlock(ctx); err != nil {
						return err
					}
					done := time.Now()
					locks[v] = append(locks[v], locked.Sub(start))
					unlocks[v] = append(unlocks[v], done.Sub(locked))
					pairs[v] = append(pairs[v], done.Sub(start))
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%v: %w", v, err)
			}
		}
	}
	for v := range variants {
		b.locks[v] = append(b.locks[v], locks[v])
		b.unlocks[v] = append(b.unlocks[v], unlocks[v])
		b.pairs[v] = append(b.pairs[v], pairs[v])
	}
	return nil
}

// contended measures one round of a contest. The raw hand-over is between two.
func (b *bench) contended(ctx context.Context, round int, c *contestResult) (err error) {
	if c.puts {
		stop := startPuts(ctx, b.other)
		defer func() {
			rate, putErr := stop()
			c.putRates = append(c.putRates, rate)
			err = errors.Join(err, putErr)
		}()
	}
	for _, v := range turns(round) {
		if v == raw && c.clients > 2 {
			continue
		}
		runtime.GC()
		name := fmt.Sprintf("contest/%d/%d/%v/%t/%d", round, c.clients, c.hold, c.puts, v)
		if err := labelled(ctx, v, func(ctx context.Context) error { return b.slot(ctx, v, c, name) }); err != nil {
			return fmt.Errorf("%v: %w", v, err)
		}
	}
	return nil
}

// slot is one variant's slice of a contest.
func (b *bench) slot(ctx context.Context, v variant, c *contestResult, name string) error {
	if v == raw {
		two := [2]*rawClient{b.clients[raw][0].(*rawClient), b.clients[raw][1].(*rawClient)}
		alone, err := rawHandOvers(ctx, two, name+"/alone", c.hold, b.slice, false)
		if err != nil {
			return err
		}
		duel, err := rawHandOvers(ctx, two, name+"/duel", c.hold, b.slice, true)
		c.handOvers[raw], c.duel = append(c.handOvers[raw], alone), append(c.duel, duel)
		return err
	}
	var locks []lock
	for _, cl := range b.clients[v][:c.clients] {
		locks = append(locks, cl.lock(name))
	}
	o, err := fight(ctx, locks, c.hold, b.slice)
	c.handOvers[v] = append(c.handOvers[v], o.handOvers)
	c.rates[v] = append(c.rates[v], float64(o.acquired)/b.slice.Seconds())
	c.violations[v] += o.violations
	return err
}
