package etcdstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/delivery"
)

// entry is one place in a line, and the ticket to it.
type entry struct {
	session *session
	line    *lineWatch
	req     request
	value   string // the encoded value, as inserted
	key     string // set by join
	fresh   bool   // the key contains the nonce in any case, so that no other entry ever has it
	order   uint64 // set when the entry has been inserted

	// inDoubt is set if an attempt to insert the entry was given up: it may be carried out later.
	inDoubt atomic.Bool
	// mayBeIn is set if an attempt was answered and has inserted the entry, or may have because the answer was that
	// the cluster is out of space.
	mayBeIn atomic.Bool
	// unanswered is set if a request that deletes the entry, or lets it outlast the session, was
	// not answered.
	unanswered atomic.Bool
	// gone is set when the entry is known not to be in its line any more.
	gone atomic.Bool
	// outlasts is set if the entry may stay after its session has ended.
	outlasts atomic.Bool
	// modified is the mod revision of the entry's key, as last seen; zero if the key was not
	// changed since its creation.
	modified atomic.Int64
	// marked is set if the entry may have left a marker.
	marked atomic.Bool
	// recordCalls counts the calls of setRecord.
	recordCalls atomic.Int64
	// claimKey is the key of the entry's slot number, if it may have one.
	claimKey atomic.Pointer[string]

	// The fields below are guarded by the line's mutex.
	current        value // the value as last set
	state          entryState
	tracker        *line.Tracker // the entries ahead, while standing; nil while they are not all known
	aheadBound     int           // while tracker is nil: at most so many entries are ahead
	followed       *listedEntry  // while tracker is nil: one of the entries ahead; nil if none is known
	following      bool          // the watch of followed is complete
	followedLeft   bool          // the entry that was followed has left
	changes        []change      // those received while the entry was being inserted
	watch          int           // which watch of the line was open when the entry joined; zero for none
	delivery       delivery.Delivery
	heldWatchTimer *time.Timer // starts the watch of the entry's key, once it is admitted
	keyWatch       int64       // the id of the watch of the entry's key; zero without one; guarded by keyWatches.mu
	keyWatched     bool        // the watch of the entry's key has started
	contended      context.CancelFunc
}

// request is what an entry keeps of its [store.Request]: there may be thousands of entries.
type request struct {
	Name string
	Mode line.Mode
	Try  bool
}

type entryState uint8

const (
	joining entryState = iota // being inserted
	inLine                    // in its line
	over                      // withdrawn, gone, or never inserted
)

// change is the deletion of an entry's key, or the downgrade of an entry.
type change struct {
	id         string
	at         uint64 // the revision
	downgraded uint64 // the order of the entry that was downgraded; zero for a deletion
}

// byRevision groups changes, which are in the order in which they happened, by revision.
func byRevision(changes []change) iter.Seq[[]change] {
	return func(yield func([]change) bool) {
		for len(changes) > 0 {
			n := 1
			for n < len(changes) && changes[n].at == changes[0].at {
				n++
			}
			if !yield(changes[:n]) {
				return
			}
			changes = changes[n:]
		}
	}
}

// Enqueue implements [store.Session].
func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	op := "join the line"
	if err := se.store.keys.check(req.Name); err != nil {
		return nil, fmt.Errorf("%s: %w", se.store, err)
	}
	e, err := newEntry(se, req)
	if err != nil {
		return nil, se.store.wrapErr(op, err)
	}
	if err := se.join(e); err != nil {
		return nil, err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()

	result, err := e.insert(bounded, req.Try)
	e.line.mu.Lock() // the session may be lost at this moment
	e.order = result.order
	e.line.mu.Unlock()
	switch {
	case err != nil:
	case e.order > store.MaxOrder:
		_ = e.Withdraw(bounded)
		err = beyondMaxOrder(e.order)
	case result.otherKind(e) != nil:
		_ = e.Withdraw(bounded)
		err = result.otherKind(e)
	case req.Try && result.blocking(e) > 0:
		// Another entry was inserted after the line was read.
		_ = e.Withdraw(bounded)
		err = result.heldBy(e)
	case !e.line.markInLine(e, result):
		err = se.life.Err() // the session was lost, and the entry with it
	}
	if err != nil {
		e.line.detach(e)
		switch {
		case e.inDoubt.Load():
			se.life.Start(e.abortEnqueue)
		case e.mayBeIn.Load():
			se.life.Start(e.deleteInserted)
		}
		if _, held := errors.AsType[*store.HeldError](err); held {
			return nil, err
		}
		return nil, se.wrapErr(ctx, op, err)
	}
	return e, nil
}

func beyondMaxOrder(order uint64) error {
	return fmt.Errorf("the cluster's revision is %d, beyond %d, the largest from which a fencing token can be made", order, store.MaxOrder)
}

func newEntry(se *session, req store.Request) (*entry, error) {
	v := value{Stile: valueFormat, Nonce: rand.Text(), Mode: req.Mode, Owner: req.Owner}
	text, err := v.encode()
	if err != nil {
		return nil, err
	}
	return &entry{session: se, req: request{req.Name, req.Mode, req.Try}, current: v, value: text, delivery: delivery.New(req.Notify)}, nil
}

// insertion is the result of inserting an entry.
type insertion struct {
	order  uint64
	others []listedEntry // the entries in the line at that revision; only some if there were many
	// aheadBound is not zero if only some entries were read: at most so many are ahead.
	aheadBound int

	limit   int   // the operator's limit of slots; zero if there is none
	limitAt int64 // the revision at which it was read
}

// ahead returns the known entries ahead of e, in order.
func (a insertion) ahead(e *entry) []listedEntry {
	ahead := slices.DeleteFunc(slices.Clone(a.others), func(c listedEntry) bool { return c.ID == e.key || c.Order > a.order })
	slices.SortFunc(ahead, listedEntry.compare)
	return ahead
}

// otherKind returns a [*store.KindError] if the first known entry ahead of e is of another kind, and
// nil otherwise.
func (a insertion) otherKind(e *entry) error {
	ahead := a.ahead(e)
	if len(ahead) == 0 || line.SameKind(e.req.Mode, ahead[0].Mode) {
		return nil
	}
	return &store.KindError{Name: e.req.Name, Mode: e.req.Mode, Other: storeEntry(ahead[0])}
}

func (a insertion) blocking(e *entry) int {
	if a.aheadBound > 0 {
		return a.aheadBound
	}
	me := line.Entry{ID: e.key, Order: a.order, Mode: e.req.Mode}
	tracker := line.NewTracker(me, entries(a.others))
	tracker.SetLimit(a.limit)
	return tracker.Blocking()
}

// heldBy is the error of a try that other entries block. It names the first entry ahead that alone
// would block this one, or else the first entry ahead.
func (a insertion) heldBy(e *entry) *store.HeldError {
	ahead := a.ahead(e)
	if len(ahead) == 0 {
		return &store.HeldError{Name: e.req.Name}
	}
	first := slices.IndexFunc(ahead, func(c listedEntry) bool { return !line.Admits(e.req.Mode, []line.Mode{c.Mode}) })
	holder := storeEntry(ahead[max(0, first)])
	return &store.HeldError{Name: e.req.Name, Holder: &holder}
}

// insert repeats attempts to insert the entry until one is answered. If an attempt was given up, it
// sets e.inDoubt.
//
// All attempts put the same value, which contains a nonce, so an attempt that finds the entry
// recognizes it.
func (e *entry) insert(ctx context.Context, try bool) (a insertion, err error) {
	ifEmpty := try
	for n := 0; ; n++ {
		if n > 2 { // two repetitions are normal; more are caused by other clients
			attempts.Sleep(ctx, firstPause)
		}
		var resp *clientv3.TxnResponse
		before := e.session.seenRevision.Load()
		err := e.session.attempt(ctx, e.req.Name, func(commit commitFunc) (err error) {
			resp, err = commit(e.insertTxn(ifEmpty, n > 0 || e.inDoubt.Load() || e.mayBeIn.Load()))
			switch {
			case errors.Is(err, rpctypes.ErrNoSpace), errors.Is(err, errBatchNoSpace):
				e.mayBeIn.Store(true)
			case err != nil && outcomeUnknown(err):
				e.inDoubt.Store(true)
			}
			return err
		})
		if err == nil {
			err = e.session.checkRevision(before, resp.Header)
		}
		if err != nil {
			return insertion{}, err
		}
		a, done, err := e.insertOutcome(ctx, resp, ifEmpty)
		if done || err != nil {
			return a, err
		}
		ifEmpty = false
	}
}

// insertTxn is one attempt. The first attempt of a try puts nothing into a line that has an entry:
// others would have to wait for it until it is withdrawn.
//
//	ifEmpty:   if the line has no key       put the entry
//	otherwise: if the entry is not there    read the line, for a slot the limit too, and put the entry
//	           else, if explain is set      read the entry and the epoch key
//
// Neither puts the entry if the epoch key has changed. The first attempt does not read why it has
// failed: it hardly ever fails, and the reads would make it larger.
func (e *entry) insertTxn(ifEmpty, explain bool) txn {
	sameEpoch := e.session.sameEpoch()
	put := clientv3.OpPut(e.key, e.value, clientv3.WithLease(e.session.lease))

	if ifEmpty {
		from, end := e.session.store.keys.entries(e.req.Name)
		empty := clientv3.Compare(clientv3.CreateRevision(from), "=", 0).WithRange(end)
		return txn{conditions: []clientv3.Cmp{sameEpoch, empty}, then: []clientv3.Op{put}}
	}
	absent := createdAt(e.key, 0)
	t := txn{conditions: []clientv3.Cmp{sameEpoch, absent}, then: append(e.withReadsAtJoin(make([]clientv3.Op, 0, 2)), put)}
	if explain {
		t.otherwise = []clientv3.Op{clientv3.OpGet(e.key), clientv3.OpGet(e.session.epochKey(), clientv3.WithKeysOnly())}
	}
	return t
}

// withReadsAtJoin appends the reads of the line and, for a slot, of the limit. They come before the put of the
// entry in a transaction, so that the answer does not carry that.
func (e *entry) withReadsAtJoin(ops []clientv3.Op) []clientv3.Op {
	from, end := e.session.store.keys.entries(e.req.Name)
	// Not WithKeysOnly: etcd 3.7 then omits the lease, which tells an entry from a stray key.
	read := clientv3.OpGet(from)
	read.WithRangeBytes([]byte(end)) // without the closures of options
	clientv3.WithLimit(int64(e.readAtJoin()))(&read)
	ops = append(ops, read)
	if e.req.Mode.Slots() > 0 {
		ops = append(ops, clientv3.OpGet(e.session.store.keys.limit(e.req.Name)))
	}
	return ops
}

// readAtJoin returns how many other entries of the line are read when the entry joins; zero for all.
func (e *entry) readAtJoin() int {
	if e.req.Mode == line.Exclusive && !e.req.Try {
		return e.session.store.sizes.readAtJoin
	}
	return 0
}

// insertOutcome interprets the response to an attempt. If done is false, an attempt with ifEmpty
// unset is needed.
func (e *entry) insertOutcome(ctx context.Context, resp *clientv3.TxnResponse, ifEmpty bool) (a insertion, done bool, err error) {
	results := resp.Responses
	switch {
	case resp.Succeeded && ifEmpty:
		return insertion{order: uint64(resp.Header.Revision)}, true, nil
	case resp.Succeeded:
		a, err := e.inserted(ctx, uint64(resp.Header.Revision), results[:len(results)-1])
		return a, true, err
	case ifEmpty:
		return e.tryNonEmpty(ctx)
	case len(results) == 0:
		return insertion{}, false, nil // the next attempt explains why
	}
	mine, epoch := results[0].GetResponseRange().Kvs, results[1].GetResponseRange().Kvs
	e.session.readEpoch(epoch, resp.Header.Revision)
	switch {
	case len(mine) > 0 && string(mine[0].Value) == e.value:
		return e.alreadyInserted(ctx, uint64(mine[0].CreateRevision))
	case len(mine) > 0:
		// An earlier entry of this session that is not deleted yet: only this session makes such keys.
		// If it was withdrawn, its withdrawal will not find it, so its marker is deleted here. If it was
		// overwritten, its marker stays.
		order := mine[0].CreateRevision
		var deleteMarkerOps []clientv3.Op
		if _, ours := decode(mine[0].Value); ours {
			deleteMarkerOps = append(deleteMarkerOps, clientv3.OpDelete(e.session.store.keys.marker(e.req.Name, uint64(order))))
		}
		_, err = e.session.remove(ctx, e, order, deleteMarkerOps...)
	}
	return insertion{}, false, err
}

// inserted completes the result for an entry that was inserted at a revision, with the reads of
// [entry.withReadsAtJoin] from the same transaction.
func (e *entry) inserted(ctx context.Context, order uint64, reads []*pb.ResponseOp) (insertion, error) {
	read := reads[0].GetResponseRange()
	others, _ := e.session.store.keys.contenders(e.req.Name, read.Kvs)
	a := insertion{order: order, others: others}
	if len(reads) > 1 {
		a.limit, a.limitAt = parseLimit(reads[1].GetResponseRange().Kvs), int64(order)
	}
	if !read.More {
		return a, nil
	}
	a.aheadBound = int(read.Count)
	if len(a.ahead(e)) == 0 { // keys of other lines have used up the limit
		ahead, err := e.session.store.readAhead(ctx, e.req.Name, extent{upTo: a.order, limit: 2})
		if err != nil {
			e.mayBeIn.Store(true) // the entry is inserted, and must be deleted
			return a, err
		}
		a.others = ahead.entries
	}
	return a, nil
}

// alreadyInserted completes the result for an entry that an earlier attempt has inserted. If the
// read does not show the entry, it was deleted since and must be inserted again: an empty line
// admits nobody.
func (e *entry) alreadyInserted(ctx context.Context, order uint64) (insertion, bool, error) {
	limit := e.readAtJoin()
	if limit > 0 {
		limit++ // its own
	}
	read, err := e.session.store.readAhead(ctx, e.req.Name, extent{upTo: order, limit: limit})
	a, there := e.find(read.entries)
	if err == nil {
		err = e.readLimit(ctx, &a)
	}
	if !read.complete {
		a.aheadBound = read.keys - 1
	}
	return a, there, err
}

// find looks for the entry that this call has inserted among the entries of the line.
func (e *entry) find(cs []listedEntry) (insertion, bool) {
	i := slices.IndexFunc(cs, func(c listedEntry) bool { return c.ID == e.key && string(c.Value) == e.value })
	if i < 0 {
		return insertion{order: store.MaxOrder, others: cs}, false // as if it were inserted now
	}
	return insertion{order: cs[i].Order, others: cs}, true
}

// tryNonEmpty decides a try when the line, or another key that begins with its name, exists. The
// entry is inserted only if a read shows that it would be admitted at once.
func (e *entry) tryNonEmpty(ctx context.Context) (insertion, bool, error) {
	others, err := e.session.store.readEntries(ctx, e.req.Name)
	if err != nil {
		return insertion{}, false, err
	}
	a, there := e.find(others)
	if err := e.readLimit(ctx, &a); err != nil {
		return insertion{}, false, err
	}
	switch {
	case there:
		return a, true, nil
	case a.otherKind(e) != nil:
		return insertion{}, false, a.otherKind(e)
	case a.blocking(e) > 0:
		return insertion{}, false, a.heldBy(e)
	default:
		return insertion{}, false, nil // the next attempt inserts it and reads whether it is admitted
	}
}

// readLimit reads the operator's limit, if it concerns the entry.
func (e *entry) readLimit(ctx context.Context, a *insertion) (err error) {
	if e.req.Mode.Slots() > 0 {
		a.limit, a.limitAt, err = e.session.store.readLimit(ctx, e.req.Name)
	}
	return err
}

// Extensions implements [store.Ticket].
func (e *entry) Extensions() store.Extensions {
	return store.Extensions{
		WithdrawAfter: e.withdrawAfter, Mark: e.mark, SetOwner: e.setOwner, Downgrade: e.downgrade, NotifyContended: e.notifyContended,
		Requeue: e.requeue, ClaimNumber: e.claimNumber, SetRecord: e.setRecord, Key: e.key,
	}
}

// Withdraw implements [store.Ticket].
func (e *entry) Withdraw(ctx context.Context) error { return e.leave(ctx, e.deleteKey) }

// leave withdraws the entry, at once or later. request reports whether the entry was there, and
// must be idempotent. If the caller gives up, request is retried in the background.
func (e *entry) leave(ctx context.Context, request func(context.Context) (bool, error)) error {
	se := e.session
	op := "leave the line"
	// Until the removal is answered, no other entry gets this key. Otherwise a join that overtakes it would find
	// the old key, and have to remove it first.
	se.reserveKey(e.key)
	defer se.freeKey(e.key)
	e.line.detach(e)
	if e.gone.Load() {
		if e.unanswered.Load() {
			return e.goneErr(op)
		}
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	ended := se.life.Err()
	if ended != nil && !e.outlasts.Load() {
		return fmt.Errorf("%w: %w", store.ErrGone, ended) // the entry is gone with the session
	}
	bounded, cancel := se.life.Within(ctx)
	if ended != nil {
		bounded, cancel = context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoAnswer)
	}
	defer cancel()
	there, err := request(bounded)
	switch {
	case err != nil && ended != nil: // the entry expires by itself, so there is no retry in the background
		return se.store.wrapErr(op, endedBy(ctx, err))
	case err != nil:
		se.life.Start(func() { e.leaveInBackground(request) })
		if err = se.wrapErr(ctx, op, err); !e.outlasts.Load() {
			err = se.life.RemovedWithSession(ctx, err)
		}
		return err
	case e.inDoubt.Load():
		se.life.Start(e.abortEnqueue)
	}
	if !there {
		return e.goneErr(op)
	}
	return nil
}

// goneErr is the error of a request that has not found the entry.
func (e *entry) goneErr(op string) error {
	if e.unanswered.Load() {
		return fmt.Errorf("%s: %s: the entry is removed, but an earlier request to remove it was not answered: %w",
			e.session.store, op, store.ErrNotKnown)
	}
	return fmt.Errorf("%s: %s: %w: another client removed the entry", e.session.store, op, store.ErrGone)
}

// deleteKey is the request of Withdraw.
func (e *entry) deleteKey(ctx context.Context) (there bool, err error) {
	r, err := e.session.remove(ctx, e, int64(e.order), append(e.deleteMarkerOps(), e.onClaim(deleteOp)...)...)
	e.unanswered.Store(!r.removed && (r.unanswered || e.unanswered.Load()))
	if err == nil {
		e.gone.Store(true)
	}
	return r.removed, err
}

// leaveInBackground retries the request of a leave whose caller has given up.
func (e *entry) leaveInBackground(request func(context.Context) (bool, error)) {
	life := e.session.life.Context()
	attempts.UntilDone(life, attempts.MaxTimeout, func() error {
		_, err := request(life)
		return err
	})
	if e.inDoubt.Load() {
		e.abortEnqueue()
	}
}
