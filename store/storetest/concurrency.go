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

	s.test("holds of many sessions never overlap and their orders rise", func(t *testing.T, w *world) {
		names := []string{w.name("a"), w.name("b"), w.name("a/b")}
		w.contend(clients, 25, names, []line.Mode{line.Exclusive})
	})

	s.needs(SharedModes).test("conflicting holds of many sessions never overlap", func(t *testing.T, w *world) {
		modes := []line.Mode{line.Exclusive, line.Shared, line.Shared, line.Slot(2), line.Slot(2)}
		w.contend(clients, 25, []string{w.name("a"), w.name("b")}, modes)
	})

	s.test("sessions that come and go leave nobody waiting", func(t *testing.T, w *world) {
		const rounds = 10
		name := w.name("lock")
		var all sync.WaitGroup
		for range clients {
			all.Go(func() {
				for range rounds {
					if err := w.comeAndGo(name, clients); err != nil {
						w.brokenf("%v", err)
						return
					}
				}
			})
		}
		all.Wait()
		w.lineOf(name)
	})
}

// contend lets many sessions hold a few locks again and again.
func (w *world) contend(clients, rounds int, names []string, modes []line.Mode) {
	w.t.Helper()
	seed := rand.Uint64()
	w.t.Logf("seed %d", seed)
	floors := make(map[string]*floor)
	for _, n := range names {
		floors[n] = &floor{inside: make(map[*place]bool), last: make(map[line.Mode]uint64)}
	}
	var all sync.WaitGroup
	for i := range clients {
		c, dice := w.openKept(), rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for range rounds {
				name, mode := names[dice.IntN(len(names))], modes[dice.IntN(len(modes))]
				stay := time.Duration(dice.IntN(1000)) * time.Microsecond
				if err := c.visit(floors[name], name, mode, stay, clients); err != nil {
					w.brokenf("%v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

// visit holds a lock once for the duration stay, among so many others who want it.
func (c *client) visit(f *floor, name string, mode line.Mode, stay time.Duration, others int) error {
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
	if err := p.tryWithdraw(); err != nil {
		return fmt.Errorf("session %s, lock %q: Withdraw: %w", c.ID(), name, err)
	}
	return nil
}

// comeAndGo opens a session, waits for the lock, and closes the session without withdrawing.
func (w *world) comeAndGo(name string, others int) error {
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
		time.Sleep(time.Millisecond) // in which the others get in line
	}
	if e := c.tryClose(); err == nil && e != nil {
		err = fmt.Errorf("closing session %s: %w", c.ID(), e)
	}
	return err
}

// floor is where the holders of one lock are, and what they find there.
type floor struct {
	mu     sync.Mutex
	inside map[*place]bool
	last   map[line.Mode]uint64 // the largest order so far of each mode
}

// enter checks that p may be inside together with those who are.
func (f *floor) enter(p *place, order uint64, fencing bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	modes := []line.Mode{}
	for other := range f.inside {
		modes = append(modes, other.mode)
	}
	if !line.Admits(p.mode, modes) {
		err = fmt.Errorf("lock %q: a hold of mode %v was admitted while holds of the modes %v were", p.name, p.mode, modes)
	}
	for mode, last := range f.last {
		if fencing && line.Conflict(p.mode, mode) && order <= last {
			err = fmt.Errorf("lock %q: a hold of mode %v has order %d, after one of mode %v with %d",
				p.name, p.mode, order, mode, last)
		}
	}
	f.inside[p] = true
	f.last[p.mode] = max(f.last[p.mode], order)
	return err
}

func (f *floor) leave(p *place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.inside, p)
}
