// Package work is about the goroutines of a session or a store: a [Group] counts them, so that their end can be waited
// for, and a [Signal] wakes one.
package work

import "sync"

// Group is the goroutines that work for one session or store. The zero Group has none, and is ready. Its methods may be called at any
// time, from any goroutine, and with any mutex held; but see [Group.Wait].
type Group struct {
	mu    sync.Mutex // taken last of all
	group sync.WaitGroup
	over  bool
}

// Start runs f in a goroutine. It reports false, and does nothing, after [Group.Refuse]: what f would work for has
// ended.
func (g *Group) Start(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.group.Go(f)
	}
	return !g.over
}

// Refuse makes Start do nothing from here on. It ends no goroutine.
func (g *Group) Refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
}

// Wait waits until all goroutines of the group have ended. Call it after [Group.Refuse], and with no mutex held that one
// of them may want.
func (g *Group) Wait() { g.group.Wait() }
