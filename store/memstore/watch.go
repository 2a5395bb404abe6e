package memstore

import (
	"context"
	"strings"
	"time"
)

// watch is one call of [Store.Watch] under way.
type watch struct {
	prefix  string
	changes chan struct{} // holds one: the call to come stands for all that happened before it
}

func (w *watch) tell() {
	select {
	case w.changes <- struct{}{}:
	default:
	}
}

// Watch implements [store.Store]. A fault on [Watch] is one of its beginning; what it tells, a fault on [Notify] delays.
func (s *Store) Watch(ctx context.Context, prefix string, changed func()) error {
	w := &watch{prefix: prefix, changes: make(chan struct{}, 1)}
	w.tell()
	err := s.request(ctx, Call{Op: Watch, Name: prefix}, func() error {
		s.watches[w] = struct{}{}
		return nil
	}, nil)
	defer s.unwatch(w)
	if err != nil {
		return err
	}
	for {
		select {
		case <-w.changes:
			changed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
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
