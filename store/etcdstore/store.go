package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// MinTTL and MaxTTL bound the TTL of a session. The server may have a larger minimum: one and a
// half times its election timeout, which makes 2 s by default. For longer TTLs
// etcd may checkpoint how long a lease has left, and after a change of leader a renewed lease may
// then end early.
const (
	MinTTL = time.Second
	MaxTTL = 300 * time.Second
)

// Options configures a [Store]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Prefix is put before every key, as it is. End it with a slash to keep Stile's keys in a
	// folder of their own. If it is empty, the key of a lock begins with the lock's name, as with
	// etcdctl lock.
	Prefix string
	// Logger receives operational events: watches that were opened again, entries that could not be
	// deleted. Nil discards them.
	Logger *slog.Logger

	_ struct{}
}

// Store is a [store.Store] on etcd. It is safe for concurrent use. It has no Close method: close
// its sessions, then the etcd client.
type Store struct {
	cli    *clientv3.Client
	keys   keys
	logger *slog.Logger

	times times
	sizes sizes
	pace  attempts.Pace
}

var _ store.Store = (*Store)(nil)

// New returns a store on the cluster that cli is connected to. It sends no request. A nil opts
// means the zero [Options]. It returns an error if cli is nil or opts.Prefix is invalid.
//
// Set DialKeepAliveTime and DialKeepAliveTimeout in cli's configuration, so that a connection to an
// unresponsive member is closed; New sets neither. The caller closes cli, after all sessions of the
// store.
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
	return &Store{cli: cli, keys: keys{prefix: opts.Prefix}, logger: logger, times: defaultTimes, sizes: defaultSizes}, nil
}

// Capabilities implements [store.Store].
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{
		Kind: "etcd", Fair: true, SharedModes: true, Fencing: true,
		ReleaseAfter: true, OwnerUpdates: true, Contention: true, ClearMarks: s.clearMarks,
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
	return newSession(s, granted, opts), nil
}

// grant creates a lease. Each attempt asks for another lease: a late one must not grant a lease anew
// whose session was closed meanwhile, because a late insertion would then be carried out too. A
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

// String describes the store for messages: "etcd at 10.0.0.1:2379, 10.0.0.2:2379".
func (s *Store) String() string {
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
