package broken

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func lineBugs() []Bug {
	const prefixes = "lines/Lines returns the lines with the prefix sorted by name"
	return []Bug{
		{
			Name:   "lets a hold of a/b block a",
			Caught: "lines/similar names do not block each other",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					if below, err := store.CollectLines(m.Lines(ctx, req.Name+"/")); err == nil && len(below) > 0 && req.Try {
						return nil, &store.HeldError{Name: req.Name, Holder: &below[0].Entries[0]}
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "ignores the case of names",
			Caught: "lines/similar names do not block each other",
			Plant:  func(m *memstore.Store) store.Store { return renamed(m, strings.ToLower) },
		},
		{
			Name:   "truncates long names",
			Caught: "lines/similar names do not block each other",
			Plant: func(m *memstore.Store) store.Store {
				return renamed(m, func(name string) string { return name[:min(len(name), 24)] })
			},
		},
		{
			Name:   "returns the entries of a/b in the line of a",
			Caught: "lines/a line has no entries of another name",
			Plant: func(m *memstore.Store) store.Store {
				return wholeStore{Store: m, line: func(ctx context.Context, name string) (store.Line, error) {
					l, err := m.Line(ctx, name)
					below, _ := store.CollectLines(m.Lines(ctx, name+"/"))
					for _, b := range below {
						l.Entries = append(l.Entries, b.Entries...)
					}
					return l, err
				}}
			},
		},
		{
			Name:   "treats a prefix as a folder",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return withLines(m, func(prefix string, ls []store.Line) []store.Line {
					folder := strings.TrimSuffix(prefix, "/") + "/"
					return slices.DeleteFunc(ls, func(l store.Line) bool {
						return prefix != "" && l.Name != prefix && !strings.HasPrefix(l.Name, folder)
					})
				})
			},
		},
		{
			Name:   "does not sort lines",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return withLines(m, func(_ string, ls []store.Line) []store.Line {
					slices.Reverse(ls)
					return ls
				})
			},
		},
		{
			Name:   "returns all lines for any prefix",
			Caught: prefixes,
			Plant: func(m *memstore.Store) store.Store {
				return wholeStore{Store: m, lines: func(ctx context.Context, _ string) ([]store.Line, error) { return store.CollectLines(m.Lines(ctx, "")) }}
			},
		},
		{
			Name:   "lists the prefix as a name though its line is empty",
			Caught: "lines/Lines leaves out empty lines",
			Plant: func(m *memstore.Store) store.Store {
				seen := make(map[string]bool)
				return withLines(m, func(prefix string, ls []store.Line) []store.Line {
					for _, l := range ls {
						seen[l.Name] = true
					}
					for name := range seen {
						if strings.HasPrefix(name, prefix) && !slices.ContainsFunc(ls, func(l store.Line) bool { return l.Name == name }) {
							ls = append(ls, store.Line{Name: name})
						}
					}
					slices.SortFunc(ls, func(a, b store.Line) int { return strings.Compare(a.Name, b.Name) })
					return ls
				})
			},
		},
		{
			Name:   "reads the lines before they are ranged over",
			Caught: "lines/Lines may be left, and reads anew each time it is ranged over",
			Plant:  func(m *memstore.Store) store.Store { return readEarly{wholeStore{Store: m}} },
		},
		{
			Name:   "fails to read an empty line",
			Caught: "lines/an unused name is an empty line and no error",
			Plant: func(m *memstore.Store) store.Store {
				return wholeStore{Store: m, line: func(ctx context.Context, name string) (store.Line, error) {
					l, err := m.Line(ctx, name)
					if err == nil && len(l.Entries) == 0 {
						err = fmt.Errorf("%w: no lock %q", store.ErrGone, name)
					}
					return l, err
				}}
			},
		},
		{
			Name:   "returns every entry as admitted",
			Caught: "lines/a line has its entries in order",
			Plant:  func(m *memstore.Store) store.Store { return showing(m, func(e *store.Entry) { e.Admitted = true }) },
		},
		{
			Name:   "returns every entry as exclusive",
			Caught: "lines/a line has the mode and admission of each entry",
			Plant: func(m *memstore.Store) store.Store {
				return showing(m, func(e *store.Entry) { e.Mode = line.Exclusive })
			},
		},
		{
			Name:   "returns no session IDs",
			Caught: "lines/a line has its entries in order",
			Plant:  func(m *memstore.Store) store.Store { return showing(m, func(e *store.Entry) { e.Session = "" }) },
		},
		{
			Name:   "drops the owner's labels",
			Caught: "lines/an owner is returned as it was given",
			Plant:  func(m *memstore.Store) store.Store { return showing(m, func(e *store.Entry) { e.Owner.Labels = nil }) },
		},
		{
			Name:   "mangles text of an owner that is not ASCII",
			Caught: "lines/an owner is returned as it was given",
			Plant: func(m *memstore.Store) store.Store {
				return showing(m, func(e *store.Entry) { e.Owner.Host = strings.ReplaceAll(e.Owner.Host, "ö", "?") })
			},
		},
		{
			Name:   "drops the owner's Since",
			Caught: "lines/an owner is returned as it was given",
			Plant: func(m *memstore.Store) store.Store {
				return showing(m, func(e *store.Entry) { e.Owner.Since = time.Time{} })
			},
		},
		{
			Name:   "returns a Remaining that is too long",
			Caught: "lines/an owner is returned as it was given",
			Plant: func(m *memstore.Store) store.Store {
				return showing(m, func(e *store.Entry) { e.Remaining += 100 * time.Hour })
			},
		},
	}
}

// readEarly reads the lines when Lines is called.
type readEarly struct{ wholeStore }

func (s readEarly) Lines(ctx context.Context, prefix string) iter.Seq2[store.Line, error] {
	lines, err := store.CollectLines(s.Store.Lines(ctx, prefix))
	early := wholeStore{Store: s.Store, lines: func(context.Context, string) ([]store.Line, error) { return lines, err }}
	return early.Lines(ctx, prefix)
}

func withLines(m *memstore.Store, change func(prefix string, ls []store.Line) []store.Line) store.Store {
	return wholeStore{Store: m, lines: func(ctx context.Context, prefix string) ([]store.Line, error) {
		ls, err := store.CollectLines(m.Lines(ctx, prefix))
		return change(prefix, ls), err
	}}
}

// showing changes the entries that Line returns.
func showing(m *memstore.Store, change func(*store.Entry)) store.Store {
	return wholeStore{Store: m, line: func(ctx context.Context, name string) (store.Line, error) {
		l, err := m.Line(ctx, name)
		for i := range l.Entries {
			change(&l.Entries[i])
		}
		return l, err
	}}
}

// renamed keeps the line of each name under key(name).
func renamed(m *memstore.Store, key func(name string) string) store.Store {
	return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
		req.Name = key(req.Name)
		return inner.Enqueue(ctx, req)
	})
}
