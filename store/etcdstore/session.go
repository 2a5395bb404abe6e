package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/lifetime"
)

// session is a lease and what is attached to it.
type session struct {
	store *Store
	lease clientv3.LeaseID
	ttl   time.Duration
	opts  store.SessionOptions

	cluster uint64
	seen    atomic.Int64 // the largest revision that the cluster has shown

	life *lifetime.Life

	leases pb.LeaseClient
	stream *renewalStream // belongs to the goroutine that confirms
	opened bool           // there has been a stream
	unsure bool           // the stream is not the first, and look has not succeeded since it was opened

	// overwritten are the entries whose keys have to be deleted because they are not attached to the lease any more.
	overwritten struct {
		sync.Mutex
		entries []*entry
	}

	// mu is taken before the mutex of a line.
	mu      sync.Mutex
	lines   map[string]*follower
	guard   guard // what was last seen of the guard key
	outlast bool  // an entry stands, or may, that outlasts the session
	lost    bool  // life has ended, and not because of Close
	revoked bool  // the lease is known not to exist any more
}

func newSession(s *Store, granted *clientv3.LeaseGrantResponse, opts store.SessionOptions) *session {
	se := &session{
		store:  s,
		lease:  granted.ID,
		ttl:    time.Duration(granted.TTL) * time.Second,
		opts:   opts,
		leases: clientv3.RetryLeaseClient(s.cli),
		lines:  make(map[string]*follower),

		cluster: granted.ResponseHeader.GetClusterId(),
	}
	se.seen.Store(granted.ResponseHeader.GetRevision())
	// All streams of all sessions carry the same metadata: the etcd client then needs one connection's stream for
	// all watches. A member that has lost its leader ends them instead of falling silent.
	se.life = lifetime.New(clientv3.WithRequireLeader(context.Background()), &se.mu, opts.Lost)
	return se
}

// ID implements [store.Session]: the lease's id, as etcdctl writes it.
func (se *session) ID() string { return leaseText(se.lease) }

// Terms implements [store.Session]. The leader counts from when it handled the renewal, so in normal operation it is
// never early. (Once it has been stopped for longer than the TTL it can be: see docs/guarantees.md.)
func (se *session) Terms() store.Terms { return store.Terms{TTL: se.ttl} }

// Confirm implements [store.Session]. A renewal is answered by the leader or not at all. The etcd client's own
// keep-alive is not used: it hides when a renewal was sent, and counts from its reply.
func (se *session) Confirm(ctx context.Context) error {
	if err := se.life.Err(); err != nil {
		return err
	}
	ttl, err := se.renew(ctx)
	if err == nil && ttl > 0 && se.unsure {
		err = se.look(ctx)
		se.unsure = err != nil
	}
	switch {
	case errors.Is(err, store.ErrSessionLost):
		return err
	case err != nil:
		return se.explain(ctx, "renew the session", err)
	case ttl <= 0:
		return se.gone()
	case time.Duration(ttl)*time.Second < se.ttl: // the leader always grants all of it
		return fmt.Errorf("%s: the renewal of the session is not confirmed: the answer says %d s, and %v was granted "+
			"(is there an etcd grpc-proxy in between? connect to the cluster itself)", se.store, ttl, se.ttl)
	}
	return nil
}

// look makes sure that the cluster still has what this session has put in. Data that were set back, to a backup for example,
// may have the lease without its keys.
func (se *session) look(ctx context.Context) error {
	ctx, cancel := se.life.Within(ctx)
	defer cancel()
	own := se.standing()
	for first := true; first || len(own) > 0; first = false {
		some := own[:min(len(own), readAtOnce)]
		own = own[len(some):]
		gets := []clientv3.Op{clientv3.OpGet(se.guardKey(), clientv3.WithCountOnly())} // at least the revision
		for _, e := range some {
			gets = append(gets, clientv3.OpGet(e.key, clientv3.WithKeysOnly()))
		}
		before := se.seen.Load()
		var resp *clientv3.TxnResponse
		err := attempt(ctx, func(ctx context.Context) (err error) {
			resp, err = se.store.cli.Txn(ctx).Then(gets...).Commit()
			return err
		})
		if err == nil {
			err = se.saw(before, resp.Header)
		}
		if err != nil {
			return err
		}
		for i, e := range some {
			kvs := resp.Responses[1+i].GetResponseRange().Kvs
			if len(kvs) == 0 || uint64(kvs[0].CreateRevision) != e.order {
				e.line.vanished(e)
			}
		}
	}
	return nil
}

// standing returns the entries that stand in lines.
func (se *session) standing() []*entry {
	se.mu.Lock()
	defer se.mu.Unlock()
	var all []*entry
	for _, w := range se.lines {
		w.mu.Lock()
		for e := range w.mine {
			if e.state == standing {
				all = append(all, e)
			}
		}
		w.mu.Unlock()
	}
	return all
}

// saw takes in the header of an answer that was linearizable. before is what had been seen when the request was made: the
// answer cannot be older, unless the data have gone back. Then the session has ended: what it has put in may be gone, and
// nobody would be told.
func (se *session) saw(before int64, h *pb.ResponseHeader) error {
	if h.GetClusterId() != se.cluster {
		return se.lose(fmt.Errorf("%s: %w: this is another cluster (%x) than the one that lease %s was granted by (%x)",
			se.store, store.ErrSessionLost, h.GetClusterId(), se.ID(), se.cluster))
	}
	if h.GetRevision() < before {
		return se.lose(fmt.Errorf("%s: %w: the cluster is at revision %d and was at %d: its data have been set back, to a backup for example",
			se.store, store.ErrSessionLost, h.GetRevision(), before))
	}
	se.shown(h)
	return nil
}

// shown takes in the header of any answer. Whatever member it came from, no linearizable answer to a later request is older.
func (se *session) shown(h *pb.ResponseHeader) {
	for seen := se.seen.Load(); h.GetRevision() > seen && !se.seen.CompareAndSwap(seen, h.GetRevision()); {
		seen = se.seen.Load()
	}
}

// renewalStream carries renewals of one lease and the answers to them, one by one. After any failure it is thrown
// away: so an answer that comes late is never taken for that to a later renewal, and the next stream may lead to
// another member.
type renewalStream struct {
	pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
}

func (se *session) renew(ctx context.Context) (ttl int64, err error) {
	if se.stream == nil {
		life, cancel := context.WithCancel(se.life.Context())
		stop := context.AfterFunc(ctx, cancel)
		inner, err := se.leases.LeaseKeepAlive(life)
		if !stop() || err != nil {
			cancel()
			return 0, endedBy(ctx, err)
		}
		se.unsure = se.opened // why did the last one end?
		se.stream, se.opened = &renewalStream{inner, cancel}, true
	}
	// The stream outlives ctx, unless ctx ends while an answer is outstanding.
	stop := context.AfterFunc(ctx, se.stream.cancel)
	defer func() {
		if !stop() || err != nil {
			se.stream.cancel()
			se.stream = nil
		}
	}()
	if err := se.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(se.lease)}); err != nil {
		return 0, err
	}
	resp, err := se.stream.Recv()
	if err != nil {
		return 0, err
	}
	return resp.TTL, nil
}

// Close implements [store.Session].
func (se *session) Close(ctx context.Context) error {
	se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.ID()), false)
	se.life.AwaitNotified()
	se.life.AwaitWork()

	within, cancel := context.WithTimeout(ctx, attempts.Patience)
	defer cancel()
	se.deleteAllOverwritten(within)
	se.mu.Lock()
	revoked, lost := se.revoked, se.lost
	se.mu.Unlock()
	if revoked {
		return nil
	}
	err := patiently(ctx, func(ctx context.Context) error {
		_, err := se.store.cli.Revoke(ctx, se.lease)
		return err
	})
	if err != nil && !lost && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return se.store.explain("end the session", endedBy(ctx, err))
	}
	se.mu.Lock()
	se.revoked = true
	se.mu.Unlock()
	return nil
}

// deleteOverwritten has the key of an entry deleted that was overwritten. What is not done when the session ends, Close does.
// The entry's marker stays: it was not released.
func (se *session) deleteOverwritten(e *entry) {
	se.overwritten.Lock()
	se.overwritten.entries = append(se.overwritten.entries, e)
	se.overwritten.Unlock()
	se.life.Start(func() { se.deleteAllOverwritten(se.life.Context()) })
}

// deleteAllOverwritten deletes the keys of the entries that were overwritten. It goes on until that is done or ctx ends.
func (se *session) deleteAllOverwritten(ctx context.Context) {
	for ctx.Err() == nil {
		se.overwritten.Lock()
		left := slices.Clone(se.overwritten.entries)
		se.overwritten.Unlock()
		if len(left) == 0 {
			return
		}
		for _, e := range left {
			if _, err := se.remove(ctx, e.key, int64(e.order)); err != nil && !refused(err) {
				attempts.Rest(ctx, attempts.LongestPause)
				continue
			} else if err != nil {
				se.store.logger.LogAttrs(ctx, slog.LevelWarn, "overwritten entry cannot be deleted: delete it by hand",
					slog.String("key", e.key), slog.Any("error", err))
			}
			se.overwritten.Lock()
			se.overwritten.entries = slices.DeleteFunc(se.overwritten.entries, func(other *entry) bool { return other == e })
			se.overwritten.Unlock()
		}
	}
}

// remove is [Store.remove] for the session's own entries.
func (se *session) remove(ctx context.Context, key string, created int64, rest ...clientv3.Op) (removal, error) {
	r, err := se.store.remove(ctx, key, created, rest...)
	se.shown(r.header)
	return r, err
}

// gone ends the session because etcd does not know its lease any more, and returns the error that says so.
func (se *session) gone() error {
	se.mu.Lock()
	se.revoked = true
	se.mu.Unlock()
	return se.lose(fmt.Errorf("%s: %w: lease %s has expired or was revoked", se.store, store.ErrSessionLost, se.ID()))
}

// lose ends the session, which was not closed, and returns the cause.
func (se *session) lose(cause error) error {
	se.finish(cause, true)
	return cause
}

// finish ends the session's life. If it was lost, everybody who stands in a line under it is notified, and the one who
// opened it.
func (se *session) finish(cause error, lost bool) {
	var lines map[string]*follower
	se.life.End(cause, lost, func() {
		se.lost = lost
		lines, se.lines = se.lines, nil
	}, func() {
		for _, w := range lines {
			w.close(cause, lost)
		}
	})
}

// explain is [Store.explain] for calls that were bounded by ctx and by the session's life.
func (se *session) explain(ctx context.Context, doing string, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return se.gone()
	}
	if ended := se.life.CutShort(ctx); ended != nil {
		return ended
	}
	return se.store.explain(doing, endedBy(ctx, err))
}
