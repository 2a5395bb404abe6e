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
	life    context.Context // ends when the session is closed; bounds its requests
	endLife context.CancelFunc
}

func (se *session) ID() string { return se.id }

func (se *session) Terms() store.Terms { return store.Terms{TTL: se.opts.TTL} }

func (se *session) Confirm(ctx context.Context) error {
	return se.request(ctx, Call{Op: Confirm, Session: se.id}, func() error {
		if err := se.aliveLocked(); err != nil {
			return err
		}
		se.extendLocked()
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
		s.endLocked(se)
		return nil
	}, nil)
}

// request makes one call of the session. Closing the session ends it, with an error matching
// [store.ErrSessionLost].
func (se *session) request(ctx context.Context, c Call, apply func() error, undo func()) error {
	bounded, cancel := attempts.Within(ctx, se.life)
	defer cancel()
	err := se.store.request(bounded, c, apply, undo)
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return fmt.Errorf("%w: %s was closed during %s %s", store.ErrSessionLost, se.id, c.Op, c.Name)
	}
	return err
}

func (se *session) aliveLocked() error {
	switch {
	case se.closed:
		return fmt.Errorf("%w: %s is closed", store.ErrSessionLost, se.id)
	case se.store.sessions[se.id] != se:
		return fmt.Errorf("%w: %s has ended", store.ErrSessionLost, se.id)
	}
	return nil
}

func (se *session) extendLocked() {
	se.expires = time.Now().Add(se.opts.TTL)
	se.timer.Reset(se.opts.TTL)
}
