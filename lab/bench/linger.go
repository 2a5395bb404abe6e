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

// lingering are options with which a client keeps a lock for longer than a round takes.
var lingering = &stile.Options{TTL: sessionTTL, Linger: time.Minute}

// measureLinger measures how often a client can lock a lock again that it keeps, and how long another client's Lock
// takes then.
func (e *etcd) measureLinger(ctx context.Context, c config, base setting, r *report) error {
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
	newcomer, err := e.measureNewcomer(ctx, c, base)
	if err != nil {
		return err
	}
	r.About = append(r.About, fmt.Sprintf("a client that keeps its lock locks and releases it %v times a second on etcd", onEtcd))
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
		for ; n%1000 != 0 || time.Since(began) < c.slice; n++ { // reading the clock each time would count
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

// newcomerPause is the time before each Lock of a newcomer. A client is slower after a pause, so both cases have it.
const newcomerPause = 10 * time.Millisecond

// The situations in which a newcomer locks.
const (
	keptByAnother = "kept by another client"
	free          = "free"
)

// measureNewcomer measures Lock of a lock that another client keeps, and of a free one, alternately.
func (e *etcd) measureNewcomer(ctx context.Context, c config, base setting) (_ *timed, err error) {
	var clients []*stile.Client
	defer func() {
		for _, client := range clients {
			stileClient{client, func() {}}.Close()
		}
	}()
	for _, opts := range []*stile.Options{lingering, {TTL: sessionTTL}} {
		st, err := e.store()
		if err != nil {
			return nil, err
		}
		client, err := stile.New(st, opts)
		if err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	keeper, newcomer := clients[0], clients[1]
	m := newTimed("Lock")
	for range c.rounds {
		if err := base.beforeRound(ctx); err != nil {
			return nil, err
		}
		var whileKept, whileFree []time.Duration
		for began := time.Now(); len(whileKept) == 0 || time.Since(began) < c.slice; {
			if _, err := lockOnce(ctx, keeper.Mutex("linger/kept")); err != nil {
				return nil, err
			}
			l, err := keeper.Line(ctx, "linger/kept")
			if err != nil {
				return nil, err
			}
			time.Sleep(newcomerPause) // the keeper watches for others now
			took, err := lockOnce(ctx, newcomer.Mutex("linger/kept"))
			if err != nil {
				return nil, err
			}
			if len(l.Holders) > 0 { // a client whose renewal is late keeps nothing
				whileKept = append(whileKept, took)
			}
			time.Sleep(newcomerPause)
			if took, err = lockOnce(ctx, newcomer.Mutex("linger/free")); err != nil {
				return nil, err
			}
			whileFree = append(whileFree, took)
		}
		m.add(keptByAnother, whileKept)
		m.add(free, whileFree)
	}
	return m, nil
}

// lockOnce locks and releases a lock, and returns how long Lock took.
func lockOnce(ctx context.Context, m *stile.Mutex) (time.Duration, error) {
	began := time.Now()
	h, err := m.Lock(ctx)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	return took, h.Release(ctx)
}
