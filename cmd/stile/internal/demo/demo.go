// Package demo is the classic test of a lock, for people to watch: processes that add to a number in a file, which nothing
// protects but the lock. One of them is killed while it holds the lock. At the end the number is what the processes have
// acknowledged, or the lock is worth nothing.
//
// [Run] is the parent: it starts the workers, shows what happens, and counts. [Work] is a worker.
package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// Config says what [Run] is to do.
type Config struct {
	// URL names the store, and Open opens it. Store is the URL for people, without a password.
	URL, Store string
	Open       Open
	// Workers is how many processes there are: 2 to maxWorkers.
	Workers int
	// Add is how many increments each has to make, 1 to maxAdd, in so many Turns, each of which takes the lock once:
	// 1 to Add.
	Add, Turns int
	// TTL is that of the workers' sessions. Zero means three seconds or, where the server grants none so short, five,
	// ten or twenty.
	TTL time.Duration
	// WithoutLock has the workers take no lock. No store is opened then.
	WithoutLock bool
	// Worker returns the command line, without the name of the program, that makes this program call [Work] as the
	// worker with that number.
	Worker func(number int) []string
	// Out is where all is shown, the verdict last.
	Out *os.File
}

// Limits of what can be shown, and counted.
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
	case c.Turns < 1 || c.Turns > c.Add:
		return fmt.Errorf("--turns %d: it must be 1 to %d, the number that each worker adds", c.Turns, c.Add)
	case !c.WithoutLock && strings.HasPrefix(c.URL, "mem:"):
		return fmt.Errorf("--url %s is memory, which one process alone sees: the demo has %d", c.URL, c.Workers)
	}
	return nil
}

// Run carries the demo out. If ctx ends first the error is the cause. Whatever the outcome, when Run returns no worker is
// left, and no file. Should this process be killed, the workers end by themselves.
func Run(ctx context.Context, c Config) (Verdict, error) {
	if err := c.check(); err != nil {
		return Verdict{}, err
	}
	dir, err := os.MkdirTemp("", "stile-demo-")
	if err != nil {
		return Verdict{}, err
	}
	defer os.RemoveAll(dir)
	j := job{URL: c.URL, Add: c.Add, Turns: c.Turns, Counter: filepath.Join(dir, "counter")}
	if err := newCounter(j.Counter); err != nil {
		return Verdict{}, err
	}
	if c.WithoutLock {
		return c.play(ctx, j, nil)
	}

	opened, err := c.Open(ctx, c.URL)
	if err != nil {
		return Verdict{}, err
	}
	defer func() { _ = opened.Close() }()               // it was only read from
	j.Lock = "demo/" + strings.ToLower(rand.Text()[:8]) // so that two demos do not meet
	if j.TTL, err = grantedTTL(ctx, opened.Store, c.TTL); err != nil {
		return Verdict{}, err
	}
	client, err := stile.New(opened.Store, &stile.Options{TTL: j.TTL})
	if err != nil {
		return Verdict{}, err
	}
	defer func() { _ = client.Close(ctx) }() // it has opened no session
	return c.play(ctx, j, client)
}

// grantedTTL returns a TTL that the store grants: the one that is wanted or, if none is, the shortest of some that make a
// good demo.
func grantedTTL(ctx context.Context, st store.Store, wanted time.Duration) (time.Duration, error) {
	tries := []time.Duration{3 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second}
	if wanted > 0 {
		tries = []time.Duration{wanted}
	}
	var err error
	for _, ttl := range tries {
		var s store.Session
		if s, err = st.Open(ctx, store.SessionOptions{TTL: ttl}); err == nil {
			_ = s.Close(ctx) // or it ends by itself, with nothing in it
			return ttl, nil
		}
	}
	return 0, err
}

func newCounter(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return setCounter(f, 0)
}

// play does it: with all that is needed at hand.
func (c Config) play(ctx context.Context, j job, client *stile.Client) (Verdict, error) {
	c.introduce(c.Out, j)
	s := newStage(c, time.Now())
	d := &director{stage: s, screen: newScreen(c.Out, s), job: j, client: client, news: make(chan any)}
	if err := d.direct(ctx, c); err != nil {
		return Verdict{}, err
	}
	found, err := readCounter(j.Counter)
	if err != nil {
		return Verdict{}, err
	}
	d.screen.end()
	v := s.verdict(found)
	_, err = fmt.Fprintln(c.Out, strings.Join(append(s.summary(v), v.String()), "\n"))
	return v, err
}

// introduce says what is going to be shown.
func (c Config) introduce(out io.Writer, j job) {
	fmt.Fprintf(out, "%d processes each add 1 to the number in a file, %d times: read, add, write.\n", c.Workers, c.Add)
	if c.WithoutLock {
		fmt.Fprintf(out, "Nothing keeps them apart. One is killed (kill -9) halfway through its part.\n")
	} else {
		times := "once"
		if c.Turns > 1 {
			times = fmt.Sprintf("%d times", c.Turns)
		}
		fmt.Fprintf(out, "They are kept apart by nothing but the lock %s in %s,\n", j.Lock, c.Store)
		fmt.Fprintf(out, "which each takes %s. One is killed (kill -9) while it holds the lock; the\n", times)
		fmt.Fprintf(out, "next is let in when the dead one's lease, of %v, has run out.\n", j.TTL)
	}
	fmt.Fprintf(out, "The file: %s\n\n", j.Counter)
}
