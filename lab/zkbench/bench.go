package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// variant is one of the things that are compared.
type variant int

const (
	raw variant = iota
	stock
	ours
	variants
)

func (v variant) String() string { return [variants]string{"raw", "go-zookeeper's Lock", "Stile"}[v] }

// series are measurements, by turn.
type series [][]time.Duration

// bench is what is measured on one ensemble.
type bench struct {
	turns, block int

	clients [variants][2]client

	locks, unlocks, pairs [variants]series // of who is alone
	handOvers             [variants]series
	creates               series // raw ones, after a pause as before each hand-over
}

// connect opens two clients of each variant, each with one of the servers.
func (b *bench) connect(ctx context.Context, servers [2]string) (err error) {
	connect := [variants]func(context.Context, string) (client, error){connectRaw, connectStock, connectStile}
	for v := range variants {
		for i, server := range servers {
			if b.clients[v][i], err = connect[v](ctx, server); err != nil {
				return fmt.Errorf("connecting %v: %w", v, err)
			}
		}
	}
	return nil
}

func (b *bench) close() {
	for _, two := range b.clients {
		for _, c := range two {
			if c != nil {
				c.close()
			}
		}
	}
}

// measure goes the turns. The first few warm up the servers, and are not counted.
func (b *bench) measure(ctx context.Context) error {
	const warmUp = 10
	for turn := -warmUp; turn < b.turns; turn++ {
		runtime.GC()
		for i := range variants {
			v := (i + variant(turn+warmUp)) % variants // another order each time
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := b.alone(v, turn); err != nil {
				return fmt.Errorf("%v: %w", v, err)
			}
			handOver := b.handOver
			if v == raw {
				handOver = b.rawHandOver
			}
			if err := handOver(v, turn); err != nil {
				return fmt.Errorf("%v: %w", v, err)
			}
		}
	}
	return nil
}

// alone measures a lock that nobody else wants.
func (b *bench) alone(v variant, turn int) error {
	l := b.clients[v][0].lock(fmt.Sprintf("alone-%d-%d", turn, v))
	var locks, unlocks, pairs []time.Duration
	for n := range b.block + 1 {
		start := time.Now()
		if err := l.Lock(); err != nil {
			return err
		}
		locked := time.Now()
		if err := l.Unlock(); err != nil {
			return err
		}
		done := time.Now()
		if n == 0 {
			continue // directories are made
		}
		locks = append(locks, locked.Sub(start))
		unlocks = append(unlocks, done.Sub(locked))
		pairs = append(pairs, done.Sub(start))
	}
	if turn >= 0 {
		b.locks[v] = append(b.locks[v], locks)
		b.unlocks[v] = append(b.unlocks[v], unlocks)
		b.pairs[v] = append(b.pairs[v], pairs)
	}
	return nil
}

// settled is how long who waits has for whatever it does until it waits.
const settled = 10 * time.Millisecond

// handOver measures, with one entry ahead, the time from just before one client releases until the other has the lock.
func (b *bench) handOver(v variant, turn int) error {
	name := fmt.Sprintf("hand-over-%d-%d", turn, v)
	locks := [2]lock{b.clients[v][0].lock(name), b.clients[v][1].lock(name)}
	if err := locks[0].Lock(); err != nil {
		return err
	}
	type admission struct {
		at  time.Time
		err error
	}
	var times []time.Duration
	for n := range b.block + 1 {
		holder, waiter := locks[n%2], locks[(n+1)%2]
		admitted := make(chan admission, 1)
		go func() {
			err := waiter.Lock()
			admitted <- admission{time.Now(), err}
		}()
		time.Sleep(settled)
		start := time.Now()
		if err := holder.Unlock(); err != nil {
			return err
		}
		a := <-admitted
		if a.err != nil {
			return a.err
		}
		if n > 0 {
			times = append(times, a.at.Sub(start))
		}
	}
	if turn >= 0 {
		b.handOvers[v] = append(b.handOvers[v], times)
	}
	return locks[(b.block+1)%2].Unlock()
}

// rawHandOver measures the floor under every hand-over: from just before one client deletes a node until another hears of
// it. And, because machines that have paused take longer for everything, a create after the same pause.
func (b *bench) rawHandOver(v variant, turn int) error {
	name := fmt.Sprintf("hand-over-%d-%d", turn, v)
	var locks [2]*rawLock
	for i, c := range b.clients[v] {
		locks[i] = c.lock(name).(*rawLock)
		locks[i].made = i > 0
	}
	var times, creates []time.Duration
	for n := range b.block + 1 {
		holder, waiter := locks[n%2], locks[(n+1)%2]
		if n > 0 {
			time.Sleep(settled)
		}
		start := time.Now()
		if err := holder.Lock(); err != nil {
			return err
		}
		create := time.Since(start)
		if _, err := waiter.conn.Sync(holder.node); err != nil { // the other's server may not have heard of it
			return err
		}
		_, _, deleted, err := waiter.conn.GetW(holder.node)
		if err != nil {
			return err
		}
		time.Sleep(settled)
		start = time.Now()
		if err := holder.Unlock(); err != nil {
			return err
		}
		<-deleted
		if n > 0 {
			times, creates = append(times, time.Since(start)), append(creates, create)
		}
	}
	if turn >= 0 {
		b.handOvers[v], b.creates = append(b.handOvers[v], times), append(b.creates, creates)
	}
	return nil
}

// report prints what was measured on n servers, as a table in Markdown.
func (b *bench) report(n int) {
	where := "one server"
	if n > 1 {
		where = fmt.Sprintf("%d servers, clients of two followers", n)
	}
	create := b.locks[raw]
	fmt.Printf("\n%s: medians, and their ratios to one raw create (the middle half of the turns)\n", where)
	fmt.Printf("a raw create after a pause, as before each hand-over: %s\n\n", cell(b.creates, create))
	fmt.Println("| | lock | release | both | hand-over |")
	fmt.Println("|---|---|---|---|---|")
	for v := range variants {
		fmt.Printf("| %v | %s | %s | %s | %s |\n", v,
			cell(b.locks[v], create), cell(b.unlocks[v], create), cell(b.pairs[v], create), cell(b.handOvers[v], b.creates))
	}
}

func cell(s, base series) string {
	if len(s) == 0 {
		return "–"
	}
	var ratios []float64
	for i := range s {
		ratios = append(ratios, float64(median(s[i]))/float64(median(base[i])))
	}
	slices.Sort(ratios)
	q := func(x float64) float64 { return ratios[int(x*float64(len(ratios)-1))] }
	return fmt.Sprintf("%.2f ms, × %.2f (%.2f–%.2f)",
		float64(median(slices.Concat(s...)))/float64(time.Millisecond), q(0.5), q(0.25), q(0.75))
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}
