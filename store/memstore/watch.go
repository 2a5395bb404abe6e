package memstore

import (
	"context"
	"strings"
	"time"

	"github.com/stilelock/stile/store/internal/watchpump"
)

// watch is one call of [Store.Watch] in progress.
type watch struct {
	prefix string
	notify watchpump.Notify
}

// Watch implements [store.Store]. A fault on [Watch] applies to starting the watch, and one on
// [Notify] delays its events.
func (s *Store) Watch(ctx context.Context, prefix string, changed func(names []string)) error {
	return watchpump.Run(ctx, changed, func(ctx context.Context, notify watchpump.Notify) error {
		w := &watch{prefix: prefix, notify: notify}
		defer s.unwatch(w)
		err := s.request(ctx, Call{Op: Watch, Name: prefix}, func() error {
			s.watches[w] = struct{}{}
			return nil
		}, nil)
		if err != nil {
			return err
		}
		notify()
		<-ctx.Done()
		return ctx.Err()
	})
}

func (s *Store) unwatch(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// changedLocked notifies the watches and followers of a line, now or after the delay of a fault on [Notify].
func (s *Store) changedLocked(name string) {
	for w := range s.watches {
		if !strings.HasPrefix(name, w.prefix) {
			continue
		}
		if f := s.faultLocked(Call{Op: Notify, Name: name}); f.Delay > 0 {
			time.AfterFunc(f.Delay, func() { w.notify(name) })
			continue
		}
		w.notify(name)
	}
	for f := range s.followers {
		f.changedLocked(name, s.faultLocked(Call{Op: Notify, Name: name}).Delay)
	}
}
