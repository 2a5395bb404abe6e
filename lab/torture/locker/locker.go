// Package locker puts every lock library behind one interface: Stile, and the libraries with which
// it is compared. Each is used as its documentation tells a careful user to, and is credited only
// with what its interface offers.
package locker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// The errors that callers distinguish, with errors.Is.
var (
	// ErrTaken: TryLock found that the lock is not free.
	ErrTaken = errors.New("the lock is taken")
	// ErrUnknownOutcome: acquiring the lock failed in a way that allows no conclusion. The request
	// may have been carried out, or may be later. The caller does not hold the lock, but perhaps no
	// other client can acquire it for a while.
	ErrUnknownOutcome = errors.New("the outcome of the call is unknown")
	// ErrLost: the hold had been lost before it was released.
	ErrLost = errors.New("the lock had been lost")
	// ErrTryUnsupported: the library cannot try for a lock without waiting.
	ErrTryUnsupported = errors.New("TryLock is not supported")
)

// Locker acquires locks in one session, or in the library's equivalent of one. It is safe for
// concurrent use.
type Locker interface {
	// Offers returns what the library's interface reports to its users.
	Offers() history.Offers
	// Lock waits for the lock until ctx ends. An error that does not match ErrUnknownOutcome means
	// that the lock is certainly not held, and that the call has no effect any more.
	Lock(ctx context.Context, name string) (Hold, error)
	// TryLock acquires the lock if it is free. If it is not, the error matches ErrTaken. Otherwise
	// it behaves as Lock does.
	TryLock(ctx context.Context, name string) (Hold, error)
	// Close ends the session and closes the connections. It releases the holds that are left, if
	// the library does that.
	Close(ctx context.Context) error
}

// Abandoner is a Locker that can be left as a crashing process would leave it.
type Abandoner interface {
	// Abandon closes the connections without notifying the servers: locks stay held until their TTL
	// has passed. On ZooKeeper, where sessions have connections of their own, and on Redis it does the
	// same as Close.
	Abandon(ctx context.Context)
}

// Hold is a lock that is held. It is safe for concurrent use.
type Hold interface {
	// Token returns the fencing token, or zero if there is none.
	Token() uint64
	// Until returns the end of the hold's validity as known now, as a time of [history.Now], or
	// zero if the interface does not provide it. The result may be too early, by the time that it
	// takes to get it, and is never too late.
	Until() int64
	// Valid reports whether the hold is valid as far as the interface shows it; if the interface
	// does not show it at all, Valid returns true. It may send a request to a server.
	Valid() bool
	// Lost is closed when the library notifies the holder that the hold is lost, and perhaps by
	// Release. It is nil if the library never notifies.
	Lost() <-chan struct{}
	// Why returns the reason for the loss, once Lost is closed or Valid has returned false.
	Why() string
	// Release ends the hold, lost or not. It must be called exactly once, unless the Locker is
	// closed. The error matches ErrLost if the hold had been lost before; no other error allows a
	// conclusion.
	Release(ctx context.Context) error
}

// Config selects and configures a locker.
type Config struct {
	// Kind is one of [Kinds].
	Kind string `json:"kind"`
	// URL is the URL of the store, for package storeurl. Only Stile uses it.
	URL string `json:"url,omitempty"`
	// Addresses are the servers, each as host:port, for all lockers but Stile. They are the members
	// of one cluster for concurrency and gozk, one server for redislock and rueidislock, and one
	// server or an odd number of independent servers for redsync.
	Addresses []string `json:"addresses,omitempty"`
	// TTL is how long a session or a lock lives without being renewed. On etcd it is rounded up to
	// the second.
	TTL time.Duration `json:"ttl_ns"`
	// Linger is how long a client keeps a released lock. Only Stile does.
	Linger time.Duration `json:"linger_ns,omitempty"`
	// Patient makes rueidislock wait for a reply for as long as the TTL, and ask again after each TTL
	// of waiting. By default it abandons a request after 20 ms, which a busy machine may need. Then
	// it waits, forever, for a notification about a lock that is free. That is not what the tests
	// are about.
	Patient bool `json:"patient,omitempty"`
	// OnSession, if not nil, is called when the client has opened a session. Only Stile calls it.
	OnSession func() `json:"-"`
}

type opener func(ctx context.Context, c Config, worker string) (Locker, error)

func openers() map[string]opener {
	return map[string]opener{
		"stile":       openStile,
		"concurrency": openConcurrency,
		"redsync":     openRedsync,
		"redislock":   openRedislock,
		"rueidislock": openRueidislock,
		"gozk":        openGozk,
	}
}

// Kinds returns the kinds of lockers, sorted: Stile and its peers.
func Kinds() []string {
	var kinds []string
	for kind := range openers() {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

// Open connects. worker names the worker that the locks are for; libraries that can show an owner
// to others show it. ctx bounds only the call. If a server is down, Open fails after a few seconds.
// After an error nothing is left open.
func Open(ctx context.Context, c Config, worker string) (Locker, error) {
	open := openers()[c.Kind]
	if open == nil {
		return nil, fmt.Errorf("unknown locker %q: use one of %s", c.Kind, strings.Join(Kinds(), ", "))
	}
	l, err := open(ctx, c, worker)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Kind, err)
	}
	return l, nil
}

// Share returns another locker, with a session of its own, on the connections of l. Close it before l,
// which closes the connections. Only Stile's lockers can be shared.
func Share(l Locker, c Config, worker string) (Locker, error) {
	s, ok := l.(*stileLocker)
	if !ok {
		return nil, errors.New("only stile can share its connections")
	}
	return s.share(c, worker)
}

// unknownOutcome wraps an error of a library so that it matches ErrUnknownOutcome.
func unknownOutcome(err error) error { return fmt.Errorf("%w: %w", ErrUnknownOutcome, err) }
