package memstore

import (
	"context"
	"slices"
)

// setRecord is [store.Extensions.SetRecord].
func (e *entry) setRecord(ctx context.Context, value []byte) error {
	s, name := e.session.store, e.req.Name
	return e.session.request(ctx, Call{Op: SetRecord, Session: e.session.id, Name: name}, func() error {
		if e.gone || e.delivery.Over() {
			return e.goneErr()
		}
		if s.records[name] = slices.Clone(value); len(value) == 0 {
			delete(s.records, name)
		}
		return nil
	}, nil)
}

// record is [store.Capabilities.Record].
func (s *Store) record(ctx context.Context, name string) ([]byte, error) {
	var value []byte
	err := s.request(ctx, Call{Op: ReadRecord, Name: name}, func() error {
		value = slices.Clone(s.records[name])
		return nil
	}, nil)
	return value, err
}
