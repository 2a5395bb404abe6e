package zkstore

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/store"
)

// LeaveTrace implements [store.Ticket]: it is refused. Nothing of an entry outlasts it here.
func (e *entry) LeaveTrace(context.Context) ([]store.Entry, error) {
	return nil, fmt.Errorf("%s: leave a trace of the entry for lock %q: %w", e.session.store, e.req.Name, store.ErrUnsupported)
}

// ForgetTraces implements [store.Store]: there are none.
func (s *Store) ForgetTraces(_ context.Context, name string, _ []uint64) error {
	return fmt.Errorf("%s: forget the traces of lock %q: %w", s, name, store.ErrUnsupported)
}
