package memstore

import (
	"context"

	"github.com/stilelock/stile/line"
)

// downgrade is [store.Extensions.Downgrade].
func (e *entry) downgrade(ctx context.Context) error {
	s := e.session.store
	return e.session.request(ctx, Call{Op: Downgrade, Session: e.session.id, Name: e.req.Name}, func() error {
		switch {
		case e.gone || e.delivery.Over():
			return e.goneErr()
		case e.req.Mode == line.Shared:
			return nil
		}
		e.req.Mode = line.Shared
		s.admitLocked(e.req.Name)
		for _, other := range s.lines[e.req.Name] {
			s.deliverLocked(other)
		}
		s.changedLocked(e.req.Name)
		return nil
	}, nil)
}
