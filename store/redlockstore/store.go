package redlockstore

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// MinTTL and MaxTTL bound the TTL of a session. A client allows at most stile.MaxTTL, which is less
// than MaxTTL.
const (
	MinTTL = 200 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// Options configures a [Store]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Prefix is put before every key and channel, unchanged. End it with a slash or a colon to keep
	// Stile's keys apart. If it is empty, the key of a lock is its name, as it is for other Redlock
	// clients.
	Prefix string
	// Logger receives messages for operators: lost connections to masters, entries that could not
	// be removed. Nil discards them.
	Logger *slog.Logger

	_ struct{}
}

// Store is a [store.Store] on several independent Redis servers. It is safe for concurrent use. It
// makes its own connections: close the sessions, then the store with [Store.Close].
type Store struct {
	masters []*master
	quorum  int // how many masters are a majority
	keys    keys
	logger  *slog.Logger

	subscriptions *subscriptions

	life context.Context
	end  context.CancelFunc
	runs sync.WaitGroup // goroutines that connect and subscribe
	work work.Group     // requests, and goroutines that wait for their outcome
}

var _ store.Store = (*Store)(nil)

// New returns a store on the given masters and starts to connect to them in the background. It does
// not wait for the connections: masters may be down. It returns an error if an option is invalid.
//
// Each option names one server by its InitAddress, and sets how to connect and log in and which
// database to use. New overrides the settings that the store depends on: one connection, no
// retries, no caching. If they are zero, Dialer.Timeout is 2 s and ConnWriteTimeout, after which a
// silent connection is closed, is 3 s. While a majority answers, no lock waits for either.
//
// There must be an odd number of masters, at least 3, all different, and none a replica of another.
// All clients of a lock must use the same masters; their order does not matter.
func New(masters []rueidis.ClientOption, opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	addrs := make([]string, 0, len(masters))
	for i, m := range masters {
		if len(m.InitAddress) != 1 {
			return nil, fmt.Errorf("redlock store: master %d has %d addresses; want exactly one", i+1, len(m.InitAddress))
		}
		addrs = append(addrs, m.InitAddress[0])
	}
	if err := CheckMasters(addrs); err != nil {
		return nil, err
	}
	if err := store.CheckPrefix(opts.Prefix); err != nil {
		return nil, fmt.Errorf("redlock store: key prefix: %w", err)
	}
	s := &Store{
		quorum: len(masters)/2 + 1,
		keys:   keys{prefix: opts.Prefix},
		logger: cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
	}
	s.life, s.end = context.WithCancel(context.Background())
	for i, option := range masters {
		s.masters = append(s.masters, newMaster(i, option, s.logger))
	}
	s.subscriptions = newSubscriptions(s.masters)
	for i, m := range s.masters {
		s.runs.Go(func() { m.run(s.life) })
		s.runs.Go(func() { s.subscriptions.subscribers[i].run(s.life) })
	}
	return s, nil
}

// CheckMasters returns an error if the masters with the given addresses cannot be used: there must
// be an odd number of them, at least 3, all different.
func CheckMasters(addrs []string) error {
	switch n := len(addrs); {
	case n < 3:
		return fmt.Errorf("redlock with %d masters: give three, of which one may fail, or five, of which two may", n)
	case n%2 == 0:
		return fmt.Errorf("redlock with %d masters: an even number tolerates no more failures than %d; use %d or %d", n, n-1, n-1, n+1)
	}
	for i, addr := range addrs {
		if slices.Contains(addrs[:i], addr) {
			return fmt.Errorf("redlock: master %s is given twice; all must be different servers", addr)
		}
	}
	return nil
}

// closeTimeout is how long Close waits for requests in flight.
const closeTimeout = 250 * time.Millisecond

// Close closes the connections. Close the sessions first: otherwise their holds last until the TTL
// has passed. Requests in flight, which remove entries at slow masters, get a quarter of a second.
// Closing again does nothing. The error is always nil.
func (s *Store) Close() error {
	s.work.Refuse()
	within, cancel := context.WithTimeout(s.life, closeTimeout)
	defer cancel()
	go func() {
		s.work.Wait()
		cancel()
	}()
	<-within.Done()
	s.end()
	s.runs.Wait()
	s.work.Wait()
	return nil
}

// Capabilities implements [store.Store].
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{Kind: "redlock", Fencing: true, ReleaseAfter: true, MinTTL: MinTTL, MaxTTL: MaxTTL}
}

// Open implements [store.Store]. It succeeds when a majority has answered. Nothing is stored: the
// masters have no record of sessions.
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	se := newSession(s, opts)
	within, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoMajority)
	defer cancel()
	if err := se.open(within); err != nil {
		return nil, s.wrapErr("open a session", attempts.WithContextErr(ctx, err))
	}
	return se, nil
}

// String names the store in messages: "Redlock at 10.0.0.1:6379, 10.0.0.2:6379, 10.0.0.3:6379".
func (s *Store) String() string {
	addrs := make([]string, 0, len(s.masters))
	for _, m := range s.masters {
		addrs = append(addrs, m.addr)
	}
	return "Redlock at " + strings.Join(addrs, ", ")
}

// wrapErr adds to err the store and the operation and, for errors that need an operator, what to
// do.
func (s *Store) wrapErr(op string, err error) error {
	advice := ""
	switch text := err.Error(); {
	case strings.Contains(text, "NOPERM"), strings.Contains(text, "user executing the script can't"):
		advice = "; docs/stores.md lists the permissions that the Redis user needs"
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOAUTH"):
		advice = "; check the user and the password"
	case strings.Contains(text, "READONLY"):
		advice = "; all servers must be masters, and none a replica of another"
	case strings.Contains(text, "MOVED"), strings.Contains(text, "CROSSSLOT"):
		advice = "; the servers are nodes of a cluster, not independent masters: use redis+cluster:// and package redisstore"
	case strings.Contains(text, "WRONGTYPE"):
		advice = "; the key is used for something else: give the locks their own prefix or database"
	}
	return fmt.Errorf("%s: %s: %w%s", s, op, err, advice)
}
