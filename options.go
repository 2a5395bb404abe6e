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

	// Owner is who holds the client's locks, for others to read. The zero Owner means [DefaultOwner].
	Owner Owner

	// Logger receives what happens to sessions and holds: losses and renewals overdue as warnings, the rest as debug
	// messages. Nil discards it.
	Logger *slog.Logger

	// Hooks are told of events, for metrics and traces.
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
	if err := checkOwner(c.Owner); err != nil {
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}
