package stile

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/stilelock/stile/store"
)

// DefaultTTL is the default TTL of a session.
const DefaultTTL = 15 * time.Second

// MaxTTL is the maximum TTL of a client's session. A store may have a smaller maximum.
const MaxTTL = 300 * time.Second

// Options configures a [Client]. The zero value and a nil *Options select the defaults.
type Options struct {
	// TTL is how long the client's session lives in the store without renewal. After a crash, the client's
	// locks are free again when it has passed.
	//
	// The session is renewed every 3/10 of the TTL. Its holds are lost 9/10 of the TTL after the last
	// confirmed renewal was sent. An outage shorter than 4/10 of the TTL loses no hold. This is true even
	// in the worst case: the outage begins just before a renewal, which gets no reply, and the next attempt
	// begins only when that one has timed out. All three times are shorter on stores that may end sessions
	// early ([store.Terms]).
	//
	// Zero means [DefaultTTL]. If the TTL is negative, shorter than the store's minimum, or longer
	// than the store's maximum or [MaxTTL], New returns an error. If only the server knows the
	// limits, the first call that opens a session returns the error.
	TTL time.Duration

	// LockDelay keeps a lock closed, so that nobody gets it, for a time after a hold that ended without
	// a release: its process died or was cut off, its client was closed, its entry was removed
	// ([Client.Break]), or the store ended its session early. The delay starts when the next client would
	// otherwise get the lock. Lock and Join then wait for the delay, and TryLock returns an error with
	// [HeldError.ClosedFor]. After a release there is no delay.
	//
	// Use it on stores that may end a session earlier than they promise, as etcd does if its leader's
	// process is suspended for longer than the TTL. If LockDelay is at least the TTL, the previous
	// holder has reached its own deadline before the next one gets the lock, even if it was not notified
	// of the loss. The cost is a longer wait after each crash, and one more request for each lock.
	//
	// LockDelay works between clients that set it: each hold leaves a marker in the store, which
	// its release removes. A client without LockDelay leaves no markers and ignores those of
	// others. All clients of a lock should have the same TTL and LockDelay; otherwise the shortest
	// delay may be the effective one.
	//
	// Zero means no delay. New returns an error if it is negative, and an error matching
	// [ErrUnsupported] if the store keeps no markers.
	LockDelay time.Duration

	// Turns is how many holds in a row the goroutines of the client may get with one entry of a lock. While
	// several of them want it, Release passes the entry on to the next one, without a request to the store.
	// Such a turn begins at most ten milliseconds after the entry's first hold; then the client goes to the
	// end of the line. So a waiter of another client waits for at most ten milliseconds and one hold longer
	// than if every hold had an entry of its own.
	//
	// Only the holds of mutexes and of writers take turns. A hold that says something of its own in the store
	// has an entry to itself: one of [Mutex.With], [RWMutex.With], [Client.LockAll] or [Election], and one that
	// was asked for its Hold.EntryKey or has used Hold.SetRecord.
	//
	// Zero means [DefaultTurns], and 2048 with Linger. One means that every hold has an entry of its own: then
	// the store alone decides on the order, and it confirms every release. New returns an error if Turns is
	// negative or more than 2048.
	Turns int

	// Linger is how long the client keeps a lock that no goroutine wants any more, to lock it again without a
	// request to the store: Lock and TryLock of a name then take about a microsecond. The time starts when the
	// store admits the client's entry. Locking again does not extend it. The client gives the lock back
	// before that when another client waits for it, when the Turns are used up, and when its session is in doubt.
	//
	// The cost is that of others. Their Lock waits for one more request and one more message; if the message is
	// lost, for the rest of Linger. Their TryLock waits for up to a second, or a quarter of their TTL if that is
	// shorter, before it returns a [*HeldError], because it cannot tell whether the lock is held or kept.
	// TryLockAll, and TryLock of older versions, return the error at once, and a semaphore or a read-write lock
	// of the name a [*KindError]. [Owner].Lingers shows such entries. Clients that try again instead of waiting
	// in the line, as plain SET NX lockers on Redis and users of TryLockAll do, may not get the lock at all: use
	// no Linger for names that you share with them. Each kept name costs a timer and a watch in the store, so
	// linger where few names are locked often. A process that ends without
	// [Client.Close] leaves what it keeps to its TTL.
	//
	// Mutexes and writers linger, except the holds that take no turns (see Turns), and after
	// [Hold.ReleaseAfter]. A release that keeps the lock sends no request, as with Turns. So if an operator breaks
	// the entry, or the store removes it early, the client may lock again with it until it is told; resources
	// that check tokens refuse such a hold once they have seen a newer one.
	//
	// Zero means that nothing is kept. New returns an error if Linger is negative, or is combined with LockDelay
	// or with Turns of 1, and one matching [ErrUnsupported] on a store that does not report waiters (Redlock).
	Linger time.Duration

	// ReleaseInBackground makes a release return without waiting for the store: [Hold.Release], and everything
	// that calls it, as [Mutex.Do], [Place.Leave] and [Leadership.Resign] do, and [MultiHold.Release]. Their nil
	// then means that the hold has ended here. The store may still have the entry for a moment, and until it is
	// removed other clients do not get the lock. If the lock had been lost before the release, only Hooks.HoldEnd
	// and the log report it.
	//
	// The client may lock the name again at once. Lock then joins the line behind the old entry; a Try method
	// waits until the outcome of the release is known, so that the old entry does not refuse it.
	//
	// Hooks.HoldEnd is called when the store has answered, with its error, which is also logged as a warning. So
	// it may come after HoldStart of the client's next hold, and the time that it tells includes the request.
	// [Client.Close] waits for these requests. A process that ends without it, as by os.Exit, may leave the
	// entry in the store until its TTL has passed.
	//
	// The store confirms the release as usual if the hold's deadline has passed, and always for
	// [Hold.ReleaseAfter] and [Hold.Yield].
	ReleaseInBackground bool

	// Owner describes the client to other users of the store. The zero Owner means [DefaultOwner].
	Owner Owner

	// Logger gets warnings about lost sessions and holds, overdue renewals and locks that were not
	// released, and debug messages about everything else. Nil means no logging.
	Logger *slog.Logger

	// Hooks are called for metrics and tracing.
	Hooks Hooks

	_ struct{} // forces keyed literals, so that fields can be added
}

// complete returns the options with defaults filled in, or an error that lists everything wrong
// with them.
func (o *Options) complete(caps store.Capabilities) (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.TTL == 0 {
		c.TTL = min(max(DefaultTTL, caps.MinTTL), caps.MaxTTL)
	}
	if c.Owner.IsZero() {
		c.Owner = DefaultOwner()
	}
	c.Owner.Labels = maps.Clone(c.Owner.Labels)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Turns == 0 {
		c.Turns = DefaultTurns
		if c.Linger > 0 {
			c.Turns = maxTurns
		}
	}
	var errs []error
	switch {
	case c.Linger < 0:
		errs = append(errs, fmt.Errorf("a Linger of %v: it must not be negative", c.Linger))
	case c.Linger > 0 && !caps.Contention:
		errs = append(errs, fmt.Errorf("a Linger: %w by the %s store, which reports no waiters: leave it zero", ErrUnsupported, caps.Kind))
	case c.Linger > 0 && c.LockDelay > 0:
		errs = append(errs, errors.New("a Linger and a LockDelay: a lock that is only kept when its process dies would stay closed: leave one of them zero"))
	case c.Linger > 0 && c.Turns == 1:
		errs = append(errs, errors.New("a Linger and 1 Turns: to lock again with the same entry is another turn: allow more, or leave Linger zero"))
	}
	if c.Turns < 0 || c.Turns > maxTurns {
		errs = append(errs, fmt.Errorf("%d Turns: they must be between 0 and %d", c.Turns, maxTurns))
	}
	if least, most := caps.MinTTL, min(caps.MaxTTL, MaxTTL); c.TTL < least || c.TTL > most {
		errs = append(errs, fmt.Errorf("a TTL of %v: the %s store allows %v to %v", c.TTL, caps.Kind, least, most))
	}
	switch {
	case c.LockDelay < 0:
		errs = append(errs, fmt.Errorf("a LockDelay of %v: it must not be negative", c.LockDelay))
	case c.LockDelay > 0 && caps.ClearMarks == nil:
		errs = append(errs, fmt.Errorf("a LockDelay: %w by the %s store: leave it zero", ErrUnsupported, caps.Kind))
	}
	if err := checkOwner(c.Owner); err != nil {
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// LockOptions are additional options for one lock; see [Mutex.With]. The zero value changes
// nothing.
type LockOptions struct {
	// Reason says why the lock is wanted, for people who look at its line. Unless it is empty, it
	// replaces the Reason of the client's Owner.
	Reason string
	// Labels are added to the labels of the client's Owner, and replace those with the same key.
	Labels map[string]string
}

func (o LockOptions) isZero() bool { return o.Reason == "" && len(o.Labels) == 0 }
