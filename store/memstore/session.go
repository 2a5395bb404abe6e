package memstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

type session struct {
	store   *Store
	id      string
	opts    store.SessionOptions
	expires time.Time
	timer   *time.Timer
	closed  bool
	life    context.Context // ends when the session is closed, and with it its requests that are under way
	endLife context.CancelFunc
}

func (se *session) ID() string { return se.id }

func (se *session) Terms() store.Terms { return store.Terms{TTL: se.opts.TTL} }

func (se *session) Confirm(ctx context.Context) error {
	return se.request(ctx, Call{Op: Confirm, Session: se.id}, func() error {
		if err := se.alive(); err != nil {
			return err
		}
		se.extend()
		return nil
	}, nil)
}

func (se *session) Close(ctx context.Context) error {
	s := se.store
	s.mu.Lock()
	se.closed = true
	ended := s.sessions[se.id] != se
	s.mu.Unlock()
	se.endLife()
	if ended {
		return nil
	}
	return s.request(ctx, Call{Op: Close, Session: se.id}, func() error {
		s.end(se)
		return nil
	}, nil)
}

// request carries one call of the session. Closing the session ends it: whoever waits for a reply that will not come
// learns that there is no more to wait for.
func (se *session) request(ctx context.Context, c Call, apply func() error, undo func()) error {
	bounded, cancel := attempts.Within(ctx, se.life)
	defer cancel()
	err := se.store.request(bounded, c, apply, undo)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return fmt.Errorf("%w: %s was closed during %s %s", store.ErrSessionLost, se.id, c.Op, c.Name)
	}
	return err
}

// alive is called with the store's mutex held.
func (se *session) alive() error {
	switch {
	case se.closed:
		return fmt.Errorf("%w: %s is closed", store.ErrSessionLost, se.id)
	case se.store.sessions[se.id] != se:
		return fmt.Errorf("%w: %s has ended", store.ErrSessionLost, se.id)
	}
	return nil
}

// extend is called with the store's mutex held.
func (se *session) extend() {
	se.expires = time.Now().Add(se.opts.TTL)
	se.timer.Reset(se.opts.TTL)
}
