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

// MinTTL and MaxTTL bound the TTL of a session.
const (
	MinTTL = 200 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// Options configures a [Store]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Prefix is put before every key. It is used as it is: end it with a slash or a colon to set Stile's locks apart.
	// Empty means that the key of a lock is its name, as it is for other Redlock clients.
	Prefix string
	// Logger receives what an operator may want to know: masters whose connection was lost, entries that could not be
	// taken out. Nil discards it.
	Logger *slog.Logger

	_ struct{}
}

// Store is a [store.Store] on several Redis servers that know nothing of each other. It is safe for concurrent use. It makes
// its connections by itself, so it has to be closed, after its sessions: see [Store.Close].
type Store struct {
	masters []*master
	quorum  int // how many of the masters are a majority
	keys    keys
	logger  *slog.Logger

	subscriptions *subscriptions

	life context.Context
	end  context.CancelFunc
	runs sync.WaitGroup // of the masters and of those who listen to them
	work work.Group     // requests, and what waits for their outcome
}

var _ store.Store = (*Store)(nil)

// New returns a store on the given masters, and begins to connect to them; [Store.Close] ends that. It does not wait
// for it: masters may be down.
//
// Each option names one server, by its InitAddress, and says how to connect to it, log in and choose a database. What
// the store depends on it sets itself: one connection, without retries and caching. Of the timeouts, Dialer.Timeout is
// 2 s unless set, and ConnWriteTimeout, after which a silent connection is given up, 3 s; no lock waits for either.
//
// The masters must be an odd number from 3, none of them twice, and not replicas of each other. All clients of a lock
// must use the same masters; the order does not matter.
func New(masters []rueidis.ClientOption, opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	addrs := make([]string, 0, len(masters))
	for i, m := range masters {
		if len(m.InitAddress) != 1 {
			return nil, fmt.Errorf("redlock store: master %d has %d addresses, it needs exactly one", i+1, len(m.InitAddress))
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

// CheckMasters reports what is wrong with a choice of masters, given by their addresses, or nil: they must be an odd
// number from 3, and none of them be named twice.
func CheckMasters(addrs []string) error {
	switch n := len(addrs); {
	case n < 3:
		return fmt.Errorf("redlock with %d masters: give three, of which one may fail, or five, of which two may", n)
	case n%2 == 0:
		return fmt.Errorf("redlock with %d masters: an even number tolerates no more failures than %d; use %d or %d", n, n-1, n-1, n+1)
	}
	for i, addr := range addrs {
		if slices.Contains(addrs[:i], addr) {
			return fmt.Errorf("redlock: master %s is given twice: each must be a server of its own", addr)
		}
	}
	return nil
}

// closeTimeout is how long Close waits for requests that are under way.
const closeTimeout = 250 * time.Millisecond

// Close closes the connections. Close the sessions first: what they hold is freed otherwise only when its TTL has
// passed. Requests that are under way, to clean up at the slower masters, are given a quarter of a second. Close after
// Close does nothing. The error is always nil.
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

// Open implements [store.Store]. A session is nothing that the masters know of: only its entries are. To open one, a
// majority must answer.
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	se := newSession(s, opts)
	within, cancel := context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	defer cancel()
	if err := se.begin(within); err != nil {
		return nil, s.explain("open a session", attempts.EndedBy(ctx, err))
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

// explain says what failed, where, and, for the failures that a person has to see to, what to do.
func (s *Store) explain(doing string, err error) error {
	advice := ""
	switch text := err.Error(); {
	case strings.Contains(text, "NOPERM"), strings.Contains(text, "user executing the script can't"):
		advice = "; docs/stores.md lists the rights that the Redis user needs"
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOAUTH"):
		advice = "; check the user and the password"
	case strings.Contains(text, "READONLY"):
		advice = "; all servers must be masters, and none a replica of another"
	case strings.Contains(text, "MOVED"), strings.Contains(text, "CROSSSLOT"):
		advice = "; they are nodes of a cluster, which are no masters of their own: use redis+cluster://, and package redisstore"
	case strings.Contains(text, "WRONGTYPE"):
		advice = "; the key is in use for something else: give the locks a prefix or a database of their own"
	}
	return fmt.Errorf("%s: %s: %w%s", s, doing, err, advice)
}
