// Package guard lets a resource refuse the writes of stale holders.
//
// A lock cannot stop a process that was paused while it held the lock: it may wake up after its lease
// has expired, and write before it notices. Only the resource can refuse that write. There are two
// kinds of guards, and both refuse with [ErrStale].
//
// An order guard compares numbers. Each exclusive hold has a fencing token, larger than those of all
// earlier holders of the name. The guard remembers, beside the resource, the largest token that it has seen,
// and refuses smaller ones. It needs no access to the store of the lock, and uses no clock.
//
//	guard/sqlguard                     tables of a SQL database
//	guard/fileguard                    files and everything else on one machine
//	guard/httpguard                    what a net/http handler changes
//	guard/s3guard                      objects in S3, a module of its own
//	store/redisstore/redisguard        keys of a Redis server
//
// A presence guard is for data in the store that also keeps the lock. There each lock has a line of
// entries, one for each holder and waiter. In the transaction that changes the data, the guard checks
// that the hold's entry is still in the line. It compares the tokens too.
//
//	store/etcdstore/etcdguard          keys of an etcd cluster
//	store/zkstore/zkguard              nodes of a ZooKeeper ensemble
//
// What an order guard promises: once a write with a token was accepted, no write with a smaller token
// is, whatever pauses, crashes and delays there are. A presence guard promises more: no write is
// accepted after the lock has passed on, even before the next holder's first write.
//
// Their limits:
//
//   - With an order guard a stale holder can still write until the first write of a later holder. To
//     close the resource before that, a holder makes an empty guarded write first.
//   - They do not protect from the holder itself: two goroutines of one holder have the same token.
//   - They protect only what goes through them. Every writer has to.
//   - An order guard is for exclusive holds: of a Mutex, of an RWMutex that is locked for writing, of an
//     Election. Readers of several clients hold at the same time, with different tokens, and so do the
//     holders of a semaphore's slots: an order guard would refuse some of them. If the slots are numbered, each number
//     has tokens of its own: then use one guarded resource for each number. A presence guard is for all
//     holds.
//
// All tokens that a resource sees must come from the same lock: the same name in the same store. If a
// store loses its data or another one takes its place, tokens may begin anew, and the guard refuses all
// holders until an operator resets what it remembers.
//
// The idea is that of fencing tokens in Martin Kleppmann, "How to do distributed locking" (2016).
package guard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/stilelock/stile/line"
)

var (
	// ErrStale means that the resource has seen a larger token, or that the hold's entry is not in the
	// line. The caller must stop writing. Usually it does not hold the lock any more; but holders are
	// refused too if the lock is not in the store that the guard expects, or if that has lost its data.
	// See [StaleError].
	ErrStale = errors.New("stale fencing token")
	// ErrBadToken means that no hold can have this token: zero, which is the token of a store without
	// fencing, or more than 2^63 − 1.
	ErrBadToken = errors.New("not a fencing token")
)

// A StaleError is the error for a hold that is over: the resource has seen a larger token, or the
// hold's entry has left the line. It matches [ErrStale].
type StaleError struct {
	// Resource is the name of the resource.
	Resource string
	// Token was refused. Newest is the largest token that the resource has seen. If a presence guard has
	// not found the hold's entry in the line, Newest is zero.
	Token, Newest uint64
}

// Error names the resource and the token, and Newest if it is larger.
func (e *StaleError) Error() string {
	if e.Newest <= e.Token {
		return fmt.Sprintf("guard: %q: %v: %d is refused because the hold is over; the lock is lost", e.Resource, ErrStale, e.Token)
	}
	return fmt.Sprintf("guard: %q: %v: %d is refused because a later holder was here, with %d; the lock is lost",
		e.Resource, ErrStale, e.Token, e.Newest)
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// CheckToken returns an error that matches [ErrBadToken] if a token cannot be that of a hold.
func CheckToken(resource string, token uint64) error {
	if token == 0 || token > math.MaxInt64 {
		return fmt.Errorf("guard: %q: %d is %w: the store of the lock must have fencing tokens", resource, token, ErrBadToken)
	}
	return nil
}

// A Hold is what a presence guard needs to know about a hold. A *stile.Hold is one.
type Hold interface {
	// Name returns the name of the lock.
	Name() string
	// Token returns the fencing token.
	Token() uint64
	// Mode returns the mode of the hold.
	Mode() line.Mode
	// EntryKey returns the key of the hold's entry in the lock's store. It is empty if the store has no
	// such keys.
	EntryKey() string
	// Context returns a context that ends when the hold does; its cause says why.
	Context() context.Context
}

// Tokens remembers the largest token of each resource.
type Tokens interface {
	// Raise remembers a token as the largest one of the resource. If it has seen a larger one, the
	// error is a [*StaleError] and nothing changes. The same token may be raised again. If no hold can
	// have the token, the error matches [ErrBadToken]. After any other error the token may or may not be
	// remembered. Raise is safe for concurrent use.
	Raise(ctx context.Context, resource string, token uint64) error
}

// Forgetful is a Tokens in the memory of this process. It forgets everything when the process ends: stale
// holders may then write until a later holder does. It is for tests, and for resources that end with the
// process too. The zero value remembers nothing yet.
type Forgetful struct {
	mu      sync.Mutex
	largest map[string]uint64
}

// Raise implements [Tokens].
func (f *Forgetful) Raise(_ context.Context, resource string, token uint64) error {
	if err := CheckToken(resource, token); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if newest := f.largest[resource]; token < newest {
		return &StaleError{resource, token, newest}
	}
	if f.largest == nil {
		f.largest = make(map[string]uint64)
	}
	f.largest[resource] = token
	return nil
}
