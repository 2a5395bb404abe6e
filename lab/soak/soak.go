//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/stilelock/stile"
)

// soak is one measurement.
type soak struct {
	plan
	began  time.Time
	server *server
	crowd  crowd
	rows   int
}

// note prints a row of the report.
func (s *soak) note(what, format string, args ...any) {
	if s.rows++; s.rows == 1 {
		fmt.Printf("* Date: %s\n* %s, %s/%s, %d CPUs, load %s\n", s.began.UTC().Format("2006-01-02 15:04 UTC"), runtime.Version(),
			runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), load())
		fmt.Printf("* `soak -sessions %d -alone %d -lines %d -waiters %d -connections %d -ttl %v -idle %v`\n\n| | |\n|---|---|\n",
			s.sessions, s.alone, s.lines, s.waiters, s.connections, s.ttl, s.idle)
	}
	fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(format, args...))
}

// load is how busy the machine is.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// entries is how many entries there are when all have come.
func (s *soak) entries() int { return s.sessions*(s.alone+1) + s.waiters + 1 }

func (s *soak) measure(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.fill, s.rest, s.list, s.lock, s.restart, s.empty} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fill starts the server and has everybody come.
func (s *soak) fill(ctx context.Context) error {
	took, err := s.server.start(ctx)
	if err != nil {
		return err
	}
	u, err := s.server.usage()
	if err != nil {
		return err
	}
	s.note("server without data", "ready after %v, %s", show(took), megabytes(u.memory))
	began := time.Now()
	if err := s.crowd.connect(ctx, s.plan, s.server.url()); err != nil {
		return err
	}
	if err := s.crowd.gather(ctx, s.plan); err != nil {
		return err
	}
	all := time.Since(began)
	s.note("to come", "%v for %d sessions and %d entries: %.0f entries a second", show(all), s.sessions, s.entries(),
		float64(s.entries())/all.Seconds())
	return nil
}

// calm is how long it is left alone before it is measured at rest: what has been put off, such as watches of holders, has
// been done by then.
const calm = 20 * time.Second

// rest measures what it takes to do nothing but renew.
func (s *soak) rest(ctx context.Context) error {
	if err := pause(ctx, calm); err != nil {
		return err
	}
	debug.FreeOSMemory()
	before, err := s.server.usage()
	if err != nil {
		return err
	}
	us, err := usageOf(os.Getpid())
	if err != nil {
		return err
	}
	renewed := s.crowd.renewed.Load()
	if err := pause(ctx, s.idle); err != nil {
		return err
	}
	renewed = s.crowd.renewed.Load() - renewed
	after, err := s.server.usage()
	if err != nil {
		return err
	}
	usAfter, err := usageOf(os.Getpid())
	if err != nil {
		return err
	}
	s.note("server at rest", "%s, %s of one processor, %.0f renewals a second: %.0f µs each", megabytes(after.memory),
		percent(after.since(before)), float64(renewed)/s.idle.Seconds(), (after.cpu-before.cpu).Seconds()*1e6/float64(renewed))
	s.note("clients at rest, all in one process", "%s, %d goroutines, %s of one processor", megabytes(usAfter.memory),
		runtime.NumGoroutine(), percent(usAfter.since(us)))
	return s.disk()
}

func (s *soak) disk() error {
	size, err := s.server.onDisk()
	if err != nil {
		return err
	}
	s.note("on the disk", "%s", megabytes(size))
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// list measures the verbs that read.
func (s *soak) list(ctx context.Context) error {
	for _, args := range [][]string{{"ls"}, {"ls", "-o", "json"}, {"ls", "alone/0000"}, {"show", hot}, {"show", "-o", "json", hot}} {
		u, out, err := s.server.command(ctx, args...)
		if err != nil {
			return err
		}
		if args[0] == "ls" && len(args) == 1 && strings.Count(out, "\n") != s.sessions*s.alone+s.lines+2 {
			return fmt.Errorf("stile ls has written %d lines", strings.Count(out, "\n"))
		}
		s.note("`stile "+strings.Join(args, " ")+"`", "%v", u)
	}
	var taken []*stile.Hold
	w, err := s.server.watch(ctx, s.entries(), 10, func() (string, error) {
		hold, err := s.crowd.clients[0].Mutex(fmt.Sprintf("watched/%d", len(taken))).Lock(ctx)
		if err != nil {
			return "", err
		}
		taken = append(taken, hold)
		return hold.Name(), nil
	})
	for _, hold := range taken {
		err = errors.Join(err, hold.Release(ctx))
	}
	if err != nil {
		return err
	}
	s.note("`stile watch`", "%v until everybody is written; %v until a change is; in all %v of processor time and %s", show(w.first), w.changes,
		show(w.cpu), megabytes(w.memory))
	u, err := s.server.usage()
	if err == nil {
		s.note("server after that", "%s", megabytes(u.memory))
	}
	return err
}

// lock measures locks while all the others are there.
func (s *soak) lock(ctx context.Context) error {
	const n = 100
	one, other := s.crowd.clients[0], s.crowd.clients[1]
	took, err := pairs(ctx, one, n)
	if err != nil {
		return err
	}
	s.note("to lock and release a lock that nobody else wants", "%v", took)
	if took, err = handOvers(ctx, one, other, n); err != nil {
		return err
	}
	s.note("to hand such a lock over", "%v", took)
	if took, err = handOversInLine(ctx, s.crowd.hot, n); err != nil {
		return err
	}
	s.note("to hand the hot lock over", "%v", took)
	return nil
}

// restart measures the server's end and its start on the data of so many.
func (s *soak) restart(ctx context.Context) error {
	for _, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		down, err := s.server.stop(how)
		if err != nil {
			return err
		}
		if err := s.disk(); err != nil {
			return err
		}
		began := time.Now()
		up, err := s.server.start(ctx)
		if err != nil {
			return err
		}
		if err := s.untilLocked(ctx); err != nil {
			return err
		}
		s.note(fmt.Sprintf("%v, and a new start", how), "gone after %v, ready after another %v, a lock taken and released %v after the start",
			show(down), show(up), show(time.Since(began)))
		if err := s.recover(ctx); err != nil {
			return err
		}
	}
	return nil
}

// untilLocked takes a lock and lets it go, as soon as that can be done while everybody else comes back too.
func (s *soak) untilLocked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.ttl)
	defer cancel()
	for {
		_, err := pairs(ctx, s.crowd.clients[0], 1)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// recover measures how long it takes after a start until it is as at rest: until the last ten seconds took no more than
// half of a processor.
func (s *soak) recover(ctx context.Context) error {
	const slice = 10 * time.Second
	began := time.Now()
	for {
		before, err := s.server.usage()
		if err != nil {
			return err
		}
		if err := pause(ctx, slice); err != nil {
			return err
		}
		after, err := s.server.usage()
		if err != nil {
			return err
		}
		if busy := after.since(before); busy < 0.5 || time.Since(began) > 5*time.Minute {
			s.note("server after that", "within %v down to %s of one processor, %s", time.Since(began).Round(slice), percent(busy),
				megabytes(after.memory))
			return nil
		}
	}
}

// empty has everybody go.
func (s *soak) empty(ctx context.Context) error {
	began := time.Now()
	if err := s.crowd.disperse(ctx); err != nil {
		return err
	}
	s.note("to go", "%v", show(time.Since(began)))
	took, err := s.server.stop(syscall.SIGTERM)
	if err != nil {
		return err
	}
	s.note("server without entries", "gone after %v", show(took))
	return nil
}

// check says what went wrong though no call failed.
func (s *soak) check() error {
	s.note("renewals", "%d, and %d that were not confirmed; holds lost: %d", s.crowd.renewed.Load(), s.crowd.failed.Load(), s.crowd.lost.Load())
	s.note("in all", "%v", show(time.Since(s.began)))
	if n := s.crowd.lost.Load(); n > 0 {
		return errors.New("holds were lost; the report tells how many")
	}
	return nil
}

// end leaves nothing behind.
func (s *soak) end() { s.server.end() }
