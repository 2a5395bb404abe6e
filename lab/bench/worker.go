package main

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/stilelock/stile"
)

// workerFlag is the flag with which a worker process is started.
const workerFlag = "-worker="

// ready is what a worker writes when its clients are connected, and reads before it begins.
const ready = "ready\n"

// workerOutcome is the result of a worker. Began is on the clock of the turns.
type workerOutcome struct {
	Began int64
	Turns [][]turn // by goroutine
}

// A taker acquires a lock for goroutine i of a worker. All of them call it at once.
type taker func(ctx context.Context, i int, write bool) (release func(context.Context) error, err error)

// runWorker does a job and writes its outcome.
func runWorker(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	if j.Lead > 0 {
		return j.lead(ctx, in, out)
	}
	if j.Crash > 0 {
		return j.crash(ctx, in, out)
	}
	take, err := j.connect(ctx)
	if err != nil {
		return err
	}
	if err := j.awaitSignal(in, out); err != nil {
		return err
	}
	o, err := j.runGoroutines(ctx, take)
	if err != nil {
		return err
	}
	return gob.NewEncoder(out).Encode(o)
}

// awaitSignal reports that the worker is ready, and waits for the signal to begin.
func (j job) awaitSignal(in io.Reader, out io.Writer) error {
	if _, err := io.WriteString(out, ready); err != nil {
		return err
	}
	_, err := bufio.NewReader(in).ReadString('\n')
	return err
}

func (j job) now() int64 { return time.Now().UnixNano() - j.Epoch }

// runGoroutines lets all goroutines acquire and release the lock in a loop for the duration of the
// slice. Calls that are under way then are completed.
func (j job) runGoroutines(ctx context.Context, take taker) (workerOutcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	o := workerOutcome{Began: j.now(), Turns: make([][]turn, j.Crowd.Goroutines)}
	end := o.Began + j.Slice.Nanoseconds()
	loop := func(i int) error {
		// All contenders get the same sequence of readers and writers.
		random := rand.New(rand.NewPCG(uint64(j.First+i), 0))
		for {
			t := turn{Asked: j.now(), Write: j.Crowd.WriteEvery > 0 && random.IntN(j.Crowd.WriteEvery) == 0}
			if t.Asked >= end {
				return nil
			}
			release, err := take(ctx, i, t.Write)
			if err != nil {
				return fmt.Errorf("lock: %w", err)
			}
			t.From = j.now()
			time.Sleep(j.Crowd.Hold)
			t.To = j.now()
			if err := release(ctx); err != nil {
				return fmt.Errorf("unlock: %w", err)
			}
			o.Turns[i] = append(o.Turns[i], t)
		}
	}
	var running sync.WaitGroup
	for i := range j.Crowd.Goroutines {
		running.Go(func() {
			if err := loop(i); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return o, context.Cause(ctx)
}

// The contenders in crowds.
const (
	stileRWMutex   = "Stile's RWMutex"
	stileMutex     = "Stile's Mutex"
	stileSemaphore = "Stile's Semaphore"
	stileSharded   = "Stile's Mutex, one for each slot"
	recipeRWMutex  = "recipe.RWMutex"
	stockSharded   = "concurrency.Mutex, one for each slot"
)

// connect connects the worker's clients. All goroutines share a client of Stile, or a session of the
// recipe. The stock mutex needs a session for each goroutine.
func (j job) connect(ctx context.Context) (taker, error) {
	switch j.Contender {
	case recipeRWMutex:
		return j.connectRecipe()
	case stockSharded, stockMutex:
		return j.connectStock()
	}
	client, err := openStile(ctx, j.Store, j.Addr)
	if err != nil {
		return nil, err
	}
	hold, err := client.Mutex(fmt.Sprintf("%s-first-%d", j.Name, j.First)).Lock(ctx) // opens the session
	if err != nil {
		return nil, err
	}
	return j.stileTaker(client), hold.Release(ctx)
}

// openStile returns a client. It is never closed: it ends with the process and the server.
func openStile(ctx context.Context, store, addr string) (*stile.Client, error) {
	connect := (&etcd{endpoint: addr}).connectStile
	if store == "redis" {
		connect = redisStile(addr)
	}
	c, err := connect(ctx, 0)
	if err != nil {
		return nil, err
	}
	return c.(stileClient).client, nil
}

func (j job) stileTaker(client *stile.Client) taker {
	lock := func(ctx context.Context, i int, write bool) (*stile.Hold, error) {
		switch {
		case j.Contender == stileSemaphore:
			return client.Semaphore(j.Name, j.Crowd.Slots).Acquire(ctx)
		case j.Contender == stileSharded:
			return client.Mutex(j.slot(i)).Lock(ctx)
		case j.Contender == stileRWMutex && !write:
			return client.RWMutex(j.Name).RLock(ctx)
		default:
			return client.Mutex(j.Name).Lock(ctx)
		}
	}
	return func(ctx context.Context, i int, write bool) (func(context.Context) error, error) {
		hold, err := lock(ctx, i, write)
		if err != nil {
			return nil, err
		}
		return hold.Release, nil
	}
}

// slot returns the name of the lock that goroutine i uses if each slot is a lock of its own. A mutex is one
// slot.
func (j job) slot(i int) string {
	return fmt.Sprintf("%s-%d", j.Name, (j.First+i)%max(j.Crowd.Slots, 1))
}

func (j job) connectRecipe() (taker, error) {
	raw, err := (&etcd{endpoint: j.Addr}).raw()
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, _ int, write bool) (func(context.Context) error, error) {
		m := recipe.NewRWMutex(raw.session, j.Name)
		if write {
			return func(context.Context) error { return m.Unlock() }, m.Lock()
		}
		return func(context.Context) error { return m.RUnlock() }, m.RLock()
	}, nil
}

func (j job) connectStock() (taker, error) {
	cli, err := (&etcd{endpoint: j.Addr}).dial()
	if err != nil {
		return nil, err
	}
	var mutexes []*concurrency.Mutex
	for i := range j.Crowd.Goroutines {
		session, err := concurrency.NewSession(cli, concurrency.WithTTL(int(sessionTTL.Seconds())))
		if err != nil {
			return nil, err
		}
		mutexes = append(mutexes, concurrency.NewMutex(session, j.slot(i)))
	}
	return func(ctx context.Context, i int, _ bool) (func(context.Context) error, error) {
		return mutexes[i].Unlock, mutexes[i].Lock(ctx)
	}, nil
}
