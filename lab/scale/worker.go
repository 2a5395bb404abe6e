//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/etcdstore"
)

// contenders are the locks that are measured.
var contenders = []string{"stile", "concurrency.Mutex"}

// ttl is that of all sessions, long enough for a busy machine.
const ttl = time.Minute

// worker is a process with some of the waiters.
type worker struct {
	endpoint  string
	contender string
	waiters   int
	flock     string
}

// flags defines the flags with which a worker is started.
func (w *worker) flags(flags *flag.FlagSet) {
	flags.StringVar(&w.endpoint, "endpoint", "", "for internal use: run a worker")
	flags.StringVar(&w.contender, "contender", "", "for internal use")
	flags.StringVar(&w.flock, "flock", "", "for internal use")
	flags.IntVar(&w.waiters, "n", 0, "for internal use")
}

// run waits for the lock with each of the worker's sessions, and returns when all have had it.
func (w *worker) run(ctx context.Context) error {
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{w.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer cli.Close()
	errs := make([]error, w.waiters)
	var running sync.WaitGroup
	for i := range errs {
		running.Go(func() { errs[i] = w.pass(ctx, cli) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// pass waits for the lock and releases it.
func (w *worker) pass(ctx context.Context, cli *clientv3.Client) error {
	unlock, err := lockWith(ctx, w.contender, cli)
	if err != nil {
		return err
	}
	f, err := os.Open(w.flock)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("two waiters hold the lock at once: %w", err)
	}
	if err := f.Close(); err != nil { // ends the flock
		return err
	}
	return unlock(ctx)
}

// lockWith acquires the lock with a session of its own. unlock releases it and closes the session.
func lockWith(ctx context.Context, contender string, cli *clientv3.Client) (unlock func(context.Context) error, err error) {
	if contender == "stile" {
		st, err := etcdstore.New(cli, nil)
		if err != nil {
			return nil, err
		}
		c, err := stile.New(st, &stile.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		hold, err := c.Mutex(lockName).Lock(ctx)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return errors.Join(hold.Release(ctx), c.Close(ctx)) }, nil
	}
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(int(ttl.Seconds())), concurrency.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	mutex := concurrency.NewMutex(session, lockName)
	if err := mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return errors.Join(mutex.Unlock(ctx), session.Close()) }, nil
}
