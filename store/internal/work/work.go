// Package work has two tools for the goroutines of a session or a store: a [Group] counts them, so
// that the owner can wait for their end, and a [Signal] wakes one.
package work

import "sync"

// Group counts the goroutines that work for one session or store. The zero Group is empty and ready
// for use. Its methods may be called concurrently and with any mutex held, except [Group.Wait].
type Group struct {
	mu    sync.Mutex // a leaf: no other mutex is taken while it is held
	group sync.WaitGroup
	over  bool
}

// Start runs f in a goroutine. After [Group.Refuse] it does nothing and reports false.
func (g *Group) Start(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.group.Go(f)
	}
	return !g.over
}

// Refuse makes Start refuse from now on. It does not stop running goroutines.
func (g *Group) Refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
}

// Wait waits until all goroutines of the group have ended. Call it after [Group.Refuse], and with
// no mutex held that one of them needs.
func (g *Group) Wait() { g.group.Wait() }
