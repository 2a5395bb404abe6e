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
			Name:   "does not call when the watch is established",
			Caught: "watch/a watch calls when it is established",
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
					first := true
					return m.Watch(ctx, prefix, func(names []string) {
						if !first {
							changed(names)
						}
						first = false
					})
				})
			},
		},
		{
			Name:   "does not report an entry joining an empty line",
			Caught: "watch/a watch reports an entry joining",
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool { return len(c.joined) > 0 && len(c.was) == 0 })
			},
		},
		{
			Name:   "does not report an entry joining behind others",
			Caught: "watch/a watch reports an entry joining behind others",
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool { return len(c.joined) > 0 && len(c.was) > 0 })
			},
		},
		{
			Name:   "does not report waiters leaving",
			Caught: "watch/a watch reports a waiter leaving",
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool { return len(c.left) > 0 && !c.left[0].Admitted })
			},
		},
		{
			Name:   "does not report that a line is empty",
			Caught: "watch/a watch reports a release",
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool { return len(c.left) > 0 && len(c.left) == len(c.was) })
			},
		},
		{
			Name:   "does not report admissions",
			Caught: "watch/a watch reports an admission",
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool { return len(c.left) > 0 && c.left[0].Admitted && len(c.was) > 1 })
			},
		},
		{
			Name:   "does not report entries that go with their session",
			Caught: "watch/a watch reports entries that went with their session",
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool {
					return len(c.left) > 0 && !slices.Contains(m.Sessions(), c.left[0].Session)
				})
			},
		},
		{
			Name:   "does not report breaks",
			Caught: "watch/a watch reports a broken entry",
			Plant:  hidingBreaks,
		},
		{
			Name:   "does not report the end of outlasting entries",
			Caught: "watch/a watch reports the end of an outlasting entry",
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool { return len(c.left) > 0 && outlasting(c.left[0]) })
			},
		},
		{
			Name:   "watches only the line named like the prefix",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool { return c.prefix != "" && c.name != c.prefix })
			},
		},
		{
			Name:   "treats the prefix as a folder",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool {
					rest := strings.TrimPrefix(c.name, c.prefix)
					return c.prefix != "" && rest != "" && rest[0] != '/'
				})
			},
		},
		{
			Name:   "watches nothing if the prefix is empty",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return hidingChanges(m, func(c change) bool { return c.prefix == "" })
			},
		},
		{
			Name:   "drops changes during a call",
			Caught: blocks,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
					var calling sync.Mutex
					var calls sync.WaitGroup
					defer calls.Wait()
					return m.Watch(ctx, prefix, func(names []string) {
						if calling.TryLock() {
							calls.Go(func() { changed(names); calling.Unlock() })
						}
					})
				})
			},
		},
		{
			Name:   "calls once for each change during a call",
			Caught: blocks,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
					queue := make(chan []string, 1000)
					var calls sync.WaitGroup
					defer calls.Wait()
					defer close(queue)
					calls.Go(func() {
						for names := range queue {
							changed(names)
						}
					})
					return m.Watch(ctx, prefix, func(names []string) { queue <- names })
				})
			},
		},
		{
			Name:   "makes concurrent calls",
			Caught: blocks,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
					var calls sync.WaitGroup
					defer calls.Wait()
					return m.Watch(ctx, prefix, func(names []string) { calls.Go(func() { changed(names) }) })
				})
			},
		},
		{
			Name:   "returns no error when the context ends",
			Caught: ended,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
					_ = m.Watch(ctx, prefix, changed)
					return nil
				})
			},
		},
		{
			Name:   "calls after Watch has returned",
			Caught: ended,
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
					err := m.Watch(ctx, prefix, changed)
					time.AfterFunc(time.Millisecond, func() { changed(nil) })
					return err
				})
			},
		},
		{
			Name:   "returns context.Canceled at a deadline",
			Caught: "watch/a watch returns at its deadline",
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
					_ = m.Watch(ctx, prefix, changed)
					return context.Canceled
				})
			},
		},
		{
			Name:   "checks the context only after the watch is established",
			Caught: "watch/a watch with an ended context returns",
			Plant: func(m *memstore.Store) store.Store {
				return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
					if ctx.Err() != nil {
						time.Sleep(90 * time.Second)
					}
					return m.Watch(ctx, prefix, changed)
				})
			},
		},
		{
			Name:   "names lines in the first call",
			Caught: "watch/a watch calls when it is established",
			Plant: func(m *memstore.Store) store.Store {
				return withNames(m, func([]string) []string { return []string{} })
			},
		},
		{
			Name:   "names other lines than those that have changed",
			Caught: "watch/a watch reports an entry joining",
			Plant: func(m *memstore.Store) store.Store {
				return withNames(m, func(names []string) []string {
					for i := range names {
						names[i] += "-other"
					}
					return names
				})
			},
		},
		{
			Name:   "names lines without the prefix",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return withNames(m, func(names []string) []string {
					if len(names) > 0 {
						return append([]string{""}, names...)
					}
					return names
				})
			},
		},
		{
			Name:   "drops changes made during an outage",
			Caught: "watch/a watch reports after an outage the changes made during it",
			Plant:  notCallingInOutages,
		},
	}
}

func withWatch(m *memstore.Store, f func(ctx context.Context, prefix string, changed func([]string)) error) store.Store {
	return wholeStore{Store: m, watch: f}
}

// withNames calls with the names that replace returns.
func withNames(m *memstore.Store, replace func(names []string) []string) store.Store {
	return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
		return m.Watch(ctx, prefix, func(names []string) { changed(replace(names)) })
	})
}

// change is the difference of one line between two calls.
type change struct {
	prefix, name string
	was          []store.Entry
	joined, left []store.Entry
}

// hidingChanges does not call for changes for which hidden returns true. It always makes the first
// call.
func hidingChanges(m *memstore.Store, hidden func(change) bool) store.Store {
	return withWatch(m, func(ctx context.Context, prefix string, changed func([]string)) error {
		return m.Watch(ctx, prefix, unlessHidden(m, prefix, hidden, changed))
	})
}

// unlessHidden returns a function that calls changed unless all changes since its last call are
// hidden.
func unlessHidden(m *memstore.Store, prefix string, hidden func(change) bool, changed func([]string)) func([]string) {
	first := true
	before := make(map[string][]store.Entry)
	return func(names []string) {
		now := make(map[string][]store.Entry)
		lines, _ := store.CollectLines(m.Lines(context.Background(), prefix))
		for _, l := range lines {
			now[l.Name] = l.Entries
		}
		call := first
		for _, c := range changes(prefix, before, now) {
			call = call || !hidden(c)
		}
		first, before = false, now
		if call {
			changed(names)
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

// without returns the entries that others does not contain.
func without(entries, others []store.Entry) []store.Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e store.Entry) bool {
		return slices.ContainsFunc(others, func(o store.Entry) bool { return o.Order == e.Order })
	})
}

// hidingBreaks does not call for broken entries.
func hidingBreaks(m *memstore.Store) store.Store {
	var broken sync.Map // keys are orders
	st := hidingChanges(m, func(c change) bool {
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

// notCallingInOutages makes no call while a session of the store is disconnected.
func notCallingInOutages(m *memstore.Store) store.Store {
	st, connected := withOutages(m)
	st.watch = func(ctx context.Context, prefix string, changed func([]string)) error {
		return m.Watch(ctx, prefix, func(names []string) {
			if connected() {
				changed(names)
			}
		})
	}
	return st
}

// withOutages returns m, and a function that reports whether all its sessions are connected.
func withOutages(m *memstore.Store) (st wholeStore, connected func() bool) {
	var mu sync.Mutex
	var sessions []store.Session
	st = withSessions(m, func(inner store.Session) session {
		mu.Lock()
		defer mu.Unlock()
		sessions = append(sessions, inner)
		return session{Session: inner}
	}).(wholeStore)
	return st, func() bool {
		mu.Lock()
		all := slices.Clone(sessions)
		mu.Unlock()
		return !slices.ContainsFunc(all, func(se store.Session) bool { return !isConnected(se) })
	}
}

func isConnected(se store.Session) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	return !errors.Is(se.Confirm(ctx), context.DeadlineExceeded)
}
