package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// MinTTL and MaxTTL bound the TTL of a session. The server may have a larger minimum: one and a half times its
// election timeout, which makes 2 s by default. Above five minutes etcd checkpoints leases, and may lose what it has
// checkpointed.
const (
	MinTTL = time.Second
	MaxTTL = 300 * time.Second
)

// Options configures a [Store]. The zero value, and a nil *Options, are ready for use.
type Options struct {
	// Prefix is put before every key. It is used as it is: end it with a slash to set Stile's locks apart in a
	// folder. Empty means that the key of a lock begins with its name, as it does for etcdctl lock.
	Prefix string
	// Logger receives what an operator may want to know: watches that had to be opened again, entries that could
	// not be taken out. Nil discards it.
	Logger *slog.Logger

	_ struct{}
}

// Store is a [store.Store] on etcd. It is safe for concurrent use. It has nothing of its own to close: sessions are
// closed one by one, the etcd client by whoever made it.
type Store struct {
	cli    *clientv3.Client
	keys   keys
	logger *slog.Logger

	times times
}

var _ store.Store = (*Store)(nil)

// New returns a store on the cluster that cli is connected to. Nothing is sent yet. The client should have
// DialKeepAliveTime and DialKeepAliveTimeout set, so that a connection to a member that has fallen silent is given up;
// New adds neither.
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
	logger := opts.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Store{cli: cli, keys: keys{prefix: opts.Prefix}, logger: logger, times: ordinary}, nil
}

// Capabilities implements [store.Store].
func (s *Store) Capabilities() store.Capabilities {
	return store.Capabilities{
		Kind: "etcd", Fair: true, SharedModes: true, Fencing: true,
		Outlasting: true, OwnerUpdates: true, Contention: true, ClearMarks: s.clearMarks,
		MinTTL: MinTTL, MaxTTL: MaxTTL,
	}
}

// Open implements [store.Store]. The TTL is rounded up to a second. A TTL below the server's own minimum is an error,
// because the server would silently grant another.
func (s *Store) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	seconds := int64(math.Ceil(opts.TTL.Seconds()))

	var granted *clientv3.LeaseGrantResponse
	err := patiently(ctx, func(ctx context.Context) (err error) {
		// A grant that was given up may exist all the same: an empty lease that lasts for one TTL.
		granted, err = s.cli.Grant(ctx, seconds)
		return err
	})
	if err != nil {
		return nil, s.explain("open a session", err)
	}
	if granted.TTL > seconds {
		s.revoke(ctx, granted.ID)
		return nil, fmt.Errorf("%s: a TTL of %v: the server grants none below %v: ask for that or more",
			s, opts.TTL, time.Duration(granted.TTL)*time.Second)
	}
	return newSession(s, granted, opts), nil
}

// revoke ends a lease that nobody has used. If it fails the lease lasts for its TTL.
func (s *Store) revoke(ctx context.Context, id clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := s.cli.Revoke(ctx, id); err != nil {
		s.logger.LogAttrs(ctx, slog.LevelDebug, "unused lease left to expire", slog.Any("error", err))
	}
}

// Break implements [store.Store]. It works on the entries of any client.
func (s *Store) Break(ctx context.Context, name string, order uint64) (store.Entry, error) {
	doing := fmt.Sprintf("break lock %q", name)
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	defer cancel()
	l, cs, err := s.read(ctx, name)
	if err != nil {
		return store.Entry{}, s.explain(doing, err)
	}
	gone := fmt.Errorf("%s: %s: %w: no entry with order %d stands there", s, doing, store.ErrGone, order)
	for i, e := range l.Entries {
		if e.Order != order {
			continue
		}
		r, err := s.remove(ctx, cs[i].ID, int64(cs[i].Order))
		switch {
		case err != nil:
			return store.Entry{}, s.explain(doing, err)
		case !r.removed && !r.unanswered:
			return store.Entry{}, gone
		}
		return e, nil
	}
	return store.Entry{}, gone
}

// remove deletes a key if it still has the given create revision, and does the rest with it. It reports whether an attempt
// found the key there to be deleted, and whether one was not answered: that one may have deleted what the others did not find.
//
// If the first attempt is slow others are made, but it is not given up: on a slow cluster it is the one that deletes the key.
func (s *Store) remove(ctx context.Context, key string, created int64, rest ...clientv3.Op) (removal, error) {
	del := append(rest, clientv3.OpDelete(key))
	request := func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.cli.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", created)).Then(del...).Commit()
	}

	ctx, end := context.WithCancel(ctx)
	defer end()
	first, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var (
		others    removal
		othersErr error
		done      = make(chan struct{})
	)
	slow := time.AfterFunc(s.times.again, func() {
		defer close(done)
		others, othersErr = s.removeAgain(ctx, first.Done(), request)
		giveUp()
	})
	var r removal
	err := r.note(request(first))
	giveUp() // for others: it is answered
	switch alone := slow.Stop(); {
	case alone && (err == nil || refused(err)):
		return r, err
	case alone:
		others, othersErr = s.removeAgain(ctx, first.Done(), request)
	default:
		if r.removed {
			end()
		}
		<-done
	}
	if err != nil {
		err = othersErr
	}
	return r.and(others), err
}

// removeAgain makes the request of a removal until it is answered. More than one attempt may be under way: when one finds
// nothing, the others are waited for a while longer, and so is the first one of all, whose end is the end of firstOver. An
// attempt that is not answered for [attempts.Longest] is given up, so that there are only ever a few.
func (s *Store) removeAgain(
	ctx context.Context, firstOver <-chan struct{}, request func(context.Context) (*clientv3.TxnResponse, error),
) (r removal, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	type answer struct {
		resp *clientv3.TxnResponse
		err  error
	}
	answers := make(chan answer)
	attempt := func() {
		try, cancel := context.WithTimeout(ctx, attempts.Longest)
		defer cancel()
		resp, err := request(try)
		select {
		case answers <- answer{resp, err}:
		case <-ctx.Done():
		}
	}

	var (
		underWay = 0
		patience = attempts.Shortest
		pause    = firstPause
		next     = time.NewTimer(0)
		nothing  bool  // one has found nothing
		last     error // of an attempt that failed
		enough   = time.NewTimer(time.Duration(math.MaxInt64))
	)
	defer next.Stop()
	defer enough.Stop()
	for !nothing || underWay > 0 || firstOver != nil {
		select {
		case <-next.C:
			underWay++
			go attempt()
			next.Reset(patience)
			patience = min(2*patience, attempts.Longest)
		case a := <-answers:
			underWay--
			err := r.note(a.resp, a.err)
			switch {
			case r.removed:
				return r, nil
			case refused(err) && !nothing:
				return r, err
			case err == nil && !nothing:
				nothing = true
				next.Stop()
				enough.Reset(s.times.lastWord)
			case err != nil && !nothing:
				last = err
				next.Reset(pause)
				pause = min(2*pause, attempts.LongestPause)
			}
		case <-firstOver:
			firstOver = nil
		case <-enough.C:
			r.unanswered = r.unanswered || underWay > 0
			return r, nil
		case <-ctx.Done():
			r.unanswered = r.unanswered || underWay > 0
			return r, attempts.GaveUp(ctx, last)
		}
	}
	return r, nil
}

// removal is what became of the attempts to delete a key.
type removal struct {
	removed    bool // one found the key and deleted it
	unanswered bool // one was not answered, and may have been carried out
	header     *pb.ResponseHeader
}

// note takes in the answer to one attempt, and returns its error.
func (r *removal) note(resp *clientv3.TxnResponse, err error) error {
	if err != nil {
		r.unanswered = r.unanswered || !refused(err)
		return err
	}
	r.removed, r.header = r.removed || resp.Succeeded, resp.Header
	return nil
}

// and returns what became of the attempts of both.
func (r removal) and(other removal) removal {
	r.removed, r.unanswered = r.removed || other.removed, r.unanswered || other.unanswered
	if r.header == nil {
		r.header = other.header
	}
	return r
}

// String names the store in messages: "etcd at 10.0.0.1:2379, 10.0.0.2:2379".
func (s *Store) String() string {
	return "etcd at " + strings.Join(s.cli.Endpoints(), ", ")
}

// explain says what failed, where, and, for the failures that a person has to see to, what to do.
func (s *Store) explain(doing string, err error) error {
	advice := ""
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		advice = "; the cluster is out of space: compact and defragment it, then run etcdctl alarm disarm"
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		advice = "; the etcd user needs to read and write the keys under " + strconv.Quote(s.keys.prefix)
		if s.keys.prefix == "" {
			advice = "; the etcd user needs to read and write the keys that begin with the lock's name, and those under " +
				strconv.Quote(reserved+"/")
		}
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrInvalidAuthToken):
		advice = "; check the user and the password"
	case errors.Is(err, rpctypes.ErrUserEmpty):
		advice = "; the cluster wants a user and a password"
	}
	return fmt.Errorf("%s: %s: %w%s", s, doing, err, advice)
}
