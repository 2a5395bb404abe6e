package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// rtt is how long a round trip takes through the relay.
const rtt = 8 * time.Millisecond

// stuck is how long one call may take before it is given up and counted.
const stuck = 5 * time.Second

// crowd is how many clients want the lock in a contest.
const crowd = 16

// A link is a way to the server.
type link struct {
	name string
	addr string
}

// result is what was measured of one variant on one link in one round.
type result struct {
	pair     []time.Duration // nobody else wants the lock: Lock and unlock
	handover []time.Duration // from just before the unlock until Lock returns in the other client
	stuck    int             // calls that were given up

	acquired  int           // in the contest
	took      time.Duration // the contest
	commands  int           // that the server carried out during the contest
	least     int           // acquisitions of the client that had fewest
	most      int           // and of the one that had most
	violation int           // two in the lock at once
}

type bench struct {
	server *redis
	rounds int
	slice  time.Duration
	began  time.Time

	version string
	links   []link
	results map[string]map[string][]result // by link and variant
	names   atomic.Int64
}

func (b *bench) name() string { return fmt.Sprintf("bench/%d/%d", os.Getpid(), b.names.Add(1)) }

func (b *bench) measure(ctx context.Context) error {
	var err error
	if b.version, err = b.server.info("server", "redis_version"); err != nil {
		return err
	}
	slow, err := startRelay(b.server.addr, rtt/2)
	if err != nil {
		return err
	}
	defer slow.close()
	b.links = []link{{"loopback", b.server.addr}, {fmt.Sprintf("RTT %v", rtt), slow.listener.Addr().String()}}
	b.results = make(map[string]map[string][]result)
	for _, l := range b.links {
		b.results[l.name] = make(map[string][]result)
	}
	for round := range b.rounds {
		for i := range variants {
			v := variants[(i+round)%len(variants)]
			for _, l := range b.links {
				r, err := b.one(ctx, v, l)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", v.name, l.name, err)
				}
				b.results[l.name][v.name] = append(b.results[l.name][v.name], r)
			}
		}
	}
	return nil
}

// one measures one variant on one link.
func (b *bench) one(ctx context.Context, v variant, l link) (r result, err error) {
	clients := make([]*client, 0, crowd)
	defer func() {
		var closing sync.WaitGroup
		for _, c := range clients {
			closing.Go(c.close)
		}
		closing.Wait()
	}()
	for range crowd {
		c, err := v.connect(l.addr)
		if err != nil {
			return r, err
		}
		clients = append(clients, c)
		// Connections and sessions are opened with the first lock.
		unlock, err := b.lock(ctx, &result{}, c, b.name())
		if err == nil && unlock != nil {
			err = unlock()
		}
		if err != nil {
			return r, err
		}
	}
	if err := b.pairs(ctx, &r, clients[0]); err != nil {
		return r, err
	}
	if err := b.handovers(ctx, &r, clients[0], clients[1]); err != nil {
		return r, err
	}
	return r, b.contest(ctx, &r, clients)
}

// lock is the client's, given up when it takes too long.
func (b *bench) lock(ctx context.Context, r *result, c *client, name string) (unlock func() error, err error) {
	// With some the lock ends with the context: so that may end only if there is none.
	ctx, cancel := context.WithCancel(ctx)
	patience := time.AfterFunc(stuck, cancel)
	release, err := c.lock(ctx, name)
	switch {
	case patience.Stop() || err == nil && ctx.Err() == nil:
	case err == nil:
		_ = release()
		fallthrough
	default:
		r.stuck++
		return nil, nil
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return func() error { defer cancel(); return release() }, nil
}

func (b *bench) pairs(ctx context.Context, r *result, c *client) error {
	name := b.name()
	for end := time.Now().Add(b.slice / 2); time.Now().Before(end); {
		start := time.Now()
		unlock, err := b.lock(ctx, r, c, name)
		if err != nil {
			return err
		}
		if unlock == nil {
			continue
		}
		if err := unlock(); err != nil {
			return err
		}
		r.pair = append(r.pair, time.Since(start))
	}
	if len(r.pair) > 2 {
		r.pair = r.pair[len(r.pair)/10:] // the first ones open connections
	}
	return nil
}

func (b *bench) handovers(ctx context.Context, r *result, one, other *client) error {
	name := b.name()
	for i, end := 0, time.Now().Add(b.slice); time.Now().Before(end) || i < 3; i++ {
		if i%2 == 1 {
			one, other = other, one
		}
		unlock, err := b.lock(ctx, r, one, name)
		if err != nil {
			return err
		}
		if unlock == nil {
			break
		}
		var got time.Time
		var lockErr error
		var second result
		var waiting sync.WaitGroup
		waiting.Go(func() {
			release, err := b.lock(ctx, &second, other, name)
			got = time.Now()
			if lockErr = err; release != nil {
				lockErr = release()
			}
		})
		// Long enough for the other to have asked, and uneven, so that those who poll are met at any moment.
		time.Sleep(3*rtt + time.Duration(i*7919%20000)*time.Microsecond)
		start := time.Now()
		if err := unlock(); err != nil {
			return err
		}
		waiting.Wait()
		if lockErr != nil {
			return lockErr
		}
		if r.stuck += second.stuck; second.stuck == 0 {
			r.handover = append(r.handover, got.Sub(start))
		}
	}
	return nil
}

func (b *bench) contest(ctx context.Context, r *result, clients []*client) error {
	name := b.name()
	ctx, cancel := context.WithTimeout(ctx, 2*b.slice)
	defer cancel()
	before, err := b.server.commands()
	if err != nil {
		return err
	}
	start := time.Now()
	counts := make([]int, len(clients))
	errs := make([]error, len(clients))
	var inside, violations atomic.Int32
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				unlock, err := c.lock(ctx, name)
				if err != nil {
					if ctx.Err() == nil {
						errs[i] = err
					}
					return
				}
				if inside.Add(1) > 1 {
					violations.Add(1)
				}
				counts[i]++
				inside.Add(-1)
				if err := unlock(); err != nil && ctx.Err() == nil {
					errs[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	r.took = time.Since(start)
	after, err := b.server.commands()
	if err != nil {
		return err
	}
	r.commands = after - before
	r.least, r.most = slices.Min(counts), slices.Max(counts)
	for _, n := range counts {
		r.acquired += n
	}
	r.violation = int(violations.Load())
	return errors.Join(errs...)
}

func (b *bench) violations() (n int) {
	for _, byVariant := range b.results {
		for _, rounds := range byVariant {
			for _, r := range rounds {
				n += r.violation
			}
		}
	}
	return n
}
