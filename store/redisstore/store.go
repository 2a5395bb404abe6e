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
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// MinTTL and MaxTTL bound the TTL of a session. Redis itself counts milliseconds; below the minimum a single slow command
// of somebody else would end sessions.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// Options configures a [Store]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Prefix is put before every key and channel. It is used as it is: end it with a colon, say, to set Stile's locks
	// apart. Empty means that the key of a lock is its name, as it is for other lockers.
	Prefix string
	// WaitReplicas is how many replicas must have an entry before it counts, and a confirmation. More makes it less likely,
	// and never impossible, that a failover forgets a hold. Zero means none. An entry or a confirmation that has not
	// reached so many is an error that matches [ErrNotReplicated]. In a cluster each master needs so many replicas.
	WaitReplicas int
	// WaitTimeout is how long to wait for the replicas. Zero means [DefaultWaitTimeout].
	WaitTimeout time.Duration
	// Logger receives what an operator may want to know: subscriptions that had to be made again, entries that could not
	// be taken out. Nil discards it.
	Logger *slog.Logger

	_ struct{}
}

// DefaultWaitTimeout is how long to wait for replicas unless told otherwise.
const DefaultWaitTimeout = time.Second

// Store is a [store.Store] on Redis. It is safe for concurrent use. It has nothing of its own to close: sessions are
// closed one by one, then the client by whoever made it.
type Store struct {
	server *server
	logger *slog.Logger
	client string // in the names of the channels on which this store is woken

	interval pollInterval
	deaf     bool // to what is published on its channels: for tests of what happens without

	mu          sync.Mutex
	open        int                           // sessions
	subscribers map[uint16]*subscriber        // by section; in a cluster, those in which somebody has waited while there were sessions
	entries     map[string]*entry             // by id: those that are joining or standing
	pollers     map[uint16]map[string]*poller // by section and name
}

var _ store.Store = (*Store)(nil)

// New returns a store on the server that cli is connected to: a single one, the master that Sentinel tells of, or a
// cluster. Nothing is sent yet.
//
// The client should be made with DisableRetry, because the store makes its requests again by itself and more carefully,
// and with a ConnWriteTimeout of a few seconds, so that a dead connection is given up well before a TTL has passed. It
// needs neither its cache nor any other option. [ClientOptions] makes such options.
//
// Nobody else should use cli. When a single server says that it is not the master, the store ends all connections of cli, and
// with them the requests that are under way on them.
func New(cli rueidis.Client, opts *Options) (*Store, error) {
	if cli == nil {
		return nil, errors.New("redis store: no client")
	}
	if opts == nil {
		opts = &Options{}
	}
	if err := store.CheckPrefix(opts.Prefix); err != nil {
		return nil, fmt.Errorf("redis store: key prefix: %w", err)
	}
	if strings.ContainsAny(opts.Prefix, "{}") {
		return nil, fmt.Errorf("redis store: key prefix %q: it must not contain braces, which would put all locks into one "+
			"slot of a cluster", opts.Prefix)
	}
	if opts.WaitReplicas < 0 || opts.WaitTimeout < 0 {
		return nil, fmt.Errorf("redis store: wait for %d replicas for %v: neither can be negative", opts.WaitReplicas, opts.WaitTimeout)
	}
	return &Store{
		server: &server{
			cli:           cli,
			cluster:       cli.Mode() == rueidis.ClientModeCluster,
			keys:          keys{prefix: opts.Prefix},
			replicas:      opts.WaitReplicas,
			replication:   cmp.Or(opts.WaitTimeout, DefaultWaitTimeout),
			round:         defaultRound,
			calls:         new(calls),
			subscriptions: make(map[*subscription]struct{}),
		},
		logger:      cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
		client:      rand.Text(),
		interval:    pollInterval{shortestPoll, longestPoll},
		subscribers: make(map[uint16]*subscriber),
		entries:     make(map[string]*entry),
		pollers:     make(map[uint16]map[string]*poller),
	}, nil
}

// ClientOptions returns options for a client of the servers at the given addresses, as [New] wants them: for a single server
// one address, for a cluster those of some of its nodes, for Sentinels theirs. Who has more to say, about users, passwords,
// TLS and the name of the master, adds it; and unsets ForceSingleClient if there is one address only, but not one server.
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
	return store.Capabilities{
		Kind: "redis", Fair: true, SharedModes: true, Fencing: true, ReleaseAfter: true, OwnerUpdates: true, Contention: true,
		MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
}

// Open implements [store.Store].
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	if err := s.begin(ctx); err != nil {
		return nil, s.explain("open a session", attempts.EndedBy(ctx, err))
	}
	var se *session
	err := patiently(ctx, func(ctx context.Context) error {
		// Another session with each attempt: one that comes late would bring back what has ended. It makes a key that
		// nobody uses and that lasts for one TTL.
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
		s.end()
		return nil, s.explain("open a session", attempts.EndedBy(ctx, err))
	}
	se.life.Start(se.lookAfter)
	return se, nil
}

// begin counts a session. The first one subscribes to the wake-ups, and returns the server's refusal if there is one; but
// in a cluster that is done for each slot when there is first somebody who waits.
func (s *Store) begin(ctx context.Context) error {
	s.mu.Lock()
	s.open++
	if s.server.cluster {
		s.mu.Unlock()
		return nil
	}
	sub := s.listenIn(0)
	s.mu.Unlock()
	err := sub.await(ctx)
	if err != nil {
		s.end()
	}
	return err
}

// end is the opposite of begin. After the last session it returns when nothing is received or polled any more.
func (s *Store) end() {
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
		sub.cancel() // all, before any is waited for: they may wait for one connection that does not come
	}
	for _, sub := range unused {
		sub.stop()
	}
	for _, p := range leaving {
		<-p.ended
	}
}

// unused waits, after the last session, as long as ctx lasts, until no call that was given up is under way: a Redis client that
// is closed while it connects for somebody leaves the connection behind.
func (s *Store) unused(ctx context.Context) {
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	if open == 0 {
		s.server.calls.wait(ctx)
	}
}

// listenIn returns the subscriber to the wake-ups of a section, and starts it if this is the first need of it. It is called
// with s.mu held.
func (s *Store) listenIn(section uint16) *subscriber {
	sub := s.subscribers[section]
	if sub == nil {
		sub = s.subscribe(s.server.wake(section)+s.client, func() { s.pollAll(section) }, s.received)
		s.subscribers[section] = sub
	}
	return sub
}

// String names the store by what it is connected to.
func (s *Store) String() string {
	var addrs []string
	for addr := range s.server.cli.Nodes() {
		addrs = append(addrs, addr)
	}
	slices.Sort(addrs)
	return "redis at " + strings.Join(addrs, ",")
}

// denied reports whether the server says that the user lacks a right: a command's, or one of the script's, which Redis 7.0,
// later ones and Valkey say in words of their own.
func denied(text string) bool {
	return strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "user executing the script can't") ||
		strings.Contains(text, "ACL failure in script")
}

// explain says what failed, where and, of what the server says, what to do about it.
func (s *Store) explain(doing string, err error) error {
	said, ok := errors.AsType[*rueidis.RedisError](err)
	if !ok {
		return fmt.Errorf("%s: %s: %w", s, doing, err)
	}
	advice := ""
	switch text := said.Error(); {
	case denied(text):
		advice = "; the rights that Stile needs are in docs/stores.md"
	case strings.HasPrefix(text, "OOM"):
		advice = "; it is out of memory"
	case strings.HasPrefix(text, "READONLY"):
		advice = "; it is a replica: name the master, or the sentinels that know it"
	case strings.HasPrefix(text, "NOREPLICAS"):
		advice = "; its min-replicas-to-write wants more replicas than it has"
	case !s.server.cluster && (strings.HasPrefix(text, "MOVED") || strings.HasPrefix(text, "CROSSSLOT")):
		advice = "; it is a node of a cluster, and the client must be told so: with a URL, by redis+cluster://"
	}
	return fmt.Errorf("%s: %s: %w%s", s, doing, err, advice)
}
