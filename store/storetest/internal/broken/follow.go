package broken

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func followBugs() []Bug {
	return []Bug{
		{
			Name:   "begins to follow without the lines that are there",
			Caught: "follow/following begins with all lines that have the prefix",
			Plant: withChanges(func(c store.Changes) (store.Changes, bool) {
				if c.All {
					c.Lines = nil
				}
				return c, true
			}),
		},
		{
			Name:   "does not report that a holder leaves while another one waits",
			Caught: "follow/following reports every state of a line in order",
			Plant: withStates(func(was, now store.Line) bool {
				return len(was.Entries) != 2 || len(now.Entries) != 1
			}),
		},
		{
			Name:   "reports the remaining time of sessions",
			Caught: "follow/following reports no remaining time",
			Plant: withChanges(func(c store.Changes) (store.Changes, bool) {
				for i := range c.Lines {
					c.Lines[i].Entries = slices.Clone(c.Lines[i].Entries)
					for j := range c.Lines[i].Entries {
						c.Lines[i].Entries[j].Remaining = time.Second
					}
				}
				return c, true
			}),
		},
		{
			Name:   "follows without reporting that a line is empty",
			Caught: "follow/following reports entries that are broken or go with their session",
			Plant:  withStates(func(_, now store.Line) bool { return len(now.Entries) > 0 }),
		},
		{
			Name:   "does not report changed owners",
			Caught: "follow/following reports a changed owner",
			Plant: withStates(func(was, now store.Line) bool {
				same := func(a, b store.Entry) bool { return a.Order == b.Order && a.Admitted == b.Admitted }
				return !slices.EqualFunc(was.Entries, now.Entries, same)
			}),
		},
		{
			Name:   "does not report a changed limit",
			Caught: "follow/following reports a limit, and whom it admits",
			Plant:  withStates(func(was, now store.Line) bool { return was.Limit == now.Limit }),
		},
		{
			Name:   "does not report lines whose name continues after a slash",
			Caught: "follow/following reports the names with the prefix and no others",
			Plant: func(m *memstore.Store) store.Store {
				return withFollow(m, func(ctx context.Context, prefix string, changed func(store.Changes)) error {
					return m.Capabilities().Follow(ctx, prefix, func(c store.Changes) {
						if len(c.Lines) != 1 || !strings.HasPrefix(c.Lines[0].Name, prefix+"/") {
							changed(c)
						}
					})
				})
			},
		},
		{
			Name:   "drops the states that come while the callback blocks",
			Caught: "follow/a follower that blocks gets the newest state",
			Plant: func(m *memstore.Store) store.Store {
				return withFollow(m, func(ctx context.Context, prefix string, changed func(store.Changes)) error {
					received := make(chan store.Changes)
					ended := make(chan error, 1)
					go func() {
						ended <- m.Capabilities().Follow(ctx, prefix, func(c store.Changes) {
							if c.All {
								received <- c
								return
							}
							select {
							case received <- c:
							case <-time.After(time.Microsecond):
							}
						})
					}()
					for {
						select {
						case c := <-received:
							changed(c)
						case err := <-ended:
							return err
						}
					}
				})
			},
		},
		{
			Name:   "does not report lines with very many entries",
			Caught: "follow/following a long line shows its newest state",
			Plant:  withStates(func(_, now store.Line) bool { return len(now.Entries) <= store.MaxFollowed }),
		},
		{
			Name:   "follows on after the end of the context",
			Caught: "follow/following returns when its context ends and stops calling",
			Plant: func(m *memstore.Store) store.Store {
				return withFollow(m, func(ctx context.Context, prefix string, changed func(store.Changes)) error {
					go func() { _ = m.Capabilities().Follow(ctx, prefix, changed) }()
					<-ctx.Done()
					return nil
				})
			},
		},
		{
			Name:   "does not report what has changed during an outage",
			Caught: "follow/following shows after an outage the changes made during it",
			Plant: func(m *memstore.Store) store.Store {
				st, connected := withOutages(m)
				st.follow = func(ctx context.Context, prefix string, changed func(store.Changes)) error {
					return m.Capabilities().Follow(ctx, prefix, func(c store.Changes) {
						if connected() {
							changed(c)
						}
					})
				}
				return st
			},
		},
	}
}

func withFollow(m *memstore.Store, f func(ctx context.Context, prefix string, changed func(store.Changes)) error) store.Store {
	return wholeStore{Store: m, follow: f}
}

// withChanges reports the changes that replace returns, if it returns true.
func withChanges(replace func(store.Changes) (store.Changes, bool)) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return withFollow(m, func(ctx context.Context, prefix string, changed func(store.Changes)) error {
			return m.Capabilities().Follow(ctx, prefix, func(c store.Changes) {
				c.Lines = slices.Clone(c.Lines)
				if c, ok := replace(c); ok {
					changed(c)
				}
			})
		})
	}
}

// withStates reports a state of a line only if reported returns true for the state before and this one.
func withStates(reported func(was, now store.Line) bool) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return withFollow(m, func(ctx context.Context, prefix string, changed func(store.Changes)) error {
			was := make(map[string]store.Line)
			return m.Capabilities().Follow(ctx, prefix, func(c store.Changes) {
				report := c.All
				for _, l := range c.Lines {
					report = report || reported(was[l.Name], l)
					was[l.Name] = l
				}
				if report {
					changed(c)
				}
			})
		})
	}
}
