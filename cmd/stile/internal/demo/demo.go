// Package demo is the classic test of a lock, made visible. Several processes add to a number in a
// file, and only the lock keeps them from overwriting each other's changes. One of them is killed
// while it holds the lock. At the end the number must equal the number of increments that the
// processes have acknowledged.
//
// [Run] is the parent: it starts the workers, shows the events, and counts. [Work] is a worker.
package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/storeurl"
)

// Config configures [Run].
type Config struct {
	// URL names the store, and Open opens it. Store is the URL without its password, for display.
	URL, Store string
	Open       Open
	// Workers is the number of processes: 2 to maxWorkers.
	Workers int
	// Add is the number of increments of each worker, under one hold of the lock: 1 to maxAdd.
	Add int
	// TTL is the TTL of the workers' sessions.
	TTL time.Duration
	// WithoutLock makes the workers take no lock. Run then opens no store.
	WithoutLock bool
	// Worker returns the arguments with which this program calls [Work] as the worker with that
	// number.
	Worker func(number int) []string
	// Out receives the display.
	Out *os.File
}

// Open opens the store that a URL names.
type Open func(ctx context.Context, url string) (*storeurl.Conn, error)

// Limits of the display, and of the counter.
const (
	maxWorkers = 20
	maxAdd     = 10_000_000
)

func (c Config) check() error {
	switch {
	case c.Workers < 2 || c.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: it must be 2 to %d", c.Workers, maxWorkers)
	case c.Add < 1 || c.Add > maxAdd:
		return fmt.Errorf("--add %d: it must be 1 to %d", c.Add, maxAdd)
	case !c.WithoutLock && strings.HasPrefix(c.URL, "mem:"):
		return fmt.Errorf("--url %s is a store in the memory of one process, but the demo has %d processes", c.URL, c.Workers)
	}
	return nil
}

// Run runs the demo, and reports whether the number in the file is correct. If ctx ends first the
// error is its cause. When Run returns, no worker and no file is left. If this process is killed,
// the workers end by themselves.
func Run(ctx context.Context, c Config) (ok bool, err error) {
	if err := c.check(); err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "stile-demo-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	p := newPlay(c, job{URL: c.URL, TTL: c.TTL, Counter: filepath.Join(dir, "counter"), Add: c.Add})
	if err := os.WriteFile(p.job.Counter, format(0), 0o600); err != nil {
		return false, err
	}
	intro := "Nothing keeps them apart. One is killed (kill -9) halfway through its part."
	if !c.WithoutLock {
		p.job.Lock = "demo/" + strings.ToLower(rand.Text()[:8]) // unique, so that two demos do not interfere
		intro = fmt.Sprintf(`They are kept apart by nothing but the lock %s in %s,
which each takes once. One is killed (kill -9) while it holds the lock; the next
gets it when the lease of the killed one, of %v, has run out.`, p.job.Lock, c.Store, c.TTL)
		conn, err := c.Open(ctx, c.URL)
		if err != nil {
			return false, err
		}
		defer func() { _ = conn.Close() }() // nothing was written through it
		if p.client, err = stile.New(conn.Store, &stile.Options{TTL: c.TTL}); err != nil {
			return false, err
		}
		defer func() { _ = p.client.Close(ctx) }() // its session is empty
		if _, err := p.client.Terms(ctx); err != nil {
			return false, err // before the first output: the store may not grant the TTL
		}
	}
	fmt.Fprintf(c.Out, "%d processes each add 1 to the number in a file, %d times: read, add, write.\n%s\nThe file: %s\n\n",
		c.Workers, c.Add, intro, p.job.Counter)
	p.started = time.Now()
	if err := p.run(ctx); err != nil {
		return false, err
	}
	if p.number, err = readCounter(p.job.Counter); err != nil {
		return false, err
	}
	return p.number == p.acknowledged(), p.end(time.Now())
}
