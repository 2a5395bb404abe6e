package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// distinctSizes are the numbers of goroutines that lock names of their own at once.
var distinctSizes = []int{2, 16, 256, 1000}

// distinct measures one client of each contender, shared by goroutines that each acquire and release a lock
// of their own in a loop.
type distinct struct {
	store      string
	goroutines int
	contenders []contender // the last one is the one that the others are compared with
	usage      usage

	pairs map[string]series
	rates map[string][]float64
	spent map[string][]spent // for each pair, by round
}

// usage counts what a server has done.
type usage struct {
	requests  func(context.Context) (int, error)
	processor func(context.Context) (time.Duration, error)
}

// spent is what pairs have cost the server and this process.
type spent struct {
	requests       float64
	client, server time.Duration // of the processors
}

// now returns what has been spent so far.
func (u usage) now(ctx context.Context) (spent, error) {
	requests, err := u.requests(ctx)
	if err != nil {
		return spent{}, err
	}
	server, err := u.processor(ctx)
	if err != nil {
		return spent{}, err
	}
	var self syscall.Rusage
	err = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	return spent{float64(requests), time.Duration(self.Utime.Nano() + self.Stime.Nano()), server}, err
}

// perPair returns what each of n pairs has cost since before.
func (s spent) perPair(before spent, n int) spent {
	n = max(n, 1)
	return spent{(s.requests - before.requests) / float64(n), (s.client - before.client) / time.Duration(n), (s.server - before.server) / time.Duration(n)}
}

// distinctRow has the figures of one contender. The ratio is Stile's rate divided by this contender's.
type distinctRow struct {
	Store      string
	Goroutines int
	Contender  string
	PerSecond  float64
	Rate       *ratio `json:",omitempty"`
	Pair       summary
	Requests   float64       // for each pair, as the two below
	Client     time.Duration // of the processors
	Server     time.Duration
}

func newDistinct(store string, goroutines int, contenders []contender, u usage) *distinct {
	return &distinct{
		store: store, goroutines: goroutines, contenders: contenders, usage: u,
		pairs: make(map[string]series), rates: make(map[string][]float64), spent: make(map[string][]spent),
	}
}

// measureDistinct measures all sizes. All use the same clients.
func measureDistinct(
	ctx context.Context, c config, store string, contenders []contender, beforeRound func(context.Context) error,
	u usage, r *report,
) error {
	clients := make(map[string]client)
	defer func() {
		for _, cl := range clients {
			cl.Close()
		}
	}()
	for _, k := range contenders {
		cl, err := k.connect(ctx, 0)
		if err != nil {
			return err
		}
		clients[k.name] = cl
	}
	for _, goroutines := range distinctSizes {
		d := newDistinct(store, goroutines, contenders, u)
		for round := range c.rounds {
			if err := beforeRound(ctx); err != nil {
				return err
			}
			for i := range contenders {
				k := contenders[(round+i)%len(contenders)]
				runtime.GC()
				err := runLabeled(ctx, k, func(ctx context.Context) error { return d.measure(ctx, k.name, clients[k.name], round, c.slice) })
				if err != nil {
					return fmt.Errorf("%s, %d names: %w", k.name, goroutines, err)
				}
			}
		}
		r.Distinct = append(r.Distinct, d.rows()...)
		r.Expected = append(r.Expected, d.expectations()...)
	}
	return nil
}

// measure measures one slice of one contender.
func (d *distinct) measure(ctx context.Context, name string, cl client, round int, slice time.Duration) error {
	before, err := d.usage.now(ctx)
	if err != nil {
		return err
	}
	pairs, err := lockDistinct(ctx, cl, fmt.Sprintf("distinct-%d-%d-%s", os.Getpid(), round, strings.ReplaceAll(name, "/", "-")), d.goroutines, slice)
	if err != nil {
		return err
	}
	after, err := d.usage.now(ctx)
	d.pairs[name] = append(d.pairs[name], pairs)
	d.rates[name] = append(d.rates[name], float64(len(pairs))/slice.Seconds())
	d.spent[name] = append(d.spent[name], after.perPair(before, len(pairs)))
	return err
}

// lockDistinct returns the times of the pairs that were completed within the slice.
func lockDistinct(ctx context.Context, cl client, name string, goroutines int, slice time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pairs := make([][]time.Duration, goroutines)
	end := time.Now().Add(slice)
	var running sync.WaitGroup
	for i := range goroutines {
		running.Go(func() {
			lock := fmt.Sprintf("%s-%04d", name, i)
			for start := time.Now(); start.Before(end) && ctx.Err() == nil; {
				unlock, err := cl.Lock(ctx, lock)
				if err == nil {
					err = unlock(ctx)
				}
				if err != nil {
					cancel(err)
					return
				}
				done := time.Now()
				if done.Before(end) {
					pairs[i] = append(pairs[i], done.Sub(start))
				}
				start = done
			}
		})
	}
	running.Wait()
	return slices.Concat(pairs...), context.Cause(ctx)
}

func (d *distinct) subject() string { return d.contenders[len(d.contenders)-1].name }

func (d *distinct) ratio(other string) *ratio { return compare(d.rates[d.subject()], d.rates[other]) }

func (d *distinct) rows() (rows []distinctRow) {
	for _, k := range d.contenders {
		row := distinctRow{
			Store: d.store, Goroutines: d.goroutines, Contender: k.name,
			PerSecond: median(d.rates[k.name]), Pair: d.pairs[k.name].summary(),
		}
		of := func(f func(spent) float64) float64 {
			var all []float64
			for _, s := range d.spent[k.name] {
				all = append(all, f(s))
			}
			return median(all)
		}
		row.Requests = of(func(s spent) float64 { return s.requests })
		row.Client = time.Duration(of(func(s spent) float64 { return float64(s.client) }))
		row.Server = time.Duration(of(func(s spent) float64 { return float64(s.server) }))
		if k.name != d.subject() {
			row.Rate = d.ratio(k.name)
		}
		rows = append(rows, row)
	}
	return rows
}

// expectations are for the numbers of goroutines with which the processors are the limit, and not the network
// and the disks.
func (d *distinct) expectations() []expectation {
	limits, some := map[int]struct{ raw, stock float64 }{256: {1.5, 2}, 1000: {1.8, 2}}[d.goroutines]
	if !some {
		return nil
	}
	what := fmt.Sprintf("%s, %d names: pairs/s, %s / ", d.store, d.goroutines, d.subject())
	return []expectation{
		{what + rawEtcd, d.ratio(rawEtcd), limits.raw, false},
		{what + stockMutex, d.ratio(stockMutex), limits.stock, false},
	}
}

func distinctTable(t *strings.Builder, all []distinctRow) {
	if len(all) == 0 {
		return
	}
	rows := [][]string{{"names, one goroutine each", "", "pairs/s", "Stile's / this one's", "pair", "requests per pair", "processor time per pair: client, server"}}
	for _, r := range all {
		rows = append(rows, []string{
			fmt.Sprintf("%s: %d", r.Store, r.Goroutines), r.Contender, fmt.Sprintf("%.0f", r.PerSecond), r.Rate.String(), r.Pair.String(), fmt.Sprintf("%.2f", r.Requests), formatDuration(r.Client) + ", " + formatDuration(r.Server),
		})
	}
	t.WriteString("\n")
	table(t, rows)
}
