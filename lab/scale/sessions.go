//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// sessionsResult is the cost of many sessions, each with one waiter, and how they come through a
// restart of the server.
type sessionsResult struct {
	Join      phase         `json:"join"`      // until all wait and the server is quiet
	Idle      phase         `json:"idle"`      // while nothing happens; renewals are in the processor time only
	Memory    int64         `json:"memory"`    // of the server, at the end of that
	Down      time.Duration `json:"down_ns"`   // from the kill of the server until it answers again
	Settle    time.Duration `json:"settle_ns"` // from then until the clients are quiet again
	Drain     time.Duration `json:"drain_ns"`  // from the release of all locks until all have passed
	Forgotten int           `json:"forgotten"` // waiters that were not admitted
	Lost      int           `json:"lost"`      // holds
	FirstErr  string        `json:"first_err,omitempty"`
}

// passed is what a worker reports of its waiters.
type passed struct {
	N     int       `json:"n"`     // that were admitted
	First time.Time `json:"first"` // when the first of them was
	Err   string    `json:"err,omitempty"`
}

// measureSessions lets one client hold r.N locks, and as many sessions wait, each for one of them. The
// server is killed and started again. Then the locks are released.
func measureSessions(ctx context.Context, c config, r row) (row, error) {
	s, err := startServers(ctx, c, r.Store, 1)
	if err != nil {
		return r, err
	}
	defer s.stop()
	h, err := startHolder(ctx, stileName, s.url)
	if err != nil {
		return r, err
	}
	defer func() { _ = h.kill() }()
	if err := (&heldResult{TTL: ttl}).fill(ctx, s, h, r.N); err != nil {
		return r, err
	}
	before, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	reports := &reports{}
	w, err := startWorkers(ctx, worker{job: jobWait, url: s.url, contender: r.Contender}, r.N, reports.writer)
	if err != nil {
		return r, err
	}
	defer w.kill()
	result := &sessionsResult{}
	if err := awaitEntries(ctx, s, "many", 2*r.N); err != nil {
		return r, errors.Join(err, w.err())
	}
	quiet := s.quietRequests(r.N)
	joined, err := s.awaitQuiet(ctx, quiet)
	if err != nil {
		return r, err
	}
	result.Join = joined.since(before)
	if err := sleep(ctx, c.idle); err != nil {
		return r, err
	}
	idle, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	result.Idle = idle.since(joined)
	if result.Memory, err = s.memory(); err != nil {
		return r, err
	}
	if result.Down, err = s.restart(ctx); err != nil {
		return r, err
	}
	began := time.Now()
	if _, err := s.awaitQuiet(ctx, quiet); err != nil {
		return r, err
	}
	result.Settle = time.Since(began)
	state, err := h.do(command{Op: opState})
	if err != nil {
		return r, err
	}
	result.Lost = state.Lost
	released := time.Now()
	// While thousands of waiters pass, the server may be too busy to answer. So an error is not fatal: if all pass, the
	// locks were released.
	_, closeErr := h.do(command{Op: opClose})
	w.waitAtMost(joinTimeout)
	result.Drain = time.Since(released)
	n, first, firstErr, err := reports.sum()
	if err != nil {
		return r, err
	}
	if result.Lost == 0 && n > 0 && first.Before(released) {
		return r, fmt.Errorf("a waiter was admitted %v before the holder released", released.Sub(first))
	}
	result.Forgotten, result.FirstErr = r.N-n, firstErr
	if firstErr == "" && closeErr != nil {
		result.FirstErr = closeErr.Error()
	}
	r.Sessions = result
	return r, nil
}

// restart kills the servers and starts them again, and returns how long it took until they answer.
func (s *servers) restart(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	for _, m := range s.members {
		m.kill()
	}
	for _, m := range s.members {
		if err := s.start(m); err != nil {
			return 0, err
		}
	}
	err := await(ctx, "the servers do not answer after a restart", s.healthy)
	return time.Since(began), err
}

// waitEach waits for n locks, each with a session of its own, and reports to out how many were
// acquired when all have been, or when ctx ends.
func waitEach(ctx context.Context, conn connection, first, n int, out io.Writer) error {
	var report passed
	var mu sync.Mutex
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			unlock, err := lockOnce(ctx, conn, manyName(first+i))
			now := time.Now()
			if err == nil {
				defer func() { _ = unlock(ctx) }()
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && report.Err == "":
				report.Err = err.Error()
			case err == nil:
				if report.N++; report.N == 1 {
					report.First = now
				}
			}
		})
	}
	running.Wait()
	return json.NewEncoder(out).Encode(report)
}

// reports collects what the workers print.
type reports struct {
	texts []*bytes.Buffer
}

func (r *reports) writer() io.Writer {
	r.texts = append(r.texts, &bytes.Buffer{})
	return r.texts[len(r.texts)-1]
}

// sum adds the reports of workers that have ended.
func (r *reports) sum() (n int, first time.Time, firstErr string, err error) {
	for _, text := range r.texts {
		var p passed
		if err := json.Unmarshal(text.Bytes(), &p); err != nil {
			return 0, first, "", fmt.Errorf("a worker has not reported: %w", err)
		}
		if n += p.N; p.N > 0 && (first.IsZero() || p.First.Before(first)) {
			first = p.First
		}
		if firstErr == "" {
			firstErr = p.Err
		}
	}
	return n, first, firstErr, nil
}

// waitAtMost waits until all workers have ended. After d it tells them to.
func (w *workers) waitAtMost(d time.Duration) {
	timer := time.AfterFunc(d, func() {
		for _, cmd := range w.cmds {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	})
	defer timer.Stop()
	for _, cmd := range w.cmds {
		_ = cmd.Wait() // its report tells
	}
	w.cmds = nil
}

func sessionsTable(rs rows) string {
	var lines [][]string
	for _, r := range rs {
		s, n := r.Sessions, float64(r.N)
		lines = append(lines, []string{
			r.Contender, strconv.Itoa(r.N), fmt.Sprintf("%.1f", s.Join.Requests/n), each(s.Join.CPU, r.N),
			fmt.Sprintf("%.2f", s.Idle.Requests/n/max(s.Idle.Took.Seconds(), 1e-3)), percent(s.Idle.CPU, s.Idle.Took),
			fmt.Sprintf("%d MB", s.Memory/1e6), short(s.Down), short(s.Settle), each(s.Drain, r.N), strconv.Itoa(s.Forgotten),
			fmt.Sprintf("%d MB", r.PeakMemory/1e6),
		})
	}
	return table([]string{
		"", "sessions", "join: requests each", "server CPU each", "idle: requests/s each", "server at rest", "server's memory",
		"restart", "quiet again", "release: time each", "forgotten", "memory of all processes",
	}, lines)
}
