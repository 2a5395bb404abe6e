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

// session is a lease, and the entries attached to it.
type session struct {
	store *Store
	lease clientv3.LeaseID
	ttl   time.Duration
	opts  store.SessionOptions

	closed func() // from [Options.SessionOpened]; may be called repeatedly

	cluster      uint64
	seenRevision atomic.Int64 // the largest revision in any response

	life        *lifetime.Life
	batcher     *batcher
	epochWrites epochWrites

	leases     pb.LeaseClient
	stream     *renewalStream // used only by Confirm
	hadStream  bool           // a stream has been opened before
	mustVerify bool           // the stream is not the first, and checkEntries has not succeeded since it was opened

	// overwritten lists the entries whose keys must be deleted because they are no longer attached
	// to the lease.
	overwritten struct {
		sync.Mutex
		entries []*entry
	}

	// mu is locked before the mutex of a lineWatch.
	mu      sync.Mutex
	lines   map[string]*lineWatch
	leaving map[string]int // how many calls withdraw an entry with the key
	epoch   epoch          // the epoch key as last read

	unchangedEpoch clientv3.Cmp // the condition that the epoch key is as last read
	outlast        bool         // an entry outlasts the session, or may
	lost           bool         // life has ended, other than by Close
	revoked        bool         // the lease is known not to exist
}

func newSession(s *Store, granted *clientv3.LeaseGrantResponse, opts store.SessionOptions) *session {
	se := &session{
		store:  s,
		lease:  granted.ID,
		ttl:    time.Duration(granted.TTL) * time.Second,
		opts:   opts,
		leases: clientv3.RetryLeaseClient(s.cli),
		lines:  make(map[string]*lineWatch),
		closed: func() {},

		leaving: make(map[string]int),
		batcher: newBatcher(s.cli, s.times.batchDelay, s.logger),
		cluster: granted.ResponseHeader.GetClusterId(),
	}
	se.unchangedEpoch = se.epochCondition()
	se.seenRevision.Store(granted.ResponseHeader.GetRevision())
	// All streams of all sessions carry the same metadata: the etcd client then uses one gRPC stream for
	// all its watches. The keys of held locks have another stream; see keyWatches. A member that has lost its leader ends them (WithRequireLeader).
	se.life = lifetime.New(clientv3.WithRequireLeader(context.Background()), &se.mu, opts.Lost)
	return se
}

// ID implements [store.Session]. It returns the lease id as etcdctl prints it.
func (se *session) ID() string { return leaseText(se.lease) }

// Terms implements [store.Session]. The leader counts the TTL from when it handled the renewal, so
// in normal operation a lease never ends early. It can if the leader was stopped for longer than
// the TTL: see docs/guarantees.md.
func (se *session) Terms() store.Terms { return store.Terms{TTL: se.ttl} }

// Confirm implements [store.Session]. Only the leader answers a renewal. The etcd client's own
// keep-alive is not used: it does not expose when a renewal was sent, and counts the TTL from its
// reply.
func (se *session) Confirm(ctx context.Context) error {
	if err := se.life.Err(); err != nil {
		return err
	}
	ttl, err := se.renew(ctx)
	if err == nil && ttl > 0 && se.mustVerify {
		err = se.checkEntries(ctx)
		se.mustVerify = err != nil
	}
	switch {
	case errors.Is(err, store.ErrSessionLost):
		return err
	case err != nil:
		return se.wrapErr(ctx, "renew the session", err)
	case ttl <= 0:
		return se.endExpired()
	case time.Duration(ttl)*time.Second < se.ttl: // the leader always renews for the whole TTL
		return fmt.Errorf("%s: the session is not confirmed: the reply to the renewal has a TTL of %d s, want %v "+
			"(an etcd grpc-proxy replies so: connect to the cluster itself)", se.store, ttl, se.ttl)
	}
	return nil
}

// checkEntries reports as gone every entry of the session that the cluster no longer has. A cluster
// whose data were restored from a backup may have the lease without its keys.
func (se *session) checkEntries(ctx context.Context) error {
	ctx, cancel := se.life.Within(ctx)
	defer cancel()
	own := se.entriesInLine()
	for first := true; first || len(own) > 0; first = false {
		batch := own[:min(len(own), maxReadsPerTxn)]
		own = own[len(batch):]
		gets := []clientv3.Op{clientv3.OpGet(se.epochKey(), clientv3.WithCountOnly())} // a Txn needs an operation, even without entries
		for _, e := range batch {
			gets = append(gets, clientv3.OpGet(e.key, clientv3.WithKeysOnly()))
		}
		before := se.seenRevision.Load()
		var resp *clientv3.TxnResponse
		err := se.store.attemptUrgent(ctx, func(ctx context.Context) (err error) {
			resp, err = se.store.cli.Txn(ctx).Then(gets...).Commit()
			return err
		})
		if err == nil {
			err = se.checkRevision(before, resp.Header)
		}
		if err != nil {
			return err
		}
		for i, e := range batch {
			kvs := resp.Responses[1+i].GetResponseRange().Kvs
			if len(kvs) == 0 || uint64(kvs[0].CreateRevision) != e.order {
				e.line.vanished(e)
			}
		}
	}
	return nil
}

// entriesInLine returns the entries that stand in lines.
func (se *session) entriesInLine() []*entry {
	se.mu.Lock()
	defer se.mu.Unlock()
	var all []*entry
	for _, w := range se.lines {
		w.mu.Lock()
		for e := range w.mine {
			if e.state == inLine {
				all = append(all, e)
			}
		}
		w.mu.Unlock()
	}
	return all
}

// checkRevision checks the header of a linearizable response. before is the largest revision seen
// when the request was made. A smaller one in the response means that the data were restored from a
// backup. The session then ends: its entries may be missing, and no watch would report that.
func (se *session) checkRevision(before int64, h *pb.ResponseHeader) error {
	if h.GetClusterId() != se.cluster {
		return se.lose(fmt.Errorf("%s: %w: the client is connected to cluster %x, but lease %s belongs to cluster %x: check the endpoints",
			se.store, store.ErrSessionLost, h.GetClusterId(), se.ID(), se.cluster))
	}
	if h.GetRevision() < before {
		return se.lose(fmt.Errorf("%s: %w: the cluster is at revision %d and was at %d: its data were restored from a backup",
			se.store, store.ErrSessionLost, h.GetRevision(), before))
	}
	se.noteRevision(h)
	return nil
}

// noteRevision records the revision in the header of any response. No linearizable response to a
// later request has a smaller one, whichever member sends it.
func (se *session) noteRevision(h *pb.ResponseHeader) {
	for seenRevision := se.seenRevision.Load(); h.GetRevision() > seenRevision && !se.seenRevision.CompareAndSwap(seenRevision, h.GetRevision()); {
		seenRevision = se.seenRevision.Load()
	}
}

// renewalStream carries renewals of one lease and their replies, one at a time. It is discarded
// after any failure, so a late reply is never taken for the reply to a later renewal, and the next
// stream may reach another member.
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
		se.mustVerify = se.hadStream // the last stream failed, and the reason may have cost data
		se.stream, se.hadStream = &renewalStream{inner, cancel}, true
	}
	// The stream outlives ctx, unless ctx ends while a reply is outstanding.
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
	defer se.closed()
	se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.ID()), false)
	se.life.AwaitNotified()
	se.life.AwaitWork()

	within, cancel := context.WithTimeout(ctx, attempts.MaxDuration)
	defer cancel()
	se.deleteAllOverwritten(within)
	se.mu.Lock()
	revoked, lost := se.revoked, se.lost
	se.mu.Unlock()
	if revoked {
		return nil
	}
	err := se.store.attemptWithTimeout(ctx, func(ctx context.Context) error {
		_, err := se.store.cli.Revoke(ctx, se.lease)
		return err
	})
	if err != nil && !lost && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return se.store.wrapErr("end the session", endedBy(ctx, err))
	}
	se.mu.Lock()
	se.revoked = true
	se.mu.Unlock()
	return nil
}

// deleteOverwritten deletes the key of an overwritten entry in the background. If the session ends
// first, Close deletes it. The entry's marker stays, because the entry was not released.
func (se *session) deleteOverwritten(e *entry) {
	se.overwritten.Lock()
	se.overwritten.entries = append(se.overwritten.entries, e)
	se.overwritten.Unlock()
	se.life.Start(func() { se.deleteAllOverwritten(se.life.Context()) })
}

// deleteAllOverwritten deletes the keys of the overwritten entries, with retries until it succeeds
// or ctx ends.
func (se *session) deleteAllOverwritten(ctx context.Context) {
	for ctx.Err() == nil {
		se.overwritten.Lock()
		left := slices.Clone(se.overwritten.entries)
		se.overwritten.Unlock()
		if len(left) == 0 {
			return
		}
		for _, e := range left {
			if _, err := se.remove(ctx, e, int64(e.order)); err != nil && !refused(err) {
				attempts.Sleep(ctx, attempts.MaxPause)
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

// remove is [Store.remove] for the key of an entry of the session. Its first attempt may be part of a batch.
func (se *session) remove(ctx context.Context, e *entry, created int64, rest ...clientv3.Op) (removal, error) {
	t := se.store.removeTxn(e.key, created, rest...)
	first := func(ctx context.Context) (*clientv3.TxnResponse, error) { return se.batcher.commit(ctx, e.req.Name, t) }
	r, err := se.store.removeBy(ctx, t, first)
	se.noteRevision(r.header)
	return r, err
}

// endExpired ends the session because its lease does not exist any more, and returns the cause.
func (se *session) endExpired() error {
	se.mu.Lock()
	se.revoked = true
	se.mu.Unlock()
	return se.lose(fmt.Errorf("%s: %w: lease %s has expired or was revoked", se.store, store.ErrSessionLost, se.ID()))
}

// lose ends the session as lost, and returns the cause.
func (se *session) lose(cause error) error {
	se.finish(cause, true)
	return cause
}

// finish ends the session's life. If it was lost, the owners of its entries are notified, then the
// owner of the session.
func (se *session) finish(cause error, lost bool) {
	var lines map[string]*lineWatch
	se.life.End(cause, lost, func() {
		se.lost = lost
		lines, se.lines = se.lines, nil
	}, func() {
		for _, w := range lines {
			w.close(cause, lost)
		}
	})
}

// wrapErr is [Store.wrapErr] for calls that were bounded by ctx and by the session's life.
func (se *session) wrapErr(ctx context.Context, op string, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return se.endExpired()
	}
	if ended := se.life.EndedDuring(ctx); ended != nil {
		return ended
	}
	return se.store.wrapErr(op, endedBy(ctx, err))
}
