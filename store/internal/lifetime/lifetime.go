// Package lifetime keeps the life of a session: when it ends, and who is notified of that.
//
// A life ends once, because the session was closed or because it was lost. What holds then, whatever else happens at the
// same moment:
//
//   - Nothing joins a session that has ended. The life ends with the session's own mutex held, and with that mutex held
//     the store takes out everything that has joined. So a goroutine that holds the mutex and finds the life not ended may
//     add to what will be taken out.
//   - Work ends. The context of the life ends, its cause is the reason, and no new work is started.
//   - Nobody is notified of a loss after Close has returned. Close waits for the notifications first, and then for the
//     work; in this order, because a notification may be part of the work.
//
// A store that notifies with its mutex held, one entry at a time, still must not hold the session's: entries are notified,
// and the owner of the session is, when that mutex has been released.
package lifetime

import (
	"context"
	"fmt"
	"sync"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// Life is the life of one session. Its methods may be called by any goroutine.
type Life struct {
	mu   sync.Locker // the session's
	lost func(error)

	ctx       context.Context
	end       context.CancelCauseFunc
	ended     bool // guarded by mu
	work      work.Group
	notifying sync.WaitGroup
}

// New begins a life, which ends no later than parent. mu is the mutex that guards what has joined the session. lost, if it
// is not nil, is called after a loss, when everything that had joined has been notified.
func New(parent context.Context, mu sync.Locker, lost func(error)) *Life {
	l := &Life{mu: mu, lost: lost}
	l.ctx, l.end = context.WithCancelCause(parent)
	return l
}

// Context returns a context that ends with the life. Its cause is why the life has ended.
func (l *Life) Context() context.Context { return l.ctx }

// Err returns why the life has ended, or nil.
func (l *Life) Err() error { return context.Cause(l.ctx) }

// EndedLocked reports whether [Life.End] has been called. Call it with the session's mutex held. It differs from Err only
// if the parent context has ended.
func (l *Life) EndedLocked() bool { return l.ended }

// Start runs f in a goroutine that works for the session. It reports false, and does nothing, if the life has ended.
func (l *Life) Start(f func()) bool { return l.work.Start(f) }

// Within is [attempts.Within] for calls of the session.
func (l *Life) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	return attempts.Within(ctx, l.ctx)
}

// End ends the life with a cause, which matches [store.ErrSessionLost], and reports whether this call did: the life may
// have ended before. takeLocked is called with the session's mutex held, while work can still be started; it takes out
// what has joined. notify is called when the mutex has been released; it tells that to what was taken out. If the session
// was lost, rather than closed, its owner is notified last.
func (l *Life) End(cause error, lost bool, takeLocked, notify func()) bool {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return false
	}
	l.ended = true
	takeLocked()
	l.work.Refuse()
	l.end(cause)
	l.notifying.Add(1)
	defer l.notifying.Done()
	l.mu.Unlock()

	notify()
	if lost && l.lost != nil {
		l.lost(cause)
	}
	return true
}

// AwaitNotified waits until everybody has been notified of a loss. Call it after End.
func (l *Life) AwaitNotified() { l.notifying.Wait() }

// AwaitWork waits until no goroutine works for the session any more. Call it after End and [Life.AwaitNotified].
func (l *Life) AwaitWork() { l.work.Wait() }

// CutShort returns why the life has ended if that is why a call failed that was bounded by ctx and by the life; nil if
// ctx has ended too, or the life has not.
func (l *Life) CutShort(ctx context.Context) error {
	if ctx.Err() == nil {
		return l.Err()
	}
	return nil
}

// WentWith returns the error of a request to take an entry out that has failed with err: if the life cut it short, the
// entry went with its session, and the error matches [store.ErrGone]. It is not for entries that outlast their session.
func (l *Life) WentWith(ctx context.Context, err error) error {
	if l.CutShort(ctx) != nil {
		return fmt.Errorf("%w: %w", store.ErrGone, err)
	}
	return err
}
