package stile

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/stilelock/stile/store"
)

// DefaultTTL is the TTL of sessions for which none is given.
const DefaultTTL = 15 * time.Second

// MaxTTL is the longest TTL a session can have. It is also how long a lock may stay closed after its holder has died.
const MaxTTL = 300 * time.Second

// Options configures a [Client]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// TTL is how long the client's session lives in the store without being renewed: after a crash its locks are free
	// again that much later. Renewal is due every 3/10 of it, and what is held counts as lost 9/10 of it after the last
	// confirmed renewal was sent (less on stores that may end sessions early). So an outage of the store that is shorter
	// than 4/10 of it loses nothing, whenever it begins.
	//
	// Zero means [DefaultTTL]. A negative TTL, one below what the store can do, or above [MaxTTL], is an error from New or,
	// where only the server knows, from the first Lock.
	TTL time.Duration

	// LockDelay is for how long a lock stays closed after a hold of it that was not released: its process has died or was
	// cut off, the client was closed, somebody has broken it, or the store has ended it early. The time counts from when
	// this client has noticed, which is when it is its turn: Lock and Join wait for that much longer then, and TryLock says
	// that the lock is closed ([HeldError.ClosedFor]). After a release nothing is delayed.
	//
	// It is for stores that may end a session before its time, as etcd does when its leader's process was stopped for longer
	// than the TTL and goes on. With a LockDelay no shorter than the TTL, who held the lock has lost it by its own deadline
	// before the next one has it, whether or not it could be told that it was to lose it earlier. The price is that much more
	// time without the lock after each crash, and one request more to take it.
	//
	// It concerns the holds of clients with a LockDelay only: to let others know, a hold leaves a marker in the store, which
	// goes with its release. All clients of a lock should have the same TTL and LockDelay. One without a LockDelay leaves no
	// markers, minds none, and is let in at once; where the delays differ, the shortest may be the one that counts for all.
	//
	// Zero means none. A negative one is an error from New, and so is one on a store that keeps no markers: it matches
	// [ErrUnsupported].
	LockDelay time.Duration

	// Owner is who holds the client's locks, for others to read. The zero Owner means [DefaultOwner].
	Owner Owner

	// Logger receives what happens to sessions and holds: losses, renewals overdue and locks that were not released as
	// warnings, the rest as debug messages. Nil discards it.
	Logger *slog.Logger

	// Hooks are called as things happen, for metrics and traces.
	Hooks Hooks

	_ struct{} // keyed literals only, so that fields can be added
}

// complete returns the options with the defaults filled in, or everything that is wrong with them.
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
	var errs []error
	if least, most := caps.MinTTL, min(caps.MaxTTL, MaxTTL); c.TTL < least || c.TTL > most {
		errs = append(errs, fmt.Errorf("a TTL of %v: the %s store takes %v to %v", c.TTL, caps.Kind, least, most))
	}
	switch {
	case c.LockDelay < 0:
		errs = append(errs, fmt.Errorf("a LockDelay of %v: it must not be negative", c.LockDelay))
	case c.LockDelay > 0 && caps.ClearMarks == nil:
		errs = append(errs, fmt.Errorf("a LockDelay: the %s store: %w: leave it at zero", caps.Kind, ErrUnsupported))
	}
	if err := checkOwner(c.Owner); err != nil {
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// LockOptions say more about one lock than the [Options] of its client do; see [Mutex.With]. The zero value says nothing.
type LockOptions struct {
	// Reason is why the lock is wanted, for people who read its line. It takes the place of the Reason in the client's
	// Owner; if it is empty, that stays.
	Reason string
	// Labels are added to those of the client's Owner. Of two with the same key this one counts.
	Labels map[string]string
}

func (o LockOptions) isZero() bool { return o.Reason == "" && len(o.Labels) == 0 }
