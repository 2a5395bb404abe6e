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

// soak is one run of all measurements.
type soak struct {
	plan
	began  time.Time
	server *server
	fleet  fleet
	rows   int
}

// addRow prints a row of the report.
func (s *soak) addRow(what, format string, args ...any) {
	if s.rows++; s.rows == 1 {
		fmt.Printf("* Date: %s\n* %s, %s/%s, %d CPUs, load %s\n", s.began.UTC().Format("2006-01-02 15:04 UTC"), runtime.Version(),
			runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), loadAverage())
		fmt.Printf("* `soak -sessions %d -alone %d -lines %d -joined %d -waiters %d -connections %d -ttl %v -idle %v`\n\n| | |\n|---|---|\n",
			s.sessions, s.uncontended, s.lines, s.joined, s.waiters, s.connections, s.ttl, s.idle)
	}
	fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(format, args...))
}

// loadAverage returns the machine's load averages.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// entries returns the number of entries after fill.
func (s *soak) entries() int { return s.sessions*(s.uncontended+s.joined) + s.waiters + 1 }

func (s *soak) measure(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.fill, s.measureAtRest, s.measureReads, s.measureLocks, s.measureRestarts, s.closeClients} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fill starts the server and lets all clients join.
func (s *soak) fill(ctx context.Context) error {
	took, err := s.server.start(ctx)
	if err != nil {
		return err
	}
	u, err := s.server.usage()
	if err != nil {
		return err
	}
	s.addRow("server without data", "ready after %v, %s", formatDuration(took), megabytes(u.memory))
	began := time.Now()
	if err := s.fleet.connect(ctx, s.plan, s.server.url()); err != nil {
		return err
	}
	if err := s.fleet.populate(ctx, s.plan); err != nil {
		return err
	}
	elapsed := time.Since(began)
	s.addRow("setup", "%v for %d sessions and %d entries: %.0f entries a second", formatDuration(elapsed), s.sessions, s.entries(),
		float64(s.entries())/elapsed.Seconds())
	return nil
}

// restDelay is the pause before the measurement at rest. Deferred work, such as opening the watches
// of holders, is done by then.
const restDelay = 20 * time.Second

// measureAtRest measures the server and the clients while the sessions are only renewed.
func (s *soak) measureAtRest(ctx context.Context) error {
	if err := sleep(ctx, restDelay); err != nil {
		return err
	}
	debug.FreeOSMemory()
	before, err := s.server.usage()
	if err != nil {
		return err
	}
	clientsBefore, err := usageOf(os.Getpid())
	if err != nil {
		return err
	}
	renewed := s.fleet.renewals.Load()
	if err := sleep(ctx, s.idle); err != nil {
		return err
	}
	renewed = s.fleet.renewals.Load() - renewed
	after, err := s.server.usage()
	if err != nil {
		return err
	}
	clientsAfter, err := usageOf(os.Getpid())
	if err != nil {
		return err
	}
	s.addRow("server at rest", "%s, %s of one processor, %.0f renewals a second: %.0f µs each", megabytes(after.memory),
		percent(after.cpuShareSince(before)), float64(renewed)/s.idle.Seconds(), (after.cpu-before.cpu).Seconds()*1e6/float64(renewed))
	s.addRow("clients at rest, all in one process", "%s, %d goroutines, %s of one processor", megabytes(clientsAfter.memory),
		runtime.NumGoroutine(), percent(clientsAfter.cpuShareSince(clientsBefore)))
	return s.addDiskRow()
}

func (s *soak) addDiskRow() error {
	size, err := s.server.diskUsage()
	if err != nil {
		return err
	}
	s.addRow("on disk", "%s", megabytes(size))
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// measureReads measures the commands that read.
func (s *soak) measureReads(ctx context.Context) error {
	for _, args := range [][]string{{"ls"}, {"ls", "-o", "json"}, {"ls", "alone/0000"}, {"show", hotLock}, {"show", "-o", "json", hotLock}} {
		u, out, err := s.server.command(ctx, args...)
		if err != nil {
			return err
		}
		if args[0] == "ls" && len(args) == 1 && strings.Count(out, "\n") != s.sessions*s.uncontended+s.lines+2 {
			return fmt.Errorf("stile ls wrote an unexpected number of lines: %d", strings.Count(out, "\n"))
		}
		s.addRow("`stile "+strings.Join(args, " ")+"`", "%v", u)
	}
	var taken []*stile.Hold
	w, err := s.server.watch(ctx, s.entries(), 10, func() (string, error) {
		hold, err := s.fleet.clients[0].Mutex(fmt.Sprintf("watched/%d", len(taken))).Lock(ctx)
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
	s.addRow("`stile watch`", "%v until all entries are written, %v until a change is; %v of processor time and %s in total", formatDuration(w.initial), w.changes,
		formatDuration(w.cpu), megabytes(w.peakMemory))
	u, err := s.server.usage()
	if err == nil {
		s.addRow("server after these reads", "%s", megabytes(u.memory))
	}
	return err
}

// measureLocks measures locks and hand-overs while all entries exist.
func (s *soak) measureLocks(ctx context.Context) error {
	const n = 100
	a, b := s.fleet.clients[0], s.fleet.clients[1]
	took, err := measurePairs(ctx, a, n)
	if err != nil {
		return err
	}
	s.addRow("lock and release, uncontended", "%v", took)
	if took, err = measureHandOvers(ctx, a, b, n); err != nil {
		return err
	}
	s.addRow("hand-over, one waiter", "%v", took)
	if took, err = measureLineHandOvers(ctx, s.fleet.hotPlaces, n); err != nil {
		return err
	}
	s.addRow("hand-over in the long line", "%v", took)
	return nil
}

// measureRestarts measures how long the server takes to end and to start again on its data.
func (s *soak) measureRestarts(ctx context.Context) error {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		down, err := s.server.stop(sig)
		if err != nil {
			return err
		}
		if err := s.addDiskRow(); err != nil {
			return err
		}
		began := time.Now()
		up, err := s.server.start(ctx)
		if err != nil {
			return err
		}
		if err := s.acquireOnce(ctx); err != nil {
			return err
		}
		s.addRow(fmt.Sprintf("%v and started again", sig), "ended after %v, ready after another %v, a lock acquired and released %v after the start",
			formatDuration(down), formatDuration(up), formatDuration(time.Since(began)))
		if err := s.measureRecovery(ctx); err != nil {
			return err
		}
	}
	return nil
}

// acquireOnce acquires and releases a lock as soon as the server allows it, while all other clients
// are returning too.
func (s *soak) acquireOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.ttl)
	defer cancel()
	for {
		_, err := measurePairs(ctx, s.fleet.clients[0], 1)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// measureRecovery measures how long the server is busy after a start: until it took less than half
// of a processor in the last ten seconds, or for five minutes at most.
func (s *soak) measureRecovery(ctx context.Context) error {
	const slice = 10 * time.Second
	began := time.Now()
	for {
		before, err := s.server.usage()
		if err != nil {
			return err
		}
		if err := sleep(ctx, slice); err != nil {
			return err
		}
		after, err := s.server.usage()
		if err != nil {
			return err
		}
		if busy := after.cpuShareSince(before); busy < 0.5 || time.Since(began) > 5*time.Minute {
			s.addRow("server after the restart", "after %v at %s of one processor, %s", time.Since(began).Round(slice), percent(busy),
				megabytes(after.memory))
			return nil
		}
	}
}

// closeClients closes all clients and stops the server.
func (s *soak) closeClients(ctx context.Context) error {
	began := time.Now()
	if err := s.fleet.close(ctx); err != nil {
		return err
	}
	s.addRow("closing all clients", "%v", formatDuration(time.Since(began)))
	took, err := s.server.stop(syscall.SIGTERM)
	if err != nil {
		return err
	}
	s.addRow("server without entries", "ended after %v", formatDuration(took))
	return nil
}

// check returns an error if holds were lost although no call failed.
func (s *soak) check() error {
	s.addRow("renewals", "%d confirmed, %d not confirmed; %d holds lost", s.fleet.renewals.Load(), s.fleet.failedRenewals.Load(), s.fleet.lostHolds.Load())
	s.addRow("total", "%v", formatDuration(time.Since(s.began)))
	if n := s.fleet.lostHolds.Load(); n > 0 {
		return errors.New("holds were lost; the report says how many")
	}
	return nil
}

// end kills the server if it still runs.
func (s *soak) end() { s.server.kill() }
