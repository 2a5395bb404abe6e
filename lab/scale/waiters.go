//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// lockName is the lock that everybody waits for.
const lockName = "hot"

// joinTimeout bounds the time until all waiters are in the line, and until all have passed.
const joinTimeout = 5 * time.Minute

// waitersResult is the cost of the waiters for one name. Per waiter means divided by their number, and
// a hand-over is one from a waiter to the next.
type waitersResult struct {
	Join  phase `json:"join"`  // until all wait and the server is quiet
	Idle  phase `json:"idle"`  // while nothing happens
	Drain phase `json:"drain"` // from the release of the lock until all have passed
}

// measureWaiters lets r.N clients join the line of a held lock, and then pass. Each has a session of
// its own. They are in ten processes, which have one connection each except on ZooKeeper, where each
// session has one. On the memory store all are in this process, and the processor time is its.
func measureWaiters(ctx context.Context, c config, r row) (row, error) {
	s, err := startServers(ctx, c, r.Store, 1)
	if err != nil {
		return r, err
	}
	defer s.stop()
	conn, err := connect(ctx, stileName, s.url)
	if err != nil {
		return r, err
	}
	defer conn.close()
	if r.Store == memoryStore {
		store := conn.(stileConnection).store
		s.entries = func(ctx context.Context, name string) (int, error) {
			l, err := store.Line(ctx, name)
			return len(l.Entries), err
		}
	}
	unlock, err := lockOnce(ctx, conn, lockName)
	if err != nil {
		return r, err
	}
	flock := filepath.Join(s.dir, "flock")
	if err := os.WriteFile(flock, nil, 0o600); err != nil {
		return r, err
	}
	before, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	wait, kill, err := startWaiters(ctx, s, r, conn, flock)
	if err != nil {
		return r, err
	}
	defer func() { _ = kill() }()
	if err := awaitEntries(ctx, s, lockName, r.N+1); err != nil {
		return r, errors.Join(err, kill())
	}
	joined, err := s.awaitQuiet(ctx, s.quietRequests(r.N))
	if err != nil {
		return r, errors.Join(err, kill())
	}
	result := &waitersResult{Join: joined.since(before)}
	if err := sleep(ctx, c.idle); err != nil {
		return r, err
	}
	idle, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	result.Idle = idle.since(joined)
	began := time.Now()
	if err := unlock(ctx); err != nil {
		return r, err
	}
	if err := wait(); err != nil {
		return r, err
	}
	took := time.Since(began)
	drained, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	result.Drain = drained.since(idle)
	result.Drain.Took = took
	r.Waiters = result
	return r, nil
}

// startWaiters starts the waiters. wait waits until all have passed. kill ends them and returns how
// they ended.
func startWaiters(ctx context.Context, s *servers, r row, conn connection, flock string) (wait, kill func() error, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*joinTimeout, fmt.Errorf("the waiters need more than %v", 2*joinTimeout))
	if r.Store != memoryStore {
		w, err := startWorkers(ctx, worker{job: jobPass, url: s.url, contender: r.Contender, flock: flock}, r.N, nil)
		if err != nil {
			cancel()
			return nil, nil, err
		}
		return w.wait, func() error { defer cancel(); return w.err() }, nil
	}
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		err = passAll(ctx, conn, r.N, flock)
	}()
	wait = func() error { <-passed; return err }
	return wait, func() error { cancel(); return wait() }, nil
}

// awaitEntries waits until the line of a name has n entries; on etcd, with those of the names below it.
func awaitEntries(ctx context.Context, s *servers, name string, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, joinTimeout, fmt.Errorf("not all waiters have joined within %v", joinTimeout))
	defer cancel()
	for {
		have, err := s.entries(ctx, name)
		if err == nil && have >= n {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func waitersTable(rs rows) string {
	var b strings.Builder
	for _, store := range stores {
		found := rs.where("waiters", store)
		if len(found) == 0 {
			continue
		}
		counted, listed := store != memoryStore, store == zkStore
		head := []string{store, "waiters"}
		if counted {
			head = append(head, "join: requests each")
		}
		if listed {
			head = append(head, "listings each")
		}
		if counted {
			head = append(head, "kB each")
		}
		head = append(head, "join: CPU each")
		if counted {
			head = append(head, "idle: requests/s each")
		}
		if listed {
			head = append(head, "idle: listings")
		}
		head = append(head, "hand-over: time")
		if counted {
			head = append(head, "requests")
		}
		if listed {
			head = append(head, "listings")
		}
		if counted {
			head = append(head, "messages", "kB")
		}
		head = append(head, "CPU")
		var lines [][]string
		for _, r := range found {
			lines = append(lines, r.waitersCells(counted, listed))
		}
		b.WriteString(table(head, lines) + "\n")
	}
	return b.String()
}

func (r row) waitersCells(counted, listed bool) []string {
	n, w := float64(r.N), r.Waiters
	cells := []string{r.Contender, strconv.Itoa(r.N)}
	add := func(include bool, format string, args ...any) {
		if include {
			cells = append(cells, fmt.Sprintf(format, args...))
		}
	}
	idle := 0.0
	if w.Idle.Took > 0 {
		idle = w.Idle.Requests / n / w.Idle.Took.Seconds()
	}
	add(counted, "%.1f", w.Join.Requests/n)
	add(listed, "%.1f", w.Join.Listings/n)
	add(counted, "%.1f", w.Join.Bytes/n/1000)
	add(true, "%s", each(w.Join.CPU, r.N))
	add(counted, "%.2f", idle)
	add(listed, "%.0f", w.Idle.Listings)
	add(true, "%s", each(w.Drain.Took, r.N))
	add(counted, "%.1f", w.Drain.Requests/n)
	add(listed, "%.1f", w.Drain.Listings/n)
	add(counted, "%.1f", w.Drain.Messages/n)
	add(counted, "%.1f", w.Drain.Bytes/n/1000)
	add(true, "%s", each(w.Drain.CPU, r.N))
	return cells
}
