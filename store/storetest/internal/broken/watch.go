package broken

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func watchBugs() []Bug {
	const (
		prefixes = "watch/a watch reports every name with its prefix"
		ended    = "watch/a watch returns when its context ends and stops calling"
		blocks   = "watch/a watch whose callback blocks misses nothing and calls once for all changes"
	)
	return []Bug{
		{
			Name:   "does not say when a watch stands",
			Caught: "watch/a watch calls when it is established",
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
					first := true
					return m.Watch(ctx, prefix, func() {
						if !first {
							changed()
						}
						first = false
					})
				})
			},
		},
		{
			Name:   "does not tell who joins an empty line",
			Caught: "watch/a watch reports an entry joining",
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool { return len(c.joined) > 0 && len(c.was) == 0 })
			},
		},
		{
			Name:   "does not tell who joins behind others",
			Caught: "watch/a watch reports an entry joining behind others",
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool { return len(c.joined) > 0 && len(c.was) > 0 })
			},
		},
		{
			Name:   "does not tell of waiters who leave",
			Caught: "watch/a watch reports a waiter leaving",
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool { return len(c.left) > 0 && !c.left[0].Admitted })
			},
		},
		{
			Name:   "does not tell that a line is empty",
			Caught: "watch/a watch reports a release",
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool { return len(c.left) > 0 && len(c.left) == len(c.was) })
			},
		},
		{
			Name:   "does not tell that somebody was admitted",
			Caught: "watch/a watch reports an admission",
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool { return len(c.left) > 0 && c.left[0].Admitted && len(c.was) > 1 })
			},
		},
		{
			Name:   "does not tell what goes with its session",
			Caught: "watch/a watch reports entries that went with their session",
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool {
					return len(c.left) > 0 && !slices.Contains(m.Sessions(), c.left[0].Session)
				})
			},
		},
		{
			Name:   "does not tell of breaks",
			Caught: "watch/a watch reports a broken entry",
			Plant:  deafToBreaks,
		},
		{
			Name:   "does not tell when an entry goes that has outlasted its session",
			Caught: "watch/a watch reports the end of an outlasting entry",
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool { return len(c.left) > 0 && outlasting(c.left[0]) })
			},
		},
		{
			Name:   "watches the one line that is called as the prefix",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool { return c.prefix != "" && c.name != c.prefix })
			},
		},
		{
			Name:   "takes the prefix for a folder",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool {
					rest := strings.TrimPrefix(c.name, c.prefix)
					return c.prefix != "" && rest != "" && rest[0] != '/'
				})
			},
		},
		{
			Name:   "watches nothing if the prefix is empty",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return deafTo(m, func(c change) bool { return c.prefix == "" })
			},
		},
		{
			Name:   "drops what happens while the function is called",
			Caught: blocks,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
					var calling sync.Mutex
					var calls sync.WaitGroup
					defer calls.Wait()
					return m.Watch(ctx, prefix, func() {
						if calling.TryLock() {
							calls.Go(func() { changed(); calling.Unlock() })
						}
					})
				})
			},
		},
		{
			Name:   "calls for each change although there were many meanwhile",
			Caught: blocks,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
					queue := make(chan struct{}, 1000)
					var calls sync.WaitGroup
					defer calls.Wait()
					defer close(queue)
					calls.Go(func() {
						for range queue {
							changed()
						}
					})
					return m.Watch(ctx, prefix, func() { queue <- struct{}{} })
				})
			},
		},
		{
			Name:   "does not wait for the function to return",
			Caught: blocks,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
					var calls sync.WaitGroup
					defer calls.Wait()
					return m.Watch(ctx, prefix, func() { calls.Go(changed) })
				})
			},
		},
		{
			Name:   "says nothing of why a watch has ended",
			Caught: ended,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
					_ = m.Watch(ctx, prefix, changed)
					return nil
				})
			},
		},
		{
			Name:   "goes on calling after it has returned",
			Caught: ended,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
					err := m.Watch(ctx, prefix, changed)
					time.AfterFunc(time.Millisecond, changed)
					return err
				})
			},
		},
		{
			Name:   "calls every end of a context a cancellation",
			Caught: "watch/a watch returns at its deadline",
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
					_ = m.Watch(ctx, prefix, changed)
					return context.Canceled
				})
			},
		},
		{
			Name:   "looks at the context only when a watch stands",
			Caught: "watch/a watch with an ended context returns",
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
					if ctx.Err() != nil {
						time.Sleep(90 * time.Second)
					}
					return m.Watch(ctx, prefix, changed)
				})
			},
		},
		{
			Name:   "forgets what has happened during an outage",
			Caught: "watch/a watch reports after an outage the changes made during it",
			Plant:  deafInOutages,
		},
	}
}

func withWatch(m *memstore.Store, f func(ctx context.Context, prefix string, changed func()) error) store.Store {
	return wholeStore{Store: m, watch: f}
}

// change is what has happened to one line between two calls.
type change struct {
	prefix, name string
	was          []store.Entry
	joined, left []store.Entry
}

// deafTo does not tell of changes of which deaf says so. The first call is always made.
func deafTo(m *memstore.Store, deaf func(change) bool) store.Store {
	return withWatch(m, func(ctx context.Context, prefix string, changed func()) error {
		return m.Watch(ctx, prefix, differing(m, prefix, deaf, changed))
	})
}

// differing returns a function that calls changed unless all that has changed since its last call is what deaf says.
func differing(m *memstore.Store, prefix string, deaf func(change) bool, changed func()) func() {
	first := true
	before := make(map[string][]store.Entry)
	return func() {
		now := make(map[string][]store.Entry)
		lines, _ := m.Lines(context.Background(), prefix)
		for _, l := range lines {
			now[l.Name] = l.Entries
		}
		tell := first
		for _, c := range changes(prefix, before, now) {
			tell = tell || !deaf(c)
		}
		first, before = false, now
		if tell {
			changed()
		}
	}
}

func changes(prefix string, before, now map[string][]store.Entry) []change {
	names := make(map[string]bool)
	for _, lines := range []map[string][]store.Entry{before, now} {
		for name := range lines {
			names[name] = true
		}
	}
	var all []change
	for name := range names {
		c := change{
			prefix: prefix, name: name, was: before[name],
			joined: without(now[name], before[name]), left: without(before[name], now[name]),
		}
		if len(c.joined)+len(c.left) > 0 {
			all = append(all, c)
		}
	}
	return all
}

// without returns the entries that are not among the others.
func without(entries, others []store.Entry) []store.Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e store.Entry) bool {
		return slices.ContainsFunc(others, func(o store.Entry) bool { return o.Order == e.Order })
	})
}

// deafToBreaks does not tell of entries that were broken.
func deafToBreaks(m *memstore.Store) store.Store {
	var broken sync.Map // of orders
	st := deafTo(m, func(c change) bool {
		if len(c.left) == 0 {
			return false
		}
		_, found := broken.Load(c.left[0].Order)
		return found
	}).(wholeStore)
	st.breakEntry = func(ctx context.Context, name string, order uint64) (store.Entry, error) {
		broken.Store(order, true)
		return m.Break(ctx, name, order)
	}
	return st
}

// deafInOutages makes no call while a session of the store cannot be reached.
func deafInOutages(m *memstore.Store) store.Store {
	var mu sync.Mutex
	var sessions []store.Session
	st := withSessions(m, func(inner store.Session) session {
		mu.Lock()
		defer mu.Unlock()
		sessions = append(sessions, inner)
		return session{Session: inner}
	}).(wholeStore)
	st.watch = func(ctx context.Context, prefix string, changed func()) error {
		return m.Watch(ctx, prefix, func() {
			mu.Lock()
			all := slices.Clone(sessions)
			mu.Unlock()
			for _, se := range all {
				if !inReach(se) {
					return
				}
			}
			changed()
		})
	}
	return st
}

func inReach(se store.Session) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	return !errors.Is(se.Confirm(ctx), context.DeadlineExceeded)
}
