// Package locker gives everything that takes locks one face: Stile, and the libraries that it is held against. Each is
// used as its documentation says a careful user should, and is not credited with more than its interface offers.
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

// The errors to tell apart with errors.Is.
var (
	// ErrTaken: trying for the lock found that it was not to be had.
	ErrTaken = errors.New("the lock is taken")
	// ErrUnknownOutcome: the call for the lock failed in a way from which nothing may be concluded. The request may have been
	// carried out, or be later. Who called does not hold the lock, but perhaps nobody else can have it for a while.
	ErrUnknownOutcome = errors.New("nobody knows what became of the call")
	// ErrLost: the hold that was to be released had been lost before.
	ErrLost = errors.New("the lock had been lost")
	// ErrTryUnsupported: the library has no way to try for a lock without waiting.
	ErrTryUnsupported = errors.New("trying is not offered")
)

// Locker takes locks in one session, or whatever stands for it. It is safe for concurrent use.
type Locker interface {
	// Offers says what the interface behind this one tells its users.
	Offers() history.Offers
	// Lock waits for the lock until ctx ends. An error that does not match ErrUnknownOutcome means that it surely is not held,
	// and that nothing of the call has any effect any more.
	Lock(ctx context.Context, name string) (Hold, error)
	// TryLock takes the lock if it is free. If it is not the error matches ErrTaken. In everything else it is as Lock.
	TryLock(ctx context.Context, name string) (Hold, error)
	// Close ends the session and closes the connections. What is held still is given up, where the library does that.
	Close(ctx context.Context) error
}

// Abandoner is a Locker that can be left as by a process that crashes.
type Abandoner interface {
	// Abandon is Close without telling the servers: what is held stays so until its TTL has passed. On ZooKeeper, whose
	// sessions have connections of their own, it is no more than Close.
	Abandon(ctx context.Context)
}

// Hold is a lock being held. It is safe for concurrent use.
type Hold interface {
	// Token returns the fencing token, zero if there is none.
	Token() uint64
	// Until returns how long the hold is valid as far as is known now, as a time of [history.Now]; zero if the interface
	// does not tell. It may say too early by what it takes to ask, and never too late.
	Until() int64
	// Valid reports whether the hold is valid, as far as the interface lets its users see; if that is not at all, it
	// is true. It may ask a server.
	Valid() bool
	// Lost is closed when the holder is told that the hold is lost, and perhaps by Release. It is nil if it is never told.
	Lost() <-chan struct{}
	// Why returns what the holder was told, once Lost is closed or Valid has said no.
	Why() string
	// Release ends the hold, lost or not, and must be called once unless the Locker is closed. The error matches ErrLost if it had been lost before; of
	// any other error nothing may be concluded.
	Release(ctx context.Context) error
}

// Config says what to open.
type Config struct {
	// Kind is one of [Kinds].
	Kind string `json:"kind"`
	// URL is the store's, as package storeurl understands it. Only Stile uses it.
	URL string `json:"url,omitempty"`
	// Addresses are those of the servers, each host:port, which the others use: of the members of one cluster for
	// concurrency and gozk, of one server for redislock and rueidislock, of one or an odd number of servers that know nothing
	// of each other for redsync.
	Addresses []string `json:"addresses,omitempty"`
	// TTL is how long a session, or a lock, lives without being renewed. In etcd it is rounded up to the second.
	TTL time.Duration `json:"ttl_ns"`
	// Patient lets rueidislock wait for answers for as long as the TTL. By its default it gives a request up after 20 ms, as a busy
	// machine may need for it, and then waits for news of a lock that nobody holds: for ever, which is not what tests are about.
	Patient bool `json:"patient,omitempty"`
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

// Kinds returns the kinds of lockers there are, sorted: Stile and its peers.
func Kinds() []string {
	var kinds []string
	for kind := range openers() {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

// Open connects. worker is whose locks they are, for those who can say so to others. ctx bounds only the call; a server
// that is down at this moment is an error, after a few seconds. On failure nothing is left open.
func Open(ctx context.Context, c Config, worker string) (Locker, error) {
	open := openers()[c.Kind]
	if open == nil {
		return nil, fmt.Errorf("no locker is called %q: known are %s", c.Kind, strings.Join(Kinds(), ", "))
	}
	l, err := open(ctx, c, worker)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Kind, err)
	}
	return l, nil
}

// unknownOutcome makes an error that matches ErrUnknownOutcome of one of a library.
func unknownOutcome(err error) error { return fmt.Errorf("%w: %w", ErrUnknownOutcome, err) }
