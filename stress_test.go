package stile_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// TestStress runs several clients, each with several goroutines, that lock and release at random
// while messages are delayed or lost and sessions are cut off for longer than their TTL. Then the
// faults end. At no time are two conflicting holds of a name valid, and tokens increase. After the
// faults every goroutine gets every lock. After all clients were closed, the store is empty.
// Promise: P1
// Bug: etcd #6408
func TestStress(t *testing.T) {
	total := stressCounts{}
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStress(t, seed)
				s.run()
				total.holds += s.counts.holds
				total.lost += s.counts.lost
				total.failed += s.counts.failed
				total.faults += s.counts.faults
				total.yields += s.counts.yields
			})
		})
	}
	t.Logf("%+v", total)
	if total.holds < 1000 || total.lost < 20 || total.failed < 100 || total.faults < 1000 ||
		total.yields < 100 {
		t.Errorf("too few events: got %+v, want at least 1000 holds, 20 lost, 100 failed, 1000 faults, 100 yields", total)
	}
}

const (
	stressClients = 4
	stressEach    = 4 // goroutines of a client
	stressTime    = 2 * time.Minute
	stressTTL     = 2 * time.Second
)

var (
	stressNames = []string{"a", "b", "slots"}
	stressModes = map[string][]line.Mode{
		"a":     {line.Exclusive, line.Exclusive, line.Shared},
		"b":     {line.Exclusive, line.Exclusive, line.Shared},
		"slots": {line.Slot(2)},
	}
)

// stressCounts counts events.
type stressCounts struct{ holds, lost, failed, faults, yields int }

type stress struct {
	t     *testing.T
	seed  uint64
	store *memstore.Store
	end   time.Time // when the faults end

	mu     sync.Mutex
	rnd    *rand.Rand
	cut    map[string]time.Time // until when the requests of a session are dropped
	holds  map[string]map[*stile.Hold]bool
	last   map[string]map[line.Mode]uint64 // the largest token of a valid hold of the name and mode
	counts stressCounts
}

func newStress(t *testing.T, seed uint64) *stress {
	s := &stress{
		t: t, seed: seed, store: memstore.New(), end: time.Now().Add(stressTime),
		rnd: rand.New(rand.NewPCG(seed, 0)), cut: map[string]time.Time{},
		holds: map[string]map[*stile.Hold]bool{}, last: map[string]map[line.Mode]uint64{},
	}
	for _, name := range stressNames {
		s.holds[name] = map[*stile.Hold]bool{}
		s.last[name] = map[line.Mode]uint64{}
	}
	s.store.SetFaults(s.fault)
	return s
}

func (s *stress) errorf(format string, args ...any) {
	s.t.Errorf("seed %d: %s", s.seed, fmt.Sprintf(format, args...))
}

// intN returns a random number in [0, n).
func (s *stress) intN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

// durationUpTo returns a random duration. It is never zero, see [attempts.Sleep].
func (s *stress) durationUpTo(d time.Duration) time.Duration {
	return 1 + time.Duration(s.intN(int(d)))
}

// fault returns a random fault. Late and lost replies make outcomes ambiguous.
func (s *stress) fault(c memstore.Call) memstore.Fault {
	if !time.Now().Before(s.end) { // at s.end itself too: a session that is lost then starts a final round
		return memstore.Fault{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if until, ok := s.cut[c.Session]; ok && c.Session != "" && time.Now().Before(until) && c.Op != memstore.Notify {
		s.counts.faults++
		return memstore.Fault{Drop: true}
	}
	short := time.Duration(s.rnd.IntN(int(20 * time.Millisecond)))
	long := time.Duration(s.rnd.IntN(int(stressTTL)))
	f := memstore.Fault{}
	switch n := s.rnd.IntN(100); {
	case c.Op == memstore.Notify:
		if n < 50 {
			f.Delay = short
		}
	case n < 40:
		f.Delay, f.ReplyDelay = short, short
	case n < 45:
		f.Delay = long
	case n < 50:
		f.ReplyDelay = long
	case n < 54:
		f.Drop = true
	case n < 58:
		f.LoseReply = true
	case n < 60:
		f.Err = errors.New("refused")
	case n < 62:
		f.Err, f.LoseReply = errors.New("failed after the fact"), true
	case n < 64 && c.Session != "":
		s.cut[c.Session] = time.Now().Add(3 * long)
	}
	if f != (memstore.Fault{}) {
		s.counts.faults++
	}
	return f
}

func (s *stress) run() {
	var clients []*stile.Client
	var all, watch sync.WaitGroup
	running, stop := context.WithCancel(context.Background())
	watch.Go(func() {
		for running.Err() == nil {
			time.Sleep(5 * time.Millisecond)
			s.checkAll()
		}
	})
	for i := range stressClients {
		c, err := stile.New(s.store, &stile.Options{TTL: stressTTL, Owner: stile.Owner{PID: i + 1}})
		if err != nil {
			s.t.Fatal(err)
		}
		clients = append(clients, c)
		for range stressEach {
			all.Go(func() {
				for time.Now().Before(s.end) {
					s.use(c)
				}
				s.finalRound(c)
			})
		}
	}
	all.Wait()
	stop()
	watch.Wait()
	for _, c := range clients {
		if err := c.Close(s.t.Context()); err != nil {
			s.errorf("%v", err)
		}
	}
	time.Sleep(2 * stressTTL)
	if lines, err := store.CollectLines(s.store.Lines(s.t.Context(), "")); err != nil || len(lines) > 0 {
		s.errorf("lines at the end: got %+v, %v, want none", lines, err)
	}
	if ids := s.store.Sessions(); len(ids) > 0 {
		s.errorf("sessions at the end: got %v, want none", ids)
	}
}

// use takes a random lock with a random method, holds it and releases it.
func (s *stress) use(c *stile.Client) {
	name := stressNames[s.intN(len(stressNames))]
	m := c.Locker(name, stressModes[name][s.intN(len(stressModes[name]))])
	ctx, cancel := context.WithTimeout(s.t.Context(), s.durationUpTo(10*time.Second))
	defer cancel()
	var hold *stile.Hold
	var err error
	switch s.intN(5) {
	case 0:
		hold, err = m.TryLock(ctx)
	case 1:
		var p *stile.Place
		if p, err = m.Join(ctx); err != nil {
			break
		}
		select {
		case <-p.Ready():
			hold, err = p.Wait(ctx)
		case <-time.After(s.durationUpTo(3 * time.Second)):
			s.leave(p)
			return
		}
	case 2:
		err := m.Do(ctx, func(ctx context.Context, h *stile.Hold) error {
			s.addHold(h)
			select {
			case <-time.After(s.durationUpTo(time.Second)):
			case <-ctx.Done():
			}
			s.removeHold(h)
			return nil
		})
		s.checkError(err)
		return
	default:
		hold, err = m.Lock(ctx)
	}
	if err != nil {
		s.checkError(err)
		return
	}
	s.holdAWhile(hold)
	if s.intN(3) == 0 {
		s.removeHold(hold)
		if hold, err = hold.Yield(ctx); err != nil {
			s.checkError(err)
			return
		}
		s.countYield()
		s.holdAWhile(hold)
	}
	s.release(hold)
}

func (s *stress) holdAWhile(h *stile.Hold) {
	s.addHold(h)
	select {
	case <-time.After(s.durationUpTo(time.Second)):
	case <-h.Context().Done():
	}
}

func (s *stress) countYield() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.yields++
}

func (s *stress) leave(p *stile.Place) {
	ctx, cancel := context.WithTimeout(s.t.Context(), s.durationUpTo(time.Second))
	defer cancel()
	s.checkError(p.Leave(ctx))
}

func (s *stress) release(h *stile.Hold) {
	s.removeHold(h)
	ctx, cancel := context.WithTimeout(s.t.Context(), s.durationUpTo(time.Second))
	defer cancel()
	s.checkError(h.Release(ctx))
	if h.Valid() || h.Context().Err() == nil {
		s.errorf("the hold with token %d is valid after its release", h.Token())
	}
}

// finalRound acquires every lock after the faults have ended.
func (s *stress) finalRound(c *stile.Client) {
	for _, name := range stressNames {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
		h, err := c.Locker(name, stressModes[name][s.intN(len(stressModes[name]))]).Lock(ctx)
		cancel()
		if err != nil {
			s.errorf("after the faults: %v", err)
			return
		}
		s.addHold(h)
		time.Sleep(10 * time.Millisecond)
		s.removeHold(h)
		// A session that was cut off may still be lost.
		if err := h.Release(s.t.Context()); err != nil && !errors.Is(err, stile.ErrLost) {
			s.errorf("after the faults: %v", err)
		}
	}
}

// checkError fails for errors that neither faults nor ended contexts explain.
func (s *stress) checkError(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	s.counts.failed++
	s.mu.Unlock()
	if lost := (*stile.LostError)(nil); errors.As(err, &lost) && lost.Reason != stile.LostDeadline && lost.Reason != stile.LostExpired {
		s.errorf("unexpected reason of a loss: %v", err)
	}
	if errors.Is(err, stile.ErrClosed) || errors.Is(err, stile.ErrGone) && !errors.Is(err, stile.ErrLost) {
		s.errorf("unexpected error: %v", err)
	}
}

// addHold checks a new hold and adds it.
func (s *stress) addHold(h *stile.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.holds++
	s.checkExclusionLocked(h.Name(), h)
	if h.Valid() {
		for mode, last := range s.last[h.Name()] {
			if line.Conflict(mode, h.Mode()) && h.Token() <= last {
				s.errorf("lock %q: got the token %d in mode %v after %d in mode %v", h.Name(), h.Token(), h.Mode(), last, mode)
			}
		}
		s.last[h.Name()][h.Mode()] = max(h.Token(), s.last[h.Name()][h.Mode()])
	}
	s.holds[h.Name()][h] = true
}

// removeHold checks a hold and removes it; it is called before the release.
func (s *stress) removeHold(h *stile.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkExclusionLocked(h.Name(), h)
	if h.Err() != nil {
		s.counts.lost++
	}
	delete(s.holds[h.Name()], h)
}

// checkAll checks all current holds.
func (s *stress) checkAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, holds := range s.holds {
		for h := range holds {
			s.checkExclusionLocked(name, h)
		}
	}
}

// checkExclusionLocked checks that no hold that conflicts with h is valid at the same time as h. It
// checks the others first: an invalid hold never becomes valid again, so if h is valid afterwards,
// all of them were valid at the same time.
func (s *stress) checkExclusionLocked(name string, h *stile.Hold) {
	var others []line.Mode
	for other := range s.holds[name] {
		if other != h && other.Valid() {
			others = append(others, other.Mode())
		}
	}
	if h.Valid() && !line.Admits(h.Mode(), others) {
		s.errorf("lock %q: a hold in mode %v is valid together with holds in the modes %v", name, h.Mode(), others)
	}
}
