package zkstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// MinTTL and MaxTTL bound the TTL of a session. A client allows at most stile.MaxTTL, which is less
// than MaxTTL. The servers have their own bounds, 2 and 20 ticks by default, which are 4 s and 40 s.
// Below their minimum they grant more than requested; above their maximum Open returns an error.
const (
	MinTTL = time.Second
	MaxTTL = time.Hour
)

// Options configures a [Store]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Root is put before every path. It is the path of a directory, "/team/locks" for example, and
	// keeps Stile's nodes apart. The directory need not exist. If Root is empty or "/", the lock
	// "a/b" is at "/a/b", as it is for other clients.
	Root string
	// ReadWrite names entries like Curator's InterProcessReadWriteLock. Otherwise they are named
	// like its InterProcessMutex. It matters only if Curator's locks use the same path: each of the
	// two sees only entries named its own way. Stile sees all of them, and refuses to join a line
	// with an entry of Curator's that does not see its own.
	ReadWrite bool
	// Auth are the credentials that the store presents to every server.
	Auth []Auth
	// ACL is set on every entry and every directory that the store creates. Nil allows everybody
	// everything. All clients of a lock must be able to read, create and delete. They also need to
	// write: without that right Proclaim fails, and others do not see when a lock was acquired.
	ACL []zk.ACL
	// TLS, if not nil, makes connections use TLS. Without a ServerName a server's certificate is
	// checked against the host in the address that New was given.
	TLS *tls.Config
	// Logger receives messages for operators: failed connections, entries that could not be removed.
	// Nil discards them.
	Logger *slog.Logger

	_ struct{}
}

// Auth is one credential: the scheme "digest" and "user:password", for example.
type Auth struct {
	Scheme, Credentials string
}

// Store is a [store.Store] on ZooKeeper. It is safe for concurrent use. It makes its own connections:
// close the sessions, then the store with [Store.Close].
type Store struct {
	servers   []string
	paths     paths
	readWrite bool
	auth      []Auth
	acl       []zk.ACL
	tls       *tls.Config
	logger    *slog.Logger

	// Tests replace these functions of package net.
	lookup func(ctx context.Context, host string) (addresses []string, err error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)

	// These are recheckInterval, resyncInterval, blockerCheckInterval, attempts.MaxDuration,
	// maxSessionBytes and defaultExamineLimits, unless a test sets other values.
	recheckInterval, resyncInterval, blockerCheckInterval, callTimeout time.Duration
	sessionBytes                                                       int64
	limits                                                             examineLimits

	opening *attempts.Places // see maxOpening

	mu      sync.Mutex
	reading *client // for what is done without a session; nil until it is needed
	closed  bool
}

var _ store.Store = (*Store)(nil)

// New returns a store on the ensemble whose servers have the given addresses: host:port, or a host,
// whose port is then 2181. If a host name has several addresses, all are tried in turn. New sends no
// request. It returns an error if there is no server or an option is invalid.
//
// The store has one connection for each session, one for each call of [Store.Watch], and one for
// everything else. A session with thousands of entries has several, because ZooKeeper cannot handle
// the end of one ZooKeeper session with all of them.
func New(servers []string, opts *Options) (*Store, error) {
	if len(servers) == 0 {
		return nil, errors.New("zookeeper store: no servers")
	}
	if opts == nil {
		opts = &Options{}
	}
	addresses := make([]string, 0, len(servers))
	for _, s := range servers {
		address, err := withPort(s)
		if err != nil {
			return nil, fmt.Errorf("zookeeper store: server %q: %w", s, err)
		}
		addresses = append(addresses, address)
	}
	root := strings.TrimSuffix(opts.Root, "/")
	if root != "" {
		err := store.CheckName(strings.TrimPrefix(root, "/"))
		if err != nil || root[0] != '/' || strings.ContainsFunc(root, func(r rune) bool { return r != escape && !allowed(r) }) {
			return nil, fmt.Errorf("zookeeper store: root %q: it must be a path that ZooKeeper allows, like /team/locks", root)
		}
	}
	acl := slices.Clone(opts.ACL)
	if len(acl) == 0 {
		acl = zk.WorldACL(zk.PermAll)
	}
	return &Store{
		servers: addresses, paths: paths{root: root}, readWrite: opts.ReadWrite,
		auth: slices.Clone(opts.Auth), acl: acl, tls: opts.TLS, logger: cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
		lookup: net.DefaultResolver.LookupHost, dial: (&net.Dialer{}).DialContext,
		recheckInterval: recheckInterval, resyncInterval: resyncInterval, blockerCheckInterval: blockerCheckInterval,
		callTimeout: attempts.MaxDuration, sessionBytes: maxSessionBytes, limits: defaultExamineLimits,
		opening: attempts.NewPlaces(maxOpening),
	}, nil
}

// maxOpening is how many calls of [Store.Open] may be under way; others wait. An ensemble opens a few hundred
// sessions a second. If thousands ask at once, it answers most of them after their connections were given up, and they ask
// again: 2000 sessions of ten processes were not all open after [attempts.MaxDuration]. A call that is not answered
// counts for maxHandshake, so that one silent server does not keep all sessions from the others.
const maxOpening = 32

// withPort adds the default port to the address of a server that has none.
func withPort(server string) (string, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil { // it has no port, or is not an address
		host = server
		if strings.HasPrefix(server, "[") && strings.HasSuffix(server, "]") {
			host = server[1 : len(server)-1]
		}
		if ip, err := netip.ParseAddr(host); strings.ContainsAny(host, ":[]") && (err != nil || !ip.Is6()) {
			return "", errors.New("it must be a host, or host:port")
		}
	}
	if host == "" {
		return "", errors.New("it must be a host, or host:port")
	}
	return net.JoinHostPort(host, cmp.Or(port, strconv.Itoa(zk.DefaultPort))), nil
}

// Close closes the store's own connection. Close the sessions first: they have connections of their
// own, which Close leaves open. After Close the store cannot read. Closing again does nothing. The
// error is always nil.
func (s *Store) Close() error {
	s.mu.Lock()
	c := s.reading
	s.reading, s.closed = nil, true
	s.mu.Unlock()
	if c != nil {
		c.shut()
	}
	return nil
}

// Capabilities implements [store.Store].
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{
		Kind: "zookeeper", Fair: true, SharedModes: true, Fencing: true,
		OwnerUpdates: true, Contention: true, Requeue: true, SlotNumbers: true, SetLimit: s.setLimit, EnqueueAll: s.enqueueAll, Record: s.record,
		MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
}

// readingTTL is the TTL of the store's own session, which has no entries. The library abandons a
// server that does not answer after two thirds of it, which is early enough for [Store.Ping].
const readingTTL = 6 * time.Second

// reader returns the store's own connection.
func (s *Store) reader() (*client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the store is closed")
	}
	if s.reading == nil {
		c, err := s.connect(readingTTL, false, func(zk.Event) {})
		if err != nil {
			return nil, err
		}
		s.reading = c
	}
	return s.reading, nil
}

// String names the store in messages: "zookeeper at 10.0.0.1:2181, 10.0.0.2:2181".
func (s *Store) String() string { return "zookeeper at " + strings.Join(s.servers, ", ") }

// wrapErr adds to err the store and the operation and, for errors that need an operator, what to
// do.
func (s *Store) wrapErr(op string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		advice = "; the client must be allowed to read, write, create and delete under " + s.paths.top() +
			": check its credentials and the ACLs there"
	case errors.Is(err, zk.ErrAuthFailed):
		advice = "; the servers do not accept these credentials"
	case errors.Is(err, zk.ErrNoChildrenForEphemerals):
		advice = "; the path of the lock's directory is an ephemeral node: choose another name or root"
	case errors.Is(err, zk.ErrInvalidACL):
		advice = "; an ACL of the scheme auth requires credentials"
	default:
		for inner := err; inner != nil && advice == ""; inner = errors.Unwrap(inner) {
			if meaning := unnamedErrors[inner.Error()]; meaning != "" {
				advice = "; " + meaning
			}
		}
	}
	return fmt.Errorf("%s: %s: %w%s", s, op, err, advice)
}

// Open implements [store.Store]. If servers grant less than the requested TTL it returns an error;
// they may grant more.
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	asked := time.Duration(math.Ceil(float64(opts.TTL)/float64(time.Millisecond))) * time.Millisecond
	leave, err := s.opening.Enter(ctx)
	if err != nil {
		return nil, s.wrapErr("open a session", attempts.GaveUp(ctx, err))
	}
	defer leave()
	defer time.AfterFunc(maxHandshake, leave).Stop()
	bounded, cancel := context.WithTimeoutCause(ctx, s.callTimeout, noAnswerError(s.callTimeout))
	defer cancel()
	g := newGroup(s, opts)
	if err := g.first.open(bounded, asked); err != nil {
		return nil, s.wrapErr("open a session", attempts.WithContextErr(ctx, err))
	}
	return g, nil
}

// libraryLogger logs go-zookeeper's messages. Their importance is unknown, so all are logged at
// debug level.
type libraryLogger struct{ logger *slog.Logger }

func (l libraryLogger) Printf(format string, a ...any) {
	l.logger.LogAttrs(context.Background(), slog.LevelDebug, "zookeeper client: "+fmt.Sprintf(format, a...))
}
