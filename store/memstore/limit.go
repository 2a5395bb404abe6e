package memstore

import "context"

// setLimit is [store.Capabilities.SetLimit].
func (s *Store) setLimit(ctx context.Context, name string, limit int) error {
	return s.request(ctx, Call{Op: SetLimit, Name: name}, func() error {
		if s.limits[name] = limit; limit <= 0 {
			delete(s.limits, name)
		}
		s.admitLocked(name)
		for _, e := range s.lines[name] {
			s.deliverLocked(e)
			e.notifyContendedLocked() // an entry that joined in between may have to wait now
		}
		s.changedLocked(name)
		return nil
	}, nil)
}
