package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/examine"
)

// MinTTL and MaxTTL bound the TTL of a session. A client allows at most stile.MaxTTL, which is less
// than MaxTTL. Redis itself counts milliseconds; below MinTTL a single slow command of another client
// would end sessions.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// Options configures a [Store]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Prefix is put before every key and channel, unchanged. End it with a slash or a colon to keep
	// Stile's keys apart. If it is empty, the key of a lock is its name, as it is for other lockers.
	// It must not contain braces.
	Prefix string
	// WaitReplicas is how many replicas must have a new entry, a new session or a renewal before it
	// counts. If fewer have it in time, the call fails with an error that matches
	// [ErrNotReplicated]. A hand-over does not wait for replicas: the hold of a waiter counts as
	// soon as the master has admitted it. A larger number makes it less likely that a
	// failover forgets a hold, but cannot exclude it. Zero means none. In a cluster each master needs
	// that many replicas.
	WaitReplicas int
	// WaitTimeout is how long to wait for the replicas. It should be well below the TTL, because
	// every renewal may take as long. Zero means [DefaultWaitTimeout].
	WaitTimeout time.Duration
	// Logger receives messages for operators: subscriptions that were lost, entries that could not
	// be removed. Nil discards them.
	Logger *slog.Logger

	_ struct{}
}

// DefaultWaitTimeout is the default of [Options.WaitTimeout].
const DefaultWaitTimeout = time.Second

// Store is a [store.Store] on Redis. It is safe for concurrent use. It uses the connections of its
// caller's client, and has no Close method: close the sessions, then that client.
type Store struct {
	server *server
	logger *slog.Logger
	id     string       // part of the names of the channels to which this store subscribes
	made   atomic.Int64 // number of entries made

	interval     pollInterval
	dropMessages bool // ignore published messages, to test that polling suffices
	// examinePause waits between two readings of a clock. Tests replace it.
	examinePause func(ctx context.Context, d time.Duration) error

	mu          sync.Mutex
	open        int                           // open sessions
	subscribers map[uint16]*subscriber        // by section; in a cluster, of the sections in which an entry has waited while there were sessions
	entries     map[string]*entry             // by id: entries that are joining or in their lines
	pollers     map[uint16]map[string]*poller // by section and name
}

var _ store.Store = (*Store)(nil)

// New returns a store on the servers that cli is connected to: a single server, the master that
// Sentinels name, or a cluster. It sends no request. It returns an error if cli is nil or an option
// is invalid.
//
// Make cli with DisableRetry, because the store repeats its requests itself, and only those for which
// that is safe. Set a ConnWriteTimeout of a few seconds, so that a dead connection is dropped well
// before a TTL has passed. [ClientOptions] returns such options.
//
// Do not use cli for anything else. When a single server replies that it is not the master, the
// store closes all connections of cli, and the requests in flight on them fail.
func New(cli rueidis.Client, opts *Options) (*Store, error) {
	if cli == nil {
		return nil, errors.New("redis store: client is nil")
	}
	if opts == nil {
		opts = &Options{}
	}
	if err := store.CheckPrefix(opts.Prefix); err != nil {
		return nil, fmt.Errorf("redis store: key prefix: %w", err)
	}
	if strings.ContainsAny(opts.Prefix, "{}") {
		return nil, fmt.Errorf("redis store: key prefix %q contains braces, which would put all locks into one "+
			"slot of a cluster", opts.Prefix)
	}
	if opts.WaitReplicas < 0 || opts.WaitTimeout < 0 {
		return nil, fmt.Errorf("redis store: WaitReplicas %d, WaitTimeout %v: neither may be negative", opts.WaitReplicas, opts.WaitTimeout)
	}
	return &Store{
		server: &server{
			cli:                cli,
			cluster:            cli.Mode() == rueidis.ClientModeCluster,
			keys:               keys{prefix: opts.Prefix},
			replicas:           opts.WaitReplicas,
			replicationTimeout: cmp.Or(opts.WaitTimeout, DefaultWaitTimeout),
			chunkSize:          defaultChunkSize,
			calls:              new(calls),
			subscriptions:      make(map[*subscription]struct{}),
		},
		logger:   cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
		id:       rand.Text(),
		interval: pollInterval{minPollInterval, maxPollInterval},

		examinePause: examine.Wait,

		subscribers: make(map[uint16]*subscriber),
		entries:     make(map[string]*entry),
		pollers:     make(map[uint16]map[string]*poller),
	}, nil
}

// ClientOptions returns client options that suit [New]. addrs is one address for a single server,
// some nodes of a cluster, or the Sentinels. The caller adds users, passwords, TLS and the name of
// the master set. With one address of a cluster or of a Sentinel, the caller must also set
// ForceSingleClient to false.
func ClientOptions(addrs ...string) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress:       addrs,
		ForceSingleClient: len(addrs) == 1,
		DisableCache:      true,
		DisableRetry:      true,
		ConnWriteTimeout:  3 * time.Second,
	}
}

// Capabilities implements [store.Store].
func (s *Store) Capabilities() store.Capabilities {
	caps := store.Capabilities{
		Kind: "redis", Fair: true, SharedModes: true, Fencing: true, ReleaseAfter: true, OwnerUpdates: true, Downgrades: true, Contention: true, SlotNumbers: true,
		Requeue: true, SetLimit: s.setLimit, Record: s.record, MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
	if !s.server.cluster { // there the lines may be on several servers
		caps.EnqueueAll = s.enqueueAll
	}
	return caps
}

// Open implements [store.Store].
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	if err := s.addSession(ctx); err != nil {
		return nil, s.wrapErr("open a session", attempts.WithContextErr(ctx, err))
	}
	var se *session
	err := retryBounded(ctx, func(ctx context.Context) error {
		// Each attempt uses a new session id: a late request would otherwise revive a session that
		// has ended. An abandoned attempt leaves at most an unused key, for one TTL.
		if err := s.server.checkVersion(ctx); err != nil {
			return err
		}
		one := newSession(s, opts)
		se = one
		return s.server.do(ctx, s.server.replicas, []request{func(b rueidis.Builder) rueidis.Completed {
			return b.Set().Key(one.key()).Value("").Px(opts.TTL).Build()
		}})[0].err
	})
	if err != nil {
		s.removeSession()
		return nil, s.wrapErr("open a session", attempts.WithContextErr(ctx, err))
	}
	se.life.Start(se.detectExpiry)
	return se, nil
}

// addSession counts a session. The first one subscribes to the wake-ups and returns the server's
// refusal, if any. In a cluster the store subscribes to a slot when its first entry waits there.
func (s *Store) addSession(ctx context.Context) error {
	s.mu.Lock()
	s.open++
	if s.server.cluster {
		s.mu.Unlock()
		return nil
	}
	sub := s.subscriberLocked(0)
	s.mu.Unlock()
	err := sub.await(ctx)
	if err != nil {
		s.removeSession()
	}
	return err
}

// removeSession is the inverse of addSession. After the last session it returns once all
// subscribers and pollers have stopped.
func (s *Store) removeSession() {
	s.mu.Lock()
	s.open--
	var unused map[uint16]*subscriber
	var leaving []*poller
	if s.open == 0 {
		unused, s.subscribers = s.subscribers, make(map[uint16]*subscriber)
		for _, some := range s.pollers {
			leaving = slices.AppendSeq(leaving, maps.Values(some))
		}
	}
	s.mu.Unlock()
	for _, sub := range unused {
		sub.cancel() // cancel all first: they may wait for the same connection
	}
	for _, sub := range unused {
		sub.stop()
	}
	for _, p := range leaving {
		<-p.ended
	}
}

// awaitAbandonedCalls waits after the last session, until ctx ends, for calls that were abandoned:
// a Redis client that is closed while it connects leaks the connection.
func (s *Store) awaitAbandonedCalls(ctx context.Context) {
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	if open == 0 {
		s.server.calls.wait(ctx)
	}
}

// subscriberLocked returns the subscriber to the wake-ups of a section, and starts it if needed.
func (s *Store) subscriberLocked(section uint16) *subscriber {
	sub := s.subscribers[section]
	if sub == nil {
		sub = s.subscribe(s.server.wakePrefix(section)+s.id, func() { s.pollAll(section) }, s.received)
		s.subscribers[section] = sub
	}
	return sub
}

// String names the store in messages: "redis at 10.0.0.1:6379,10.0.0.2:6379".
func (s *Store) String() string {
	var addrs []string
	for addr := range s.server.cli.Nodes() {
		addrs = append(addrs, addr)
	}
	slices.Sort(addrs)
	return "redis at " + strings.Join(addrs, ",")
}

// denied reports whether an error text means that the user lacks a permission: for a command, or
// for a command in a script. Redis 7.0, later versions and Valkey word the latter differently.
func denied(text string) bool {
	return strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "user executing the script can't") ||
		strings.Contains(text, "ACL failure in script")
}

// wrapErr adds to err the store and the operation and, for errors of the server that need an
// operator, what to do.
func (s *Store) wrapErr(op string, err error) error {
	reply, ok := errors.AsType[*rueidis.RedisError](err)
	if !ok {
		return fmt.Errorf("%s: %s: %w", s, op, err)
	}
	advice := ""
	switch text := reply.Error(); {
	case denied(text):
		advice = "; docs/stores.md lists the permissions that Stile needs"
	case strings.HasPrefix(text, "OOM"):
		advice = "; the server is out of memory"
	case strings.HasPrefix(text, "READONLY"):
		advice = "; it is a replica: use the address of the master or of its sentinels"
	case strings.HasPrefix(text, "NOREPLICAS"):
		advice = "; the server has fewer replicas than its min-replicas-to-write"
	case !s.server.cluster && (strings.HasPrefix(text, "MOVED") || strings.HasPrefix(text, "CROSSSLOT")):
		advice = "; the server is a node of a cluster: use a cluster client (redis+cluster:// in a URL)"
	}
	return fmt.Errorf("%s: %s: %w%s", s, op, err, advice)
}
