// Pool calls an API for each line of its input, within the limits of the API: at most three calls are
// under way at a time, and at most three begin within a second. All processes that run it share these
// limits, on however many hosts: each call takes a slot of a semaphore, and the slot stays closed until a
// second after the call has begun.
//
//	cd examples && seq 20 | STILE_URL=etcd://localhost:2379 go run ./pool
//
// Run it in two terminals: together they are no faster than one. The store is etcd or Redis; on others a
// slot cannot stay closed ([stile.Hold.ReleaseAfter]). etcd keeps it for two seconds, its shortest TTL.
//
// What it does not protect from: a process that is stopped, or cut off from the store, for longer than the
// TTL loses its slots, and its calls may still be under way when others begin. An API cannot tell these
// calls by their tokens, because the holders of slots have no order. If the limit must never be exceeded, the API
// has to enforce it.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

const (
	slots   = 3           // of all processes together
	period  = time.Second // a slot begins at most one call in it
	workers = 5           // of this process
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("STILE_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	conn, err := storeurl.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	client, err := stile.New(conn.Store, nil)
	if err != nil {
		return err
	}
	defer client.Close(ctx)

	return work(ctx, client, os.Stdin, func(_ context.Context, job string) error {
		fmt.Println("calling the API for", job)
		return nil
	})
}

// work calls the API for each line of in, and returns the errors of all calls.
func work(ctx context.Context, client *stile.Client, in io.Reader, call func(ctx context.Context, job string) error) error {
	var (
		api   = client.Semaphore("api", slots)
		jobs  = make(chan string)
		errs  [workers]error
		group sync.WaitGroup
	)
	for i := range workers {
		group.Go(func() {
			for job := range jobs {
				err := limited(ctx, api, func(ctx context.Context) error { return call(ctx, job) })
				if err != nil {
					errs[i] = errors.Join(errs[i], fmt.Errorf("%s: %w", job, err))
				}
			}
		})
	}
	lines := bufio.NewScanner(in)
	for ctx.Err() == nil && lines.Scan() {
		jobs <- lines.Text()
	}
	close(jobs)
	group.Wait()
	return errors.Join(append(errs[:], lines.Err())...)
}

// limited calls f while it holds a slot. Then the slot stays closed until the period is over, also if this
// process ends.
func limited(ctx context.Context, api *stile.Semaphore, f func(ctx context.Context) error) error {
	return api.Do(ctx, func(held context.Context, h *stile.Hold) error {
		began := time.Now()
		err := f(held)
		// With ctx: the context held ends as soon as the release begins.
		return errors.Join(err, h.ReleaseAfter(ctx, period-time.Since(began)))
	})
}
