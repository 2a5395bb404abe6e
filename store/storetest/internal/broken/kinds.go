package broken

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func kindBugs() []Bug {
	const refused = "kinds/an entry of another kind than the line's is refused"
	return []Bug{
		{
			Name:   "has a line for each kind",
			Caught: refused,
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					req.Name = lineOfKind(req)
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "returns a HeldError to a try of another kind",
			Caught: refused,
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if other, ok := errors.AsType[*store.KindError](err); ok && req.Try {
						return nil, &store.HeldError{Name: req.Name, Holder: &other.Other}
					}
					return t, err
				})
			},
		},
		{
			Name:   "names no entry in a KindError",
			Caught: refused,
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if errors.Is(err, store.ErrKind) {
						return nil, &store.KindError{Name: req.Name, Mode: req.Mode}
					}
					return t, err
				})
			},
		},
		{
			Name:   "does not name the lock in a KindError",
			Caught: refused,
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					t, err := inner.Enqueue(ctx, req)
					if kind, ok := errors.AsType[*store.KindError](err); ok {
						return nil, &store.KindError{Mode: req.Mode, Other: kind.Other}
					}
					return t, err
				})
			},
		},
		{
			Name:   "keeps the kind of an empty line",
			Caught: "kinds/an empty line may get another kind",
			Plant: func(m *memstore.Store) store.Store {
				var mu sync.Mutex
				first := make(map[string]line.Mode)
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					mu.Lock()
					mode, used := first[req.Name]
					if !used {
						first[req.Name], mode = req.Mode, req.Mode
					}
					mu.Unlock()
					if !line.SameKind(mode, req.Mode) {
						return nil, &store.KindError{Name: req.Name, Mode: req.Mode, Other: store.Entry{Mode: mode}}
					}
					return inner.Enqueue(ctx, req)
				})
			},
		},
		{
			Name:   "checks the kind before it adds the entry",
			Caught: "kinds/of concurrent entries of two kinds only one kind joins an empty line",
			Plant: func(m *memstore.Store) store.Store {
				return withEnqueue(m, func(ctx context.Context, inner store.Session, req store.Request) (store.Ticket, error) {
					lines, err := store.CollectLines(m.Lines(ctx, req.Name))
					if err != nil {
						return nil, err
					}
					time.Sleep(time.Millisecond)
					for _, l := range lines {
						if l.Name != lineOfKind(req) && strings.HasPrefix(l.Name, req.Name) {
							return nil, &store.KindError{Name: req.Name, Mode: req.Mode, Other: l.Entries[0]}
						}
					}
					req.Name = lineOfKind(req)
					return inner.Enqueue(ctx, req)
				})
			},
		},
	}
}

func lineOfKind(req store.Request) string {
	if req.Mode.Slots() > 0 {
		return req.Name + "/" + req.Mode.String()
	}
	return req.Name
}
