package memstore

import (
	"context"
	"strings"
	"time"

	"github.com/stilelock/stile/store/internal/watchpump"
)

// watch is one call of [Store.Watch] under way.
type watch struct {
	prefix string
	tell   func()
}

// Watch implements [store.Store]. A fault on [Watch] is one of its beginning; what it tells, a fault on [Notify] delays.
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	return watchpump.Run(ctx, changed, func(ctx context.Context, tell func()) error {
		w := &watch{prefix: prefix, tell: tell}
		defer s.unwatch(w)
		err := s.request(ctx, Call{Op: Watch, Name: prefix}, func() error {
			s.watches[w] = struct{}{}
			return nil
		}, nil)
		if err != nil {
			return err
		}
		tell()
		<-ctx.Done()
		return ctx.Err()
	})
}

func (s *Store) unwatch(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// changed tells those who watch that something has happened in a line, now or after the delay that the faults ask for. It
// is called with s.mu held.
func (s *Store) changed(name string) {
	for w := range s.watches {
		if !strings.HasPrefix(name, w.prefix) {
			continue
		}
		if f := s.fault(Call{Op: Notify, Name: name}); f.Delay > 0 {
			time.AfterFunc(f.Delay, w.tell)
			continue
		}
		w.tell()
	}
}
