package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// Limits of what kept locks cost.
const (
	minLocksAgain = 500_000 // a second, in memory
	maxNewcomer   = 2.1     // times an uncontended Lock
)

// lingering keep a lock for longer than a round takes.
var lingering = &stile.Options{TTL: sessionTTL, Linger: time.Minute}

// measureLinger measures how often a client can lock a lock again that it keeps, and how long another client's Lock
// takes then.
func (e *etcd) measureLinger(ctx context.Context, c config, r *report) error {
	inMemory, err := locksAgain(ctx, c, memstore.New())
	if err != nil {
		return err
	}
	st, err := e.store()
	if err != nil {
		return err
	}
	onEtcd, err := locksAgain(ctx, c, st)
	if err != nil {
		return err
	}
	newcomer, err := e.measureNewcomer(ctx, c)
	if err != nil {
		return err
	}
	r.About = append(r.About, fmt.Sprintf("a client that keeps its lock locks and releases it %.0f times a second on etcd", onEtcd.Median))
	r.Timed = append(r.Timed, newcomer.rows(keptByAnother)...)
	r.Expected = append(r.Expected,
		expectation{"a kept lock, in memory: locked and released again per second", inMemory, minLocksAgain, false},
		expectation{"Lock, kept by another client / free", newcomer.ratio(keptByAnother, free), maxNewcomer, true})
	return nil
}

// locksAgain returns how often a second a client locks and releases a lock that it keeps. Each hold has a larger token.
func locksAgain(ctx context.Context, c config, st store.Store) (_ *ratio, err error) {
	client, err := stile.New(st, lingering)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.Close(context.WithoutCancel(ctx))) }()
	m := client.Mutex("linger/again")
	var perSecond []float64
	var last uint64
	for range c.rounds {
		n, began := 0, time.Now()
		for ; n%1000 != 0 || time.Since(began) < c.slice; n++ { // reading the clock takes a tenth of the time
			h, err := m.Lock(ctx)
			if err != nil {
				return nil, err
			}
			if h.Token() <= last {
				return nil, fmt.Errorf("got token %d after %d", h.Token(), last)
			}
			last = h.Token()
			if err := h.Release(ctx); err != nil {
				return nil, err
			}
		}
		perSecond = append(perSecond, float64(n)/time.Since(began).Seconds())
	}
	return spread(perSecond), nil
}

// newcomerPause is the time before each Lock. An idle client is slower than a busy one, so it is the same for both.
const newcomerPause = 10 * time.Millisecond

// The situations in which a newcomer locks.
const (
	keptByAnother = "kept by another client"
	free          = "free"
)

// measureNewcomer measures Lock of a lock that another client keeps, and of one that nobody wants, alternately.
func (e *etcd) measureNewcomer(ctx context.Context, c config) (*timed, error) {
	keeper, err := e.stile(lingering)
	if err != nil {
		return nil, err
	}
	defer keeper.Close()
	newcomer, err := e.connectStile(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer newcomer.Close()
	m := newTimed("Lock")
	for range c.rounds {
		took := make(map[string][]time.Duration)
		for began := time.Now(); len(took) == 0 || time.Since(began) < c.slice; {
			if _, err := lockOnce(ctx, keeper, "linger/kept"); err != nil {
				return nil, err
			}
			for _, name := range []string{keptByAnother, free} {
				lock := "linger/kept"
				if name == free {
					lock = "linger/free"
				}
				time.Sleep(newcomerPause) // the keeper watches for others now
				d, err := lockOnce(ctx, newcomer, lock)
				if err != nil {
					return nil, err
				}
				took[name] = append(took[name], d)
			}
		}
		m.add(keptByAnother, took[keptByAnother])
		m.add(free, took[free])
	}
	return m, nil
}

// lockOnce locks and releases a lock, and returns how long Lock took.
func lockOnce(ctx context.Context, c client, name string) (time.Duration, error) {
	began := time.Now()
	unlock, err := c.Lock(ctx, name)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	return took, unlock(ctx)
}
