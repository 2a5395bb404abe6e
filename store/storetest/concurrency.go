package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
)

func concurrency(s suite) {
	const clients = 8

	s.test("holds of many sessions never overlap and their orders increase", func(t *testing.T, w *testEnv) {
		names := []string{w.name("a"), w.name("b"), w.name("a/b")}
		w.contend(clients, 25, names, []line.Mode{line.Exclusive})
	})

	s.needs(SharedModes).test("conflicting holds of many sessions never overlap", func(t *testing.T, w *testEnv) {
		w.contend(clients, 25, []string{w.name("a"), w.name("b")}, []line.Mode{line.Exclusive, line.Shared, line.Shared})
		w.contend(clients, 15, []string{w.name("slots")}, []line.Mode{line.Slot(2)})
	})

	// Bug: solid_queue #456
	s.test("no waiter is stranded when sessions open and close", func(t *testing.T, w *testEnv) {
		const rounds = 10
		name := w.name("lock")
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				for range rounds {
					if err := w.acquireAndClose(name, clients); err != nil {
						w.brokenf("%v", err)
						return
					}
				}
			})
		}
		all.Wait()
		w.wantLine(name)
	})
}

// contend lets many sessions hold the given locks repeatedly.
func (w *testEnv) contend(clients, rounds int, names []string, modes []line.Mode) {
	w.t.Helper()
	seed := rand.Uint64()
	w.t.Logf("seed %d", seed)
	holdersOf := make(map[string]*holders)
	for _, n := range names {
		holdersOf[n] = &holders{inside: make(map[*entry]bool), last: make(map[line.Mode]uint64)}
	}
	var all sync.WaitGroup
	for i := range clients {
		c, rng := w.openKept(), rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for range rounds {
				name, mode := names[rng.IntN(len(names))], modes[rng.IntN(len(modes))]
				stay := time.Duration(rng.IntN(1000)) * time.Microsecond
				if err := c.visit(holdersOf[name], name, mode, stay, clients); err != nil {
					w.brokenf("%v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

// visit holds a lock once for the duration stay, in competition with the given number of others.
func (c *client) visit(f *holders, name string, mode line.Mode, stay time.Duration, others int) error {
	p, err := c.tryEnqueue(name, mode, false)
	if err != nil {
		return err
	}
	st, _, err := p.await(time.Duration(others)*c.w.h.Grace, "admitted", isAdmitted)
	if err != nil {
		return err
	}
	if err := f.enter(p, st.Order, c.w.caps.Fencing); err != nil {
		c.w.brokenf("%v", err)
	}
	time.Sleep(stay)
	f.leave(p)
	if err := p.tryLeave(); err != nil {
		return fmt.Errorf("session %s, lock %q: Withdraw: %w", c.ID(), name, err)
	}
	return nil
}

// acquireAndClose opens a session, acquires the lock, and closes the session without withdrawing.
func (w *testEnv) acquireAndClose(name string, others int) error {
	ctx, cancel := w.call()
	defer cancel()
	c, err := w.tryOpen(ctx, w.nextOwner(), w.h.TTL)
	if err != nil {
		return err
	}
	c.keep()
	p, err := c.tryEnqueue(name, line.Exclusive, false)
	if err == nil {
		_, _, err = p.await(time.Duration(others)*w.h.Grace, "admitted", isAdmitted)
		time.Sleep(time.Millisecond) // lets the others join the line
	}
	if e := c.tryClose(); err == nil && e != nil {
		err = fmt.Errorf("closing session %s: %w", c.ID(), e)
	}
	return err
}

// holders are the current holders of one lock and the orders admitted so far.
type holders struct {
	mu     sync.Mutex
	inside map[*entry]bool
	last   map[line.Mode]uint64 // largest order so far of each mode
}

// enter adds p and checks that it does not conflict with the current holders, and that its order is
// larger than those of all earlier conflicting holds.
func (f *holders) enter(p *entry, order uint64, fencing bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	modes := []line.Mode{}
	for other := range f.inside {
		modes = append(modes, other.mode)
	}
	if !line.Admits(p.mode, modes) {
		err = fmt.Errorf("lock %q: a hold of mode %v was admitted beside holds of modes %v", p.name, p.mode, modes)
	}
	for mode, last := range f.last {
		if fencing && line.Conflict(p.mode, mode) && order <= last {
			err = fmt.Errorf("lock %q: a hold of mode %v has order %d, want more than %[5]d, the order of an earlier hold of mode %[4]v",
				p.name, p.mode, order, mode, last)
		}
	}
	f.inside[p] = true
	f.last[p.mode] = max(f.last[p.mode], order)
	return err
}

func (f *holders) leave(p *entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.inside, p)
}
