//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// heldResult is the cost of the locks that one client holds.
type heldResult struct {
	TTL        time.Duration `json:"ttl_ns"`
	Take       time.Duration `json:"take_ns"`    // to acquire all
	Heap       int64         `json:"heap"`       // that they take in the client, in bytes
	Goroutines int           `json:"goroutines"` // that they take
	Rest       phase         `json:"rest"`       // while nothing happens; begins and ends with a renewal, except for peers
	ClientCPU  time.Duration `json:"client_cpu_ns"`
	Renewals   int           `json:"renewals"`      // at rest
	Memory     int64         `json:"server_memory"` // at the end of the rest
	Reset      *outageResult `json:"reset,omitempty"`
}

// outageResult is how held locks came through a reset of all connections, or a change of the leader.
type outageResult struct {
	Event    string        `json:"event"`
	Until    time.Duration `json:"until_ns"` // until a renewal was confirmed
	Failed   int           `json:"failed"`   // renewals that were not confirmed
	Lost     int           `json:"lost"`     // locks
	Renewals int           `json:"renewals"` // 0 if the session was lost
}

// ttlOf returns the TTL with which n locks are held.
func ttlOf(c config, n int) time.Duration {
	switch {
	case c.ttl > 0:
		return c.ttl
	case n > 20_000:
		return time.Minute
	}
	return 8 * time.Second
}

// measureHeld lets one client hold r.N locks, and resets its connections at the end if they are many.
func measureHeld(ctx context.Context, c config, r row) (row, error) {
	s, err := startServers(ctx, c, r.Store, 1)
	if err != nil {
		return r, err
	}
	defer s.stop()
	h, err := startHolder(ctx, r.Contender, s.url)
	if err != nil {
		return r, err
	}
	defer func() { _ = h.kill() }()
	result := &heldResult{TTL: ttlOf(c, r.N)}
	if err := result.fill(ctx, s, h, r.N); err != nil {
		return r, err
	}
	if err := result.rest(ctx, s, h, r.Contender, r.N); err != nil {
		return r, err
	}
	if r.Contender == stileName && r.Store != memoryStore && r.N >= manyLocks {
		result.Reset, err = survive(h, "reset", func() error { s.reset(); return nil })
		if err != nil {
			return r, err
		}
	}
	r.Held = result
	return r, nil
}

// fill lets the client acquire n locks, and measures what they take in it.
func (result *heldResult) fill(ctx context.Context, s *servers, h *holder, n int) error {
	if _, err := h.do(command{Op: opOpen, TTL: result.TTL}); err != nil {
		return err
	}
	empty, err := h.do(command{Op: opState})
	if err != nil {
		return err
	}
	took, err := h.do(command{Op: opTake, N: n})
	if err != nil {
		return err
	}
	result.Take = took.Took
	// What is done in the background when a lock has been held for a second is over when the client is
	// quiet.
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	if _, err := s.awaitQuiet(ctx, s.quietRequests(0)); err != nil {
		return err
	}
	full, err := h.do(command{Op: opState})
	result.Heap, result.Goroutines = full.Heap-empty.Heap, full.Goroutines-empty.Goroutines
	return err
}

// restTime is how long many locks are watched while nothing happens.
const restTime = 8 * time.Second

// manyLocks is the number of locks from which on their cost at rest is told from that of the session.
const manyLocks = 1000

// rest measures a time in which the locks are only held.
func (result *heldResult) rest(ctx context.Context, s *servers, h *holder, contender string, n int) error {
	wait := func(time.Duration) (state, error) { return h.do(command{Op: opRenewal, N: 1}) }
	if contender != stileName {
		wait = func(d time.Duration) (state, error) {
			if err := sleep(ctx, d); err != nil {
				return state{}, err
			}
			return h.do(command{Op: opRenewal})
		}
	}
	before, err := wait(0)
	if err != nil {
		return err
	}
	began, err := s.sample(ctx)
	if err != nil {
		return err
	}
	after := before
	// As many renewals as there are in 8 s, or one. Few locks are not worth more.
	for after.Renewals == before.Renewals || n >= manyLocks && time.Since(began.at) < restTime {
		pause := restTime
		if n < manyLocks {
			pause = time.Second
		}
		if after, err = wait(pause); err != nil {
			return err
		}
		if contender != stileName {
			break
		}
	}
	ended, err := s.sample(ctx)
	if err != nil {
		return err
	}
	result.Rest, result.ClientCPU, result.Renewals = ended.since(began), after.CPU-before.CPU, after.Renewals-before.Renewals
	if after.Lost > 0 {
		return fmt.Errorf("%d locks were lost while nothing happened", after.Lost)
	}
	result.Memory, err = s.memory()
	return err
}

// survive lets something happen to the servers, and returns how the locks came through it.
func survive(h *holder, event string, happen func() error) (*outageResult, error) {
	before, err := h.do(command{Op: opRenewal, N: 0})
	if err != nil {
		return nil, err
	}
	if err := happen(); err != nil {
		return nil, err
	}
	after, err := h.do(command{Op: opRenewal, N: 1})
	if err != nil {
		return nil, err
	}
	return &outageResult{
		Event: event, Until: after.Took, Failed: after.Failed - before.Failed, Lost: after.Lost, Renewals: after.Renewals - before.Renewals,
	}, nil
}

// err returns an error if locks were lost.
func (o *outageResult) err() error {
	if o == nil || o.Lost == 0 {
		return nil
	}
	return fmt.Errorf("%d locks were lost after: %s", o.Lost, o.Event)
}

// leaderResult is how the locks that one client holds came through the death of the leader.
type leaderResult struct {
	TTL    time.Duration `json:"ttl_ns"`
	Take   time.Duration `json:"take_ns"`
	Change *outageResult `json:"change"`
}

// measureLeader lets one client hold r.N locks in a cluster of three servers, and kills the leader. On
// Redis it is a master with one replica and one sentinel.
func measureLeader(ctx context.Context, c config, r row) (row, error) {
	s, err := startServers(ctx, c, r.Store, 3)
	if err != nil {
		return r, err
	}
	defer s.stop()
	h, err := startHolder(ctx, r.Contender, s.url)
	if err != nil {
		return r, err
	}
	defer func() { _ = h.kill() }()
	result := &heldResult{TTL: ttlOf(c, r.N)}
	if err := result.fill(ctx, s, h, r.N); err != nil {
		return r, err
	}
	change, err := survive(h, "leader killed", func() error {
		leader, err := s.leader(ctx)
		if err != nil {
			return err
		}
		leader.kill()
		return nil
	})
	if err != nil {
		return r, err
	}
	r.Leader = &leaderResult{TTL: result.TTL, Take: result.Take, Change: change}
	return r, nil
}

func heldTable(rs rows) string {
	var lines [][]string
	for _, r := range rs {
		h, n := r.Held, float64(r.N)
		perRenewal, clientPerRenewal, reset := "–", "–", "–"
		serverRest, memory := percent(h.Rest.CPU, h.Rest.Took), fmt.Sprintf("%d MB", h.Memory/1e6)
		if r.Store == memoryStore { // the client has it
			serverRest, memory = "–", "–"
		}
		if h.Renewals > 0 {
			count := n * float64(h.Renewals)
			if r.Store != memoryStore {
				perRenewal = fmt.Sprintf("%.1f µs", h.Rest.CPU.Seconds()*1e6/count)
			}
			clientPerRenewal = fmt.Sprintf("%.1f µs", h.ClientCPU.Seconds()*1e6/count)
		}
		if h.Reset != nil {
			reset = h.Reset.String()
		}
		lines = append(lines, []string{
			r.Store + ": " + r.Contender, strconv.Itoa(r.N), seconds(h.TTL), seconds(h.Take), fmt.Sprintf("%.1f kB", float64(h.Heap)/n/1000),
			fmt.Sprintf("%.2f", float64(h.Goroutines)/n), percent(h.ClientCPU, h.Rest.Took), serverRest,
			clientPerRenewal, perRenewal, memory, reset,
		})
	}
	return table([]string{
		"", "held", "TTL", "acquired in", "heap each", "goroutines each", "client at rest", "server at rest",
		"client, each at a renewal", "server, each at a renewal", "server's memory", "connections reset",
	}, lines)
}

func (o *outageResult) String() string {
	if o.Failed == 0 {
		return fmt.Sprintf("%d lost", o.Lost)
	}
	return fmt.Sprintf("%d lost, renewals failed: %d", o.Lost, o.Failed)
}

func leaderTable(rs rows) string {
	var lines [][]string
	for _, r := range rs {
		lines = append(lines, []string{r.Store, strconv.Itoa(r.N), seconds(r.Leader.TTL), seconds(r.Leader.Take), r.Leader.Change.String()})
	}
	return table([]string{"", "held", "TTL", "acquired in", "leader killed"}, lines)
}

func seconds(d time.Duration) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
}

func percent(cpu, took time.Duration) string {
	return fmt.Sprintf("%.1f %%", 100*cpu.Seconds()/took.Seconds())
}

// lost returns an error if rows report lost locks or forgotten waiters.
func (rs rows) lost() error {
	var errs []error
	for _, r := range rs {
		if r.Contender != stileName {
			continue
		}
		if err := r.lost(); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", r, err))
		}
	}
	return errors.Join(errs...)
}

func (r row) lost() error {
	switch {
	case r.Held != nil:
		return r.Held.Reset.err()
	case r.Leader != nil:
		return r.Leader.Change.err()
	case r.Sessions != nil && r.Sessions.Forgotten+r.Sessions.Lost > 0:
		return fmt.Errorf("%d waiters were forgotten, %d holds lost: %s", r.Sessions.Forgotten, r.Sessions.Lost, r.Sessions.FirstErr)
	}
	return nil
}
