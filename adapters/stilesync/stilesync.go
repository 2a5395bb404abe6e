// Package stilesync makes a [sync.Locker] of a distributed lock, for code that has neither a context nor
// errors.
//
// Use it only where the code cannot be changed. Everything else should call [stile.Mutex.Lock] or
// [stile.Mutex.Do], because a sync.Locker lacks what a distributed lock needs:
//
//   - The code between Lock and Unlock is not notified of a loss. It continues, while another process may
//     have the lock. Only the client's logger and its hook [stile.Hooks].HoldEnd are notified; code that
//     must not continue can be ended there. Code that knows its Locker can look at [Locker.Hold], whose
//     token a guard can check.
//   - Lock waits without end, also while the store is unreachable, and cannot be given up. It panics if
//     waiting cannot help. To end a waiting Lock, close the client.
//   - Unlock does not report whether the lock was held until then.
package stilesync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/internal/slot"
)

// A Locker is a [sync.Locker] on a distributed lock. Like a [sync.Mutex] it must not be copied, has one
// holder among the goroutines that share it, and may be unlocked by any goroutine. [New] makes one. Two
// Lockers of one mutex exclude each other as long as no hold is lost.
type Locker struct {
	mutex *stile.Mutex
	slot  slot.Slot
}

var _ sync.Locker = (*Locker)(nil)

// New returns a Locker on mutex. It does not contact the store.
func New(mutex *stile.Mutex) *Locker { return &Locker{mutex: mutex} }

// The pauses after a failed attempt double from the first to the last.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second
)

// unlockTimeout is how long Unlock waits for the store.
const unlockTimeout = 2 * time.Second

// Lock waits in line until it has the lock, without a limit. If an attempt fails, because the store is
// unreachable for example, it pauses for up to five seconds and joins the line again. It logs no failed
// attempt; [stile.Hooks].AttemptEnd is called for each.
//
// Lock panics with the error if another attempt would fail in the same way: if it matches
// [stile.ErrClosed], [stile.ErrBadName], [stile.ErrUnsupported] or [stile.ErrKind].
//
// If the last hold of the Locker is lost and has not been unlocked, Lock waits for that Unlock too: within
// a process the Locker excludes as a sync.Mutex does, whatever happens to the store.
func (l *Locker) Lock() {
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := l.slot.Lock(context.Background(), l.mutex.Lock)
		if err == nil {
			return
		}
		for _, permanent := range []error{stile.ErrClosed, stile.ErrBadName, stile.ErrUnsupported, stile.ErrKind} {
			if errors.Is(err, permanent) {
				panic(fmt.Errorf("stilesync: %w", err))
			}
		}
		time.Sleep(pause)
	}
}

// Unlock releases the lock. It waits at most two seconds for the store; then the release continues in the
// background. It drops the error of the release: use Hold().Release before Unlock to get it.
//
// Unlock panics if the Locker is not locked. It does not panic if the hold was lost.
func (l *Locker) Unlock() {
	ctx, cancel := context.WithTimeout(context.Background(), unlockTimeout)
	defer cancel()
	if err := l.slot.Unlock(ctx); errors.Is(err, slot.ErrEmpty) {
		panic(fmt.Errorf("stilesync: lock %q: %w", l.mutex.Name(), err))
	}
}

// Hold returns the hold between Lock and Unlock, and nil if the Locker is not locked. It is for code that
// is called with the Locker locked: its methods Valid, Err and Token say what a sync.Locker cannot.
func (l *Locker) Hold() *stile.Hold { return l.slot.Hold() }
