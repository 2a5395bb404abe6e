package stile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
)

// announceWait publishes that the holds which ctx comes from wait for the lock name, once the wait has
// lasted for publishAfter. The admitted tenures of others wait with them. The wait begins now; ended must
// be called when it ends. Deadlocks between several locks last longer than that, and short waits cost no
// request.
func announceWait(ctx context.Context, name string, others ...*tenure) (ended func()) {
	innermost := holdOf(ctx)
	if innermost == nil && len(others) == 0 {
		return func() {}
	}
	wait := store.Wait{Name: name, Since: time.Now().Round(0)}
	var mu sync.Mutex
	over, announced := false, []*tenure{}
	timer := time.AfterFunc(publishAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		waiting := slices.Clone(others)
		for h := innermost; h != nil; h = holdOf(h.started) {
			if !h.over.Load() { // otherwise a later hold may have its tenure
				waiting = append(waiting, h.tenure)
			}
		}
		for _, t := range waiting {
			if t.addWait(wait) {
				announced = append(announced, t)
			}
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		for _, t := range announced {
			t.removeWait(wait)
		}
	}
}

// addWait publishes a wait of a holder, and reports whether the tenure is not over.
func (t *tenure) addWait(w store.Wait) bool {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	if t.over {
		return false
	}
	if t.acquiredAt.IsZero() {
		t.acquiredAt = time.Now() // no hold is lent before the rest of the set is admitted
	}
	t.waits = append(t.waits, w)
	t.publishWaitsLocked()
	return true
}

// removeWait publishes that a wait has ended.
func (t *tenure) removeWait(w store.Wait) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	i := slices.Index(t.waits, w)
	t.waits = slices.Delete(t.waits, i, i+1)
	t.publishWaitsLocked()
}

func (t *tenure) publishWaitsLocked() {
	t.publication.attempts = 0
	t.publishLaterLocked(0)
}

// A WaitGraph says which holders wait for other locks. See [Client.WaitGraph].
type WaitGraph struct {
	// Read is when the reading of the lines began, by this machine's wall clock.
	Read time.Time `json:"read"`
	// Waits are sorted by the name of the lock that is held, then by the one that is waited for.
	Waits []HolderWait `json:"waits"`
	// Cycles are the names of locks whose holders wait for each other: a holder of each waits for the
	// next one, and a holder of the last for the first. At least one name of each cycle begins with the
	// prefix. A cycle is listed from its smallest name on. Some cycles may be missing. But each lock that
	// is part of a cycle, and whose name begins with the prefix, is in at least one of those listed.
	Cycles [][]string `json:"cycles"`
}

// A HolderWait is a holder of one lock that waits for another one.
type HolderWait struct {
	// Held is the name of the lock that is held, and Holder its holder.
	Held   string `json:"held"`
	Holder Entry  `json:"holder"`
	// For is the name of the lock that is waited for.
	For string `json:"for"`
	// Since is when the wait began, by the holder's wall clock.
	Since time.Time `json:"since"`
}

// WaitGraph returns which holders of locks whose names begin with prefix wait for other locks. The empty
// prefix means all locks. It reads all lines, whatever the prefix is.
//
// A cycle of mutexes is a deadlock: it lasts until one of its waits is given up, or one of its locks
// is lost or broken. A cycle with read locks or slots may resolve itself. To avoid deadlocks, take several
// locks with [Client.LockAll], or always in the same order.
//
// A wait is known once it has lasted for a second, if it was made with the context of a hold
// ([Hold.Context], or the context of a function run by [Mutex.Do]), or with one derived from it. The wait
// of a [Place] counts from the call of [Place.Wait], not from Join. An entry has room for 16 waits. A
// process may run under a lock that another process holds, as the command of stile run does. The wait of
// such a process is known from the start, without that second, if the field Under of its [Owner] names the
// lock that it runs under.
//
// Waits are published in the background, and lines are read one after another, so the graph may show a wait
// that has just ended, or lack one that has just begun. The holders themselves report what they wait for:
// the graph is for people, and no lock depends on it.
//
// On a store whose entries cannot change, which is Redlock, the error matches [ErrUnsupported].
func (c *Client) WaitGraph(ctx context.Context, prefix string) (*WaitGraph, error) {
	if !c.caps.OwnerUpdates {
		return nil, fmt.Errorf("stile: wait graph: %w by the %s store", ErrUnsupported, c.caps.Kind)
	}
	g := &WaitGraph{Read: time.Now(), Waits: []HolderWait{}, Cycles: [][]string{}}
	lines, err := c.Lines(ctx, "")
	if err != nil {
		return nil, err
	}
	next := map[string][]string{}
	for _, w := range allWaits(lines) {
		next[w.Held] = append(next[w.Held], w.For)
		if strings.HasPrefix(w.Held, prefix) {
			g.Waits = append(g.Waits, w)
		}
	}
	for _, cycle := range cycles(next) {
		if slices.ContainsFunc(cycle, func(name string) bool { return strings.HasPrefix(name, prefix) }) {
			g.Cycles = append(g.Cycles, cycle)
		}
	}
	slices.SortStableFunc(g.Waits, func(a, b HolderWait) int {
		if order := strings.Compare(a.Held, b.Held); order != 0 {
			return order
		}
		return strings.Compare(a.For, b.For)
	})
	return g, nil
}

// allWaits returns the waits that the owners in these lines have published.
func allWaits(lines []Line) (waits []HolderWait) {
	holders := map[store.Held]Entry{}
	for _, l := range lines {
		for _, holder := range l.Holders {
			holders[store.Held{Name: l.Name, Token: holder.Token}] = holder
			for _, w := range holder.Owner.Waits {
				waits = append(waits, HolderWait{Held: l.Name, Holder: holder, For: w.Name, Since: w.Since})
			}
		}
	}
	for _, l := range lines {
		for _, waiter := range l.Waiters {
			for _, held := range waiter.Owner.Under {
				held.Token = tokenOf(orderOf(held.Token)) // of the entry, whichever of its turns it was
				if holder, ok := holders[held]; ok && held.Token != 0 {
					waits = append(waits, HolderWait{Held: held.Name, Holder: holder, For: l.Name, Since: waiter.Owner.Since})
				}
			}
		}
	}
	return waits
}

// cycles returns, for each name that is part of a cycle, a shortest one; each cycle once, from its
// smallest name, and sorted.
func cycles(next map[string][]string) [][]string {
	found := [][]string{}
	for name := range next {
		cycle := shortestCycle(next, name)
		if cycle == nil {
			continue
		}
		smallest := slices.Index(cycle, slices.Min(cycle))
		cycle = slices.Concat(cycle[smallest:], cycle[:smallest])
		if !slices.ContainsFunc(found, func(other []string) bool { return slices.Equal(other, cycle) }) {
			found = append(found, cycle)
		}
	}
	slices.SortFunc(found, slices.Compare)
	return found
}

// shortestCycle returns a shortest path from a name back to it, without its end; nil if there is none.
func shortestCycle(next map[string][]string, from string) []string {
	before := map[string]string{} // on the way from the start
	for level := []string{from}; len(level) > 0; {
		var further []string
		for _, name := range level {
			for _, to := range next[name] {
				if to == from {
					cycle := []string{name}
					for name != from {
						name = before[name]
						cycle = append(cycle, name)
					}
					slices.Reverse(cycle)
					return cycle
				}
				if _, seen := before[to]; !seen {
					before[to] = name
					further = append(further, to)
				}
			}
		}
		level = further
	}
	return nil
}
