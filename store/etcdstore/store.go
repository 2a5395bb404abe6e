package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// MinTTL and MaxTTL bound the TTL of a session. MaxTTL equals stile.MaxTTL. The server may have a
// larger minimum: one and a half times its election timeout, which makes 2 s by default. Of a
// lease with a longer TTL than MaxTTL, etcd may store the remaining time; after a change of leader
// such a lease may end early although it was renewed.
const (
	MinTTL = time.Second
	MaxTTL = 300 * time.Second
)

// Options configures a [Store]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Prefix is put before every key, unchanged. End it with a slash to keep Stile's keys apart. If
	// it is empty, the keys of a lock begin with its name, as those of etcdctl lock do.
	Prefix string
	// Logger receives messages for operators: watches that were opened again, entries that could
	// not be removed. Nil discards them.
	Logger *slog.Logger
	// Pages gets the page at a path, such as "/metrics", from the member at an endpoint of the client. Only
	// [Store.Examine] uses it. If it is nil, what only these pages tell is not examined.
	Pages func(ctx context.Context, endpoint, path string) (*http.Response, error)
	// SessionOpened, if not nil, is called before [Store.Open] returns a session, with its lease and the
	// context of Open. The function that it returns is called when the session has been closed, or its
	// Close has failed. Both may be called concurrently for several sessions. Package storeurl declares
	// here to a server of Stile's that this process is the only user of the session.
	SessionOpened func(ctx context.Context, lease clientv3.LeaseID) (closed func())

	_ struct{}
}

// Store is a [store.Store] on etcd. It is safe for concurrent use. It uses the connections of its
// caller's client, and has no Close method: close the sessions, then that client.
type Store struct {
	cli    *clientv3.Client
	keys   keys
	logger *slog.Logger

	times     times
	sizes     sizes
	pageSizes pageSizes
	pace      *attempts.Pace
	farPace   *attempts.Pace // of reads of waiters far back; see maxFarReads
	removals  *attempts.Places

	watcher    watcher
	heldKeys   *keyWatches
	leases     leaseReadings
	maxCatchUp int64 // [maxCatchUp], unless a test sets another

	verifyShare time.Duration // [defaultVerifyShare], unless a test sets another

	pages  func(ctx context.Context, endpoint, path string) (*http.Response, error)
	limits examineLimits

	sessionOpened func(ctx context.Context, lease clientv3.LeaseID) (closed func()) // or nil
}

var _ store.Store = (*Store)(nil)

// New returns a store on the cluster that cli is connected to. It sends no request. It returns an
// error if cli is nil or an option is invalid.
//
// A program may have replaced the client's KV, Watcher and Lease, as with package clientv3/namespace. All
// requests go through them, except the renewals of leases, which use the connection directly.
//
// Set DialKeepAliveTime and DialKeepAliveTimeout in cli's configuration, so that a connection to an
// unresponsive member is closed; New sets neither. Leave PermitWithoutStream false: etcd ends a
// connection that is pinged while it has no request.
func New(cli *clientv3.Client, opts *Options) (*Store, error) {
	if cli == nil {
		return nil, errors.New("etcd store: no etcd client")
	}
	if opts == nil {
		opts = &Options{}
	}
	if err := store.CheckPrefix(opts.Prefix); err != nil {
		return nil, fmt.Errorf("etcd store: key prefix: %w", err)
	}
	logger := cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	s := &Store{
		cli: cli, watcher: watcher{cli: cli}, keys: keys{prefix: opts.Prefix}, logger: logger, times: defaultTimes, sizes: defaultSizes, pageSizes: defaultPageSizes,
		pace: attempts.NewPace(maxAttempts), farPace: attempts.NewPace(maxFarReads), removals: attempts.NewPlaces(maxRemovals), maxCatchUp: maxCatchUp, verifyShare: defaultVerifyShare, pages: opts.Pages, limits: defaultExamineLimits,
		sessionOpened: opts.SessionOpened,
	}
	s.heldKeys = newKeyWatches(s)
	return s, nil
}

// Capabilities implements [store.Store].
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{
		Kind: "etcd", Fair: true, SharedModes: true, Fencing: true,
		ReleaseAfter: true, OwnerUpdates: true, Downgrades: true, Contention: true, Requeue: true, SlotNumbers: true, ClearMarks: s.clearMarks,
		SetLimit: s.setLimit, EnqueueAll: s.enqueueAll, Record: s.record, Follow: s.followLines,
		MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
}

// Open implements [store.Store]. The TTL is rounded up to a second. A TTL below the server's own
// minimum is an error, because the server would silently grant a longer one.
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	seconds := int64(math.Ceil(opts.TTL.Seconds()))

	granted, err := s.grant(ctx, seconds)
	if err != nil {
		return nil, s.wrapErr("open a session", err)
	}
	if granted.TTL > seconds {
		s.revoke(ctx, granted.ID)
		return nil, fmt.Errorf("%s: TTL %v is below the server's minimum: use %v or more",
			s, opts.TTL, time.Duration(granted.TTL)*time.Second)
	}
	se := newSession(s, granted, opts)
	if s.sessionOpened != nil {
		se.closed = sync.OnceFunc(s.sessionOpened(ctx, granted.ID))
	}
	return se, nil
}

// grant creates a lease. Each attempt requests a new lease: a late attempt must not grant the lease of
// a session that was closed meanwhile, because a late request for an entry could then take effect. A
// lease whose grant was not answered expires.
func (s *Store) grant(ctx context.Context, seconds int64) (granted *clientv3.LeaseGrantResponse, err error) {
	err = s.attemptWithTimeout(ctx, func(ctx context.Context) (err error) {
		granted, err = s.cli.Grant(ctx, seconds)
		return err
	})
	return granted, err
}

// revoke ends a lease to which nothing is attached. If it fails, the lease expires after its TTL.
func (s *Store) revoke(ctx context.Context, id clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := s.cli.Revoke(ctx, id); err != nil {
		s.logger.LogAttrs(ctx, slog.LevelDebug, "unused lease left to expire", slog.Any("error", err))
	}
}

// String names the store in messages: "etcd at 10.0.0.1:2379, 10.0.0.2:2379".
func (s *Store) String() string {
	if len(s.cli.Endpoints()) == 0 { // of a client that package v3client of etcd has made
		return "etcd in this process"
	}
	return "etcd at " + strings.Join(s.cli.Endpoints(), ", ")
}

// wrapErr adds the operation and the endpoints to err, and advice for errors that an operator has
// to resolve.
func (s *Store) wrapErr(op string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		advice = "; the cluster is out of space: compact and defragment it, then run etcdctl alarm disarm"
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		advice = "; the etcd user needs to read and write the keys under " + strconv.Quote(s.keys.prefix)
		if s.keys.prefix == "" {
			advice = "; the etcd user needs to read and write the keys that begin with the lock's name, and those under " +
				strconv.Quote(reservedName+"/")
		}
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrInvalidAuthToken):
		advice = "; check the user and the password"
	case errors.Is(err, rpctypes.ErrUserEmpty):
		advice = "; the cluster requires authentication: give a user and a password"
	}
	return fmt.Errorf("%s: %s: %w%s", s, op, err, advice)
}
