// Package lifetime manages the life of a session: its end, and the notifications of that.
//
// A life ends once, because the session was closed or because it was lost. These invariants hold
// under concurrency:
//
//   - Nothing joins a session that has ended. The life ends with the session's mutex held, and with
//     that mutex held the store takes out everything that has joined. So a goroutine that holds the
//     mutex and finds the life not ended may add to what will be taken out.
//   - Work ends. The context of the life ends with the reason as its cause, and no new work is
//     started.
//   - Nobody is notified of a loss after Close has returned. Close waits for the notifications
//     first and then for the work; in this order, because a notification may be part of the work.
//
// The owners of the entries, and then of the session, are notified after the session's mutex has
// been released. A store that holds another mutex while it notifies, one entry at a time, must not
// hold the session's.
package lifetime

import (
	"context"
	"fmt"
	"sync"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// Life is the life of one session. Its methods may be called concurrently.
type Life struct {
	mu   sync.Locker // the session's mutex
	lost func(error)

	ctx       context.Context
	end       context.CancelCauseFunc
	ended     bool // guarded by mu
	work      work.Group
	notifying sync.WaitGroup
}

// New begins a life, which also ends with parent. mu is the mutex that guards what has joined the
// session. lost, if not nil, is called after a loss, when everything that had joined has been
// notified.
func New(parent context.Context, mu sync.Locker, lost func(error)) *Life {
	l := &Life{mu: mu, lost: lost}
	l.ctx, l.end = context.WithCancelCause(parent)
	return l
}

// Context returns a context that ends with the life. Its cause is the reason.
func (l *Life) Context() context.Context { return l.ctx }

// Err returns why the life has ended; nil if it has not.
func (l *Life) Err() error { return context.Cause(l.ctx) }

// EndedLocked reports whether [Life.End] has been called. Call it with the session's mutex held. It
// differs from Err only if the parent context has ended.
func (l *Life) EndedLocked() bool { return l.ended }

// Start runs f in a goroutine that works for the session. If the life has ended it does nothing and
// reports false.
func (l *Life) Start(f func()) bool { return l.work.Start(f) }

// Within is [attempts.Within] for calls of the session.
func (l *Life) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	return attempts.Within(ctx, l.ctx)
}

// End ends the life with a cause, which matches [store.ErrSessionLost], and reports true; if the
// life has ended before it does nothing and reports false. It calls takeLocked, which takes out
// what has joined, with the session's mutex held and while work can still be started. After
// releasing the mutex it calls notify, which notifies what was taken out. If lost is true, the
// session was lost rather than closed, and its owner is notified last.
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

// AwaitNotified waits until all notifications of a loss have returned. Call it after End.
func (l *Life) AwaitNotified() { l.notifying.Wait() }

// AwaitWork waits until no goroutine works for the session. Call it after End and
// [Life.AwaitNotified].
func (l *Life) AwaitWork() { l.work.Wait() }

// EndedDuring returns why the life has ended, for a failed call that was bounded by ctx and by the
// life. It returns nil if ctx has ended too, or the life has not: then the failure has another
// reason.
func (l *Life) EndedDuring(ctx context.Context) error {
	if ctx.Err() == nil {
		return l.Err()
	}
	return nil
}

// RemovedWithSession returns the error of a request to remove an entry that has failed with err. If the end
// of the life cut the request short, the entry is removed with its session, and the error matches
// [store.ErrGone]. It is not for entries that outlast their session.
func (l *Life) RemovedWithSession(ctx context.Context, err error) error {
	if l.EndedDuring(ctx) != nil {
		return fmt.Errorf("%w: %w", store.ErrGone, err)
	}
	return err
}
