package etcdstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
)

// This file cleans up after requests to insert entries that were given up. Such a request may be carried out at
// any time, or never. So:
//
//  1. The entry is deleted, if it is there, so that others need not wait for the next steps.
//  2. The epoch key is written. From then on no attempt that was sent before can insert the entry.
//  3. The entry is deleted again, if it is there: an attempt may have been carried out between 1 and 2.
//
// A write of the epoch key voids all other joins of the session that are under way, too; they are repeated. If
// each failed call wrote it, a client whose contexts end often would hardly ever get a lock. So the calls share
// the writes, see [epochWrites], and an attempt that was answered, or was never sent, needs none.

// abandoned describes the entries of a failed call. Each may be in its line, or may be inserted later.
type abandoned struct {
	names      string // of the locks, for messages
	batched    bool   // there is one lock, so the deletion may be part of a batch
	conditions []clientv3.Cmp
	deletes    []clientv3.Op
}

func (e *entry) abandoned() abandoned {
	mine := clientv3.Compare(clientv3.Value(e.key), "=", e.value)
	return abandoned{names: e.req.Name, batched: true, conditions: []clientv3.Cmp{mine}, deletes: []clientv3.Op{clientv3.OpDelete(e.key)}}
}

// abortEnqueue removes the entry after a call that may have left an attempt in flight; see [session.abortInsert].
func (e *entry) abortEnqueue() { e.session.abortInsert(e.abandoned()) }

// deleteInserted deletes the entry, if it was inserted and no attempt is in flight.
func (e *entry) deleteInserted() { e.session.deleteInserted(e.abandoned()) }

// abortInsert deletes entries, and makes sure that no attempt still in flight can insert them. It retries until
// it succeeds. If the session ends first, the end of its lease removes the entries.
func (se *session) abortInsert(a abandoned) {
	life := se.life.Context()
	attempts.UntilDone(life, attempts.MaxTimeout, func() error {
		_ = se.deleteOnce(life, a) // in each round: while writes are refused, an attempt may still be carried out
		return se.voidAttempts()
	})
	se.deleteInserted(a)
}

// deleteInserted deletes entries, if they are there. It retries until it succeeds or the session has ended.
func (se *session) deleteInserted(a abandoned) {
	life := se.life.Context()
	attempts.UntilDone(life, attempts.MaxTimeout, func() error {
		err := se.deleteOnce(life, a)
		if err != nil && se.life.Err() == nil {
			se.store.logger.LogAttrs(life, slog.LevelWarn, "could not remove the entry of a failed request; retrying",
				slog.String("lock", a.names), slog.Any("error", err))
		}
		return err
	})
}

// deleteOnce deletes the entries that are there. It fails if the servers refuse that, or ctx ends. A cluster that
// is out of space still carries it out.
func (se *session) deleteOnce(ctx context.Context, a abandoned) error {
	t := txn{conditions: a.conditions, then: a.deletes}
	if !a.batched {
		return se.store.attempt(ctx, func(ctx context.Context) error {
			_, err := t.commit(ctx, se.store.cli)
			return err
		})
	}
	return se.attempt(ctx, a.names, func(commit commitFunc) error {
		_, err := commit(t)
		return err
	})
}

// epochWrites makes the writes of a session's epoch key. At most one is under way, and it does not help a call
// that comes meanwhile: the call's attempt may have been sent after that write was carried out, and may name the
// new epoch. All calls that come before the next write is sent share it.
type epochWrites struct {
	mu      sync.Mutex
	next    *epochWrite // the one that will be sent next; nil if no call waits for it
	running bool        // writeEpochs runs
}

// epochWrite is one write, for all calls that wait for it.
type epochWrite struct {
	calls int           // guarded by the mutex of epochWrites until the write is sent
	done  chan struct{} // closed when err is set
	err   error
}

// voidAttempts makes sure that no attempt which was sent before the call has an effect after it. It returns an
// error if the servers refuse that, or the session has ended.
func (se *session) voidAttempts() error {
	s := &se.epochWrites
	s.mu.Lock()
	if s.next == nil {
		s.next = &epochWrite{done: make(chan struct{})}
	}
	w := s.next
	w.calls++
	s.running = s.running || se.life.Start(se.writeEpochs)
	s.mu.Unlock()
	select {
	case <-w.done:
		return w.err
	case <-se.life.Context().Done():
		return se.life.Err()
	}
}

// writeEpochs writes the epoch key as long as calls wait for that. Between two writes is a pause, in which joins
// are not voided; see pauseAfterEpoch.
func (se *session) writeEpochs() {
	s, life := &se.epochWrites, se.life.Context()
	for life.Err() == nil {
		s.mu.Lock()
		w := s.next
		s.next, s.running = nil, w != nil
		s.mu.Unlock()
		if w == nil {
			return
		}
		start := time.Now()
		w.err = se.writeEpoch(life, w.calls)
		close(w.done)
		attempts.Sleep(life, se.store.times.pauseAfterEpoch(time.Since(start)))
	}
}

// pauseAfterEpoch returns the pause after a write of the epoch key. A write that took long has waited for an
// outage to end: then [attempts.MaxTimeout] is enough, and an attempt in flight is voided soon.
func (t times) pauseAfterEpoch(took time.Duration) time.Duration {
	return max(t.epochPause, min(4*took, attempts.MaxTimeout))
}

// writeEpoch writes the epoch key for a number of calls, unless the servers refuse that.
func (se *session) writeEpoch(ctx context.Context, calls int) error {
	var resp *clientv3.PutResponse
	err := se.store.attempt(ctx, func(ctx context.Context) (err error) {
		resp, err = se.store.cli.Put(ctx, se.epochKey(), epochValue, clientv3.WithLease(se.lease))
		return err
	})
	switch {
	case err == nil:
		se.noteEpoch(resp.Header.Revision, resp.Header.Revision)
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		err = se.endExpired()
	case se.life.Err() == nil:
		se.store.logger.LogAttrs(ctx, slog.LevelWarn, "could not make sure that failed requests have no effect; retrying, and deleting their entries if they join",
			slog.Int("requests", calls), slog.Any("error", err))
	}
	return err
}

// epoch is a read of the epoch key, which voids abandoned attempts of the session; see the package
// comment.
type epoch struct {
	modified int64 // the key's mod revision; zero if it does not exist
	at       int64 // the revision of the read
}

func (se *session) epochKey() string { return se.store.keys.epoch(se.lease) }

// epochCondition returns the condition that the epoch key was not written since it was last read. It compares
// the mod revision. Revisions, unlike versions, are never reused, even if the key is deleted.
func (se *session) epochCondition() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(se.epochKey()), "=", se.epoch.modified)
}

// sameEpoch returns the session's current epochCondition. It is made once for many requests, and must not be
// changed.
func (se *session) sameEpoch() clientv3.Cmp {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.unchangedEpoch
}

// readEpoch records a read of the epoch key at a revision.
func (se *session) readEpoch(kvs []*mvccpb.KeyValue, at int64) {
	modified := int64(0)
	if len(kvs) > 0 {
		modified = kvs[0].ModRevision
	}
	se.noteEpoch(modified, at)
}

// noteEpoch records the mod revision of the epoch key at a revision.
func (se *session) noteEpoch(modified, at int64) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if at > se.epoch.at {
		se.epoch = epoch{modified: modified, at: at}
		se.unchangedEpoch = se.epochCondition()
	}
}
