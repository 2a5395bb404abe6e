package broken

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func recordBugs() []Bug {
	const withdrawn = "record/an entry that was withdrawn cannot write the record"
	return []Bug{
		{
			Name:   "cuts records at a zero byte",
			Caught: "record/a record is read as it was written",
			Plant: withRecord(func(r *recordBook, _ recordWrite, name string, value []byte) {
				value, _, _ = bytes.Cut(value, []byte{0})
				r.put(name, value)
			}),
		},
		{
			Name:   "keeps the caller's bytes as the record",
			Caught: "record/a record does not change with the caller's bytes",
			Plant: func(m *memstore.Store) store.Store {
				return withRecordBook(m, &recordBook{shared: true}, func(r *recordBook, _ recordWrite, name string, value []byte) {
					r.put(name, value)
				})
			},
		},
		{
			Name:   "ignores the removal of a record",
			Caught: "record/an empty value removes a record",
			Plant: withRecord(func(r *recordBook, _ recordWrite, name string, value []byte) {
				if len(value) > 0 {
					r.put(name, value)
				}
			}),
		},
		{
			Name:   "removes the record with the entry",
			Caught: "record/a record outlasts its entry",
			Plant: func(m *memstore.Store) store.Store {
				book := &recordBook{}
				st := withRecordBook(m, book, func(r *recordBook, _ recordWrite, name string, value []byte) { r.put(name, value) })
				return wholeStore{Store: st, record: func(ctx context.Context, name string) ([]byte, error) {
					if l, err := m.Line(ctx, name); err != nil || len(l.Entries) == 0 {
						return nil, err
					}
					return book.get(name), nil
				}}
			},
		},
		{
			Name:   "accepts the record of an expired session",
			Caught: "record/a record outlasts an expired session",
			Plant: withRecord(func(r *recordBook, w recordWrite, name string, value []byte) {
				if w.err == nil || errors.Is(w.err, store.ErrSessionLost) && !w.closed {
					r.put(name, value)
				}
			}),
		},
		{
			Name:   "keeps one record for a name and those below it",
			Caught: "record/each name has a record of its own",
			Plant: func(m *memstore.Store) store.Store {
				book := &recordBook{}
				top := func(name string) string { return strings.TrimSuffix(name, "/below") }
				st := withRecordBook(m, book, func(r *recordBook, _ recordWrite, name string, value []byte) { r.put(top(name), value) })
				return wholeStore{Store: st, record: func(_ context.Context, name string) ([]byte, error) { return book.get(top(name)), nil }}
			},
		},
		{
			Name:   "lists names with a record",
			Caught: "record/a name with a record has no line",
			Plant: func(m *memstore.Store) store.Store {
				book := &recordBook{}
				st := withRecordBook(m, book, func(r *recordBook, _ recordWrite, name string, value []byte) { r.put(name, value) })
				return wholeStore{Store: st, lines: func(ctx context.Context, prefix string) ([]store.Line, error) {
					lines, err := store.CollectLines(m.Lines(ctx, prefix))
					for _, name := range book.names() {
						if strings.HasPrefix(name, prefix) && len(lines) == 0 {
							lines = append(lines, store.Line{Name: name, Entries: []store.Entry{}})
						}
					}
					return lines, err
				}}
			},
		},
		{
			Name:   "accepts the record of a withdrawn entry",
			Caught: withdrawn,
			Plant:  acceptingRecordOf(func(w recordWrite) bool { return w.withdrawn }),
		},
		{
			Name:   "writes the record of a withdrawn entry and returns an error",
			Caught: withdrawn,
			Plant: withRecord(func(r *recordBook, w recordWrite, name string, value []byte) {
				if w.err == nil || w.withdrawn {
					r.put(name, value)
				}
			}),
		},
		{
			Name:   "accepts the record of a closed session",
			Caught: "record/an entry of a closed session cannot write the record",
			Plant:  acceptingRecordOf(func(w recordWrite) bool { return w.closed }),
		},
		{
			Name:   "accepts the record of a broken entry",
			Caught: "record/a broken entry cannot write the record",
			Plant:  acceptingRecordOf(func(w recordWrite) bool { return !w.withdrawn && !errors.Is(w.err, store.ErrSessionLost) }),
		},
		{
			Name:   "accepts the record of an entry released with a delay",
			Caught: "record/an entry released with a delay cannot write the record",
			Plant:  acceptingRecordOf(func(w recordWrite) bool { return w.detached }),
		},
		{
			Name:   "accepts records of exclusive entries only",
			Caught: "record/entries of all modes write the record",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, req store.Request) ticket {
					return ticket{Ticket: inner, setRecord: func(ctx context.Context, value []byte) error {
						if req.Mode != line.Exclusive {
							return store.ErrUnsupported
						}
						return inner.Extensions().SetRecord(ctx, value)
					}}
				})
			},
		},
		{
			Name:   "carries out an abandoned write after a later one",
			Caught: "record/an abandoned write has no effect after a later one",
			Plant:  lateRecord(func(w recordWrite, later []byte) bool { return !w.gone && len(later) > 0 }),
		},
		{
			Name:   "carries out an abandoned write after another holder's",
			Caught: "record/an abandoned write has no effect after later ones by it and another holder",
			Plant:  lateRecord(func(w recordWrite, later []byte) bool { return !w.gone && string(later) == "other" }),
		},
		{
			Name:   "carries out an abandoned write after a removal",
			Caught: "record/an abandoned write has no effect after a later removal",
			Plant:  lateRecord(func(w recordWrite, later []byte) bool { return !w.gone && len(later) == 0 }),
		},
		{
			Name:   "carries out an abandoned write after the entry has left",
			Caught: "record/an abandoned write has no effect after the entry has left",
			Plant:  lateRecord(func(w recordWrite, _ []byte) bool { return w.gone }),
		},
		{
			Name:   "confirms writes that it has not made",
			Caught: "record/a write during an outage is not confirmed",
			Plant: func(m *memstore.Store) store.Store {
				return withTickets(m, func(inner store.Ticket, _ store.Request) ticket {
					return ticket{Ticket: inner, setRecord: func(ctx context.Context, value []byte) error {
						err := inner.Extensions().SetRecord(ctx, value)
						if errors.Is(err, context.DeadlineExceeded) {
							return nil
						}
						return err
					}}
				})
			},
		},
	}
}

// A recordBook has the records that a broken store returns in place of memstore's.
type recordBook struct {
	mu     sync.Mutex
	values map[string][]byte
	shared bool // keep the slices themselves
}

func (r *recordBook) put(name string, value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = make(map[string][]byte)
	}
	if !r.shared {
		value = bytes.Clone(value)
	}
	r.values[name] = value
}

func (r *recordBook) get(name string) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shared {
		return r.values[name]
	}
	return bytes.Clone(r.values[name])
}

// names returns the names that have a record.
func (r *recordBook) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for name, value := range r.values {
		if len(value) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// A recordWrite is a call of SetRecord: what memstore has returned, and what happened to the entry before.
type recordWrite struct {
	err                               error
	withdrawn, detached, closed, gone bool
}

// withRecord returns a store whose records are what put stores.
func withRecord(put func(r *recordBook, w recordWrite, name string, value []byte)) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store { return withRecordBook(m, &recordBook{}, put) }
}

func withRecordBook(m *memstore.Store, book *recordBook, put func(r *recordBook, w recordWrite, name string, value []byte)) store.Store {
	st := observingRecords(m, func(w recordWrite, name string, value []byte) error {
		put(book, w, name, value)
		return w.err
	})
	return wholeStore{Store: st, record: func(_ context.Context, name string) ([]byte, error) { return book.get(name), nil }}
}

// acceptingRecordOf returns a store that reports success for a write that memstore refuses, if accepts
// says so.
func acceptingRecordOf(accepts func(recordWrite) bool) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		return observingRecords(m, func(w recordWrite, _ string, _ []byte) error {
			if accepts(w) {
				return nil
			}
			return w.err
		})
	}
}

// observingRecords returns m with written called after each call of SetRecord. It returns what written
// does.
func observingRecords(m *memstore.Store, written func(w recordWrite, name string, value []byte) error) store.Store {
	return withSessions(m, func(inner store.Session) session {
		var mu sync.Mutex
		closed := false
		return session{
			Session: inner,
			close: func(ctx context.Context) error {
				mu.Lock()
				closed = true
				mu.Unlock()
				return inner.Close(ctx)
			},
			enqueue: func(ctx context.Context, req store.Request) (store.Ticket, error) {
				t, err := inner.Enqueue(ctx, req)
				if err != nil {
					return nil, err
				}
				withdrawn, detached := false, false
				return ticket{
					Ticket: t,
					withdraw: func(ctx context.Context) error {
						mu.Lock()
						withdrawn = true
						mu.Unlock()
						return t.Withdraw(ctx)
					},
					withdrawAfter: func(ctx context.Context, d time.Duration) error {
						mu.Lock()
						detached = true
						mu.Unlock()
						return t.Extensions().WithdrawAfter(ctx, d)
					},
					setRecord: func(ctx context.Context, value []byte) error {
						err := t.Extensions().SetRecord(ctx, value)
						mu.Lock()
						w := recordWrite{err, withdrawn, detached, closed, withdrawn || detached || closed}
						mu.Unlock()
						return written(w, req.Name, value)
					},
				}, nil
			},
		}
	})
}

// lateRecord returns a store that carries out a write that failed after the next write of that name, if
// late says so. gone is set in its argument if the entry of the failed write has left by then.
func lateRecord(late func(w recordWrite, later []byte) bool) func(*memstore.Store) store.Store {
	return func(m *memstore.Store) store.Store {
		book := &recordBook{}
		pending := make(map[string][]byte)
		left := make(map[string]bool) // the entry of the pending write has left
		var mu sync.Mutex
		st := withTickets(m, func(inner store.Ticket, req store.Request) ticket {
			return ticket{
				Ticket: inner,
				withdraw: func(ctx context.Context) error {
					mu.Lock()
					left[req.Name] = true
					mu.Unlock()
					return inner.Withdraw(ctx)
				},
				setRecord: func(ctx context.Context, value []byte) error {
					err := inner.Extensions().SetRecord(ctx, value)
					mu.Lock()
					defer mu.Unlock()
					if string(value) == "abandoned" { // as if its reply were lost each time
						pending[req.Name], left[req.Name] = value, false
						return errors.Join(err, context.Canceled)
					}
					if err == nil {
						book.put(req.Name, value)
					}
					if old, ok := pending[req.Name]; ok && late(recordWrite{gone: left[req.Name]}, value) {
						book.put(req.Name, old)
						delete(pending, req.Name)
					}
					return err
				},
			}
		})
		return wholeStore{Store: st, record: func(_ context.Context, name string) ([]byte, error) { return book.get(name), nil }}
	}
}
