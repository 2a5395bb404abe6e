package etcdstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
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
	line    *follower
	req     store.Request
	value   string // what it says of itself, as it is put in
	key     string // set by join
	order   uint64 // set when it has been put in

	// doubt is set while an attempt to put the entry in was given up: it may be carried out later.
	doubt atomic.Bool
	// unanswered is set while it is not known what became of a request that deletes the entry or lets it outlast the session.
	unanswered atomic.Bool
	// out is set when the entry is known not to be in its line any more.
	out atomic.Bool
	// outlasts is set if the end of the session may not take the entry out.
	outlasts atomic.Bool
	// modified is the revision at which the entry was changed last, as far as is known; zero if it was not.
	modified atomic.Int64
	// marked is set if the entry may have left a marker.
	marked atomic.Bool

	// The fields below are guarded by the line's mutex.
	says       value // what it says of itself now
	state      entryState
	place      *line.Tracker // while standing
	left       []departure // who left while the entry was being put in
	watch      int         // which watch of the line was open when the entry joined; zero for none
	delivery   delivery.Delivery
	late       *time.Timer // starts the watch of the entry's key, once it is admitted
	watched    context.CancelFunc
	keyWatched bool // the watch of the entry's key stands
	contended  context.CancelFunc
}

type entryState uint8

const (
	joining  entryState = iota // being put in
	standing                   // in its line
	over                       // withdrawn, gone, or never put in
)

// departure is an entry leaving a line.
type departure struct {
	id string
	at uint64 // the revision
}

// atOnce divides departures, which come in the order in which they happened, into those of one revision each.
func atOnce(left []departure) iter.Seq[[]departure] {
	return func(yield func([]departure) bool) {
		for len(left) > 0 {
			n := 1
			for n < len(left) && left[n].at == left[0].at {
				n++
			}
			if !yield(left[:n]) {
				return
			}
			left = left[n:]
		}
	}
}

// Enqueue implements [store.Session].
func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	doing := "join the line"
	if err := se.store.keys.check(req.Name); err != nil {
		return nil, fmt.Errorf("%s: %w", se.store, err)
	}
	e, err := newEntry(se, req)
	if err != nil {
		return nil, se.store.explain(doing, err)
	}
	if err := se.join(e); err != nil {
		return nil, err
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()

	arrived, err := e.putIn(bounded, req.Try)
	e.line.mu.Lock() // the session may be lost at this moment
	e.order = arrived.order
	e.line.mu.Unlock()
	switch {
	case err != nil:
	case e.order > store.MaxOrder:
		_ = e.Withdraw(bounded)
		err = fmt.Errorf("the cluster's revision is %d, beyond %d, where fencing tokens end", e.order, store.MaxOrder)
	case req.Try && arrived.blocking(e) > 0:
		// The line was free when it was looked at, and somebody was faster.
		_ = e.Withdraw(bounded)
		err = arrived.heldBy(e)
	case !e.line.arrive(e, arrived):
		err = se.life.Err() // the session was lost meanwhile, and the entry with it
	}
	if err != nil {
		e.line.part(e)
		if e.doubt.Load() {
			se.life.Start(e.clear)
		}
		if _, held := errors.AsType[*store.HeldError](err); held {
			return nil, err
		}
		return nil, se.explain(ctx, doing, err)
	}
	return e, nil
}

func newEntry(se *session, req store.Request) (*entry, error) {
	v := value{Stile: valueFormat, Nonce: rand.Text(), Mode: req.Mode, Owner: req.Owner}
	text, err := v.encode()
	if err != nil {
		return nil, err
	}
	return &entry{session: se, req: req, says: v, value: text, delivery: delivery.New(req.Notify)}, nil
}

// arrival is what is known of an entry that has been put in.
type arrival struct {
	order  uint64
	others []contender // those in the line at that moment
}

func (a arrival) blocking(e *entry) int {
	me := line.Entry{ID: e.key, Order: a.order, Mode: e.req.Mode}
	return line.NewTracker(me, entries(a.others)).Blocking()
}

// heldBy is the error of a try that somebody is in the way of: the first who would be alone, or else the first.
func (a arrival) heldBy(e *entry) *store.HeldError {
	ahead := slices.DeleteFunc(slices.Clone(a.others), func(c contender) bool {
		return c.ID == e.key || c.Order > a.order
	})
	if len(ahead) == 0 {
		return &store.HeldError{Name: e.req.Name}
	}
	slices.SortFunc(ahead, contender.compare)
	first := slices.IndexFunc(ahead, func(c contender) bool { return !line.Admits(e.req.Mode, []line.Mode{c.Mode}) })
	holder := asStoreEntry(ahead[max(0, first)])
	return &store.HeldError{Name: e.req.Name, Holder: &holder}
}

// putIn makes attempts to put the entry in until one is answered. If one was given up on the way, e.doubt is set.
//
// All attempts carry the same value, with a nonce, so that one that finds the entry there knows it for its own.
func (e *entry) putIn(ctx context.Context, try bool) (a arrival, err error) {
	quiet := try || e.watch == 0 // a line that is not watched here is probably not in use
	for n := 0; ; n++ {
		if n > 1 { // the first repetition is in the nature of things; more of them are somebody's doing
			attempts.Rest(ctx, firstPause)
		}
		var resp *clientv3.TxnResponse
		before := e.session.seen.Load()
		err := attempt(ctx, func(ctx context.Context) (err error) {
			resp, err = e.txn(ctx, quiet)
			if err != nil && !refused(err) {
				e.doubt.Store(true)
			}
			return err
		})
		if err == nil {
			err = e.session.saw(before, resp.Header)
		}
		if err != nil {
			return arrival{}, err
		}
		a, done, err := e.outcome(ctx, resp, quiet, try)
		if done || err != nil {
			return a, err
		}
		quiet = false
	}
}

// txn is one attempt. There are two kinds, because what an attempt might have to tell costs something even when it has
// nothing to tell.
//
//	quiet: if nobody stands in the line   put the entry in
//	busy:  if it is not there yet         put it in, and tell who is in the line
//	       otherwise                      tell about the entry that is there, and the guard
//
// Neither puts anything in if the guard has been raised since.
func (e *entry) txn(ctx context.Context, quiet bool) (*clientv3.TxnResponse, error) {
	prefix, guard := e.session.store.keys.line(e.req.Name), e.session.guardKey()
	unraised := clientv3.Compare(clientv3.ModRevision(guard), "=", e.session.seenGuard())
	put := clientv3.OpPut(e.key, e.value, clientv3.WithLease(e.session.lease))

	txn := e.session.store.cli.Txn(ctx)
	if quiet {
		nobody := clientv3.Compare(clientv3.CreateRevision(prefix), "=", 0).WithPrefix()
		return txn.If(unraised, nobody).Then(put).Commit()
	}
	absent := clientv3.Compare(clientv3.CreateRevision(e.key), "=", 0)
	// Whole entries: keys alone come without their leases (etcd 3.7), by which an entry is told from a stray key.
	return txn.If(unraised, absent).
		Then(put, clientv3.OpGet(prefix, clientv3.WithPrefix())).
		Else(clientv3.OpGet(e.key), clientv3.OpGet(guard, clientv3.WithKeysOnly())).
		Commit()
}

// outcome says what an answered attempt came to. If it is not done, a busy one is needed.
func (e *entry) outcome(ctx context.Context, resp *clientv3.TxnResponse, quiet, try bool) (a arrival, done bool, err error) {
	told := resp.Responses
	switch {
	case resp.Succeeded && quiet:
		return arrival{order: uint64(resp.Header.Revision)}, true, nil
	case resp.Succeeded:
		others, _ := e.session.store.keys.contenders(e.req.Name, told[1].GetResponseRange().Kvs)
		return arrival{order: uint64(resp.Header.Revision), others: others}, true, nil
	case quiet && try:
		return e.tryBehind(ctx)
	case quiet:
		return arrival{}, false, nil
	}
	mine, guard := told[0].GetResponseRange().Kvs, told[1].GetResponseRange().Kvs
	e.session.sawGuard(guard, resp.Header.Revision)
	switch {
	case len(mine) > 0 && string(mine[0].Value) == e.value:
		return e.foundIn(ctx)
	case len(mine) > 0:
		// An earlier entry of this session that is still on its way out: only this session makes such keys. If it was
		// withdrawn, its withdrawal will find nothing, so its marker has to go here. If it was overwritten its marker stays.
		order := mine[0].CreateRevision
		var unmark []clientv3.Op
		if _, ours := decode(mine[0].Value); ours {
			unmark = append(unmark, clientv3.OpDelete(e.session.store.keys.marker(e.req.Name, uint64(order))))
		}
		_, err = e.session.remove(ctx, e.key, order, unmark...)
	}
	return arrival{}, false, err
}

// foundIn completes what is known of an entry that an earlier attempt has put in. If it has been taken out since, it is
// not in: nobody is admitted for want of others.
func (e *entry) foundIn(ctx context.Context) (arrival, bool, error) {
	_, others, err := e.session.store.read(ctx, e.req.Name)
	a, there := e.among(others)
	return a, there, err
}

// among looks for the entry, as this call has put it in, in a reading of the line.
func (e *entry) among(cs []contender) (arrival, bool) {
	i := slices.IndexFunc(cs, func(c contender) bool { return c.ID == e.key && string(c.Value) == e.value })
	if i < 0 {
		return arrival{order: store.MaxOrder, others: cs}, false // as if it came now
	}
	return arrival{order: cs[i].Order, others: cs}, true
}

// tryBehind decides about a try when somebody is in the line already, or something else begins with its name. Only if
// the reading shows that the entry would be admitted behind them is it put in.
func (e *entry) tryBehind(ctx context.Context) (arrival, bool, error) {
	_, others, err := e.session.store.read(ctx, e.req.Name)
	if err != nil {
		return arrival{}, false, err
	}
	switch a, there := e.among(others); {
	case there:
		return a, true, nil
	case a.blocking(e) > 0:
		return arrival{}, false, a.heldBy(e)
	default:
		return arrival{}, false, nil // a busy attempt will put it in, and tell whether it is admitted
	}
}

// clear takes the entry out, if it is in, and raises the guard, so that no attempt still under way can put it in. It
// goes on until that is done or the session has ended, which does the same.
func (e *entry) clear() {
	se := e.session
	guard := se.guardKey()
	mine := clientv3.Compare(clientv3.Value(e.key), "=", e.value)
	raise := clientv3.OpPut(guard, guardValue, clientv3.WithLease(se.lease))
	tell := clientv3.OpGet(guard, clientv3.WithKeysOnly())
	life := se.life.Context()
	attempts.UntilDone(life, attempts.Longest, func() error {
		var resp *clientv3.TxnResponse
		err := attempt(life, func(ctx context.Context) (err error) {
			resp, err = se.store.cli.Txn(ctx).
				If(mine).
				Then(raise, tell, clientv3.OpDelete(e.key)).
				Else(raise, tell).
				Commit()
			return err
		})
		switch {
		case err == nil:
			se.sawGuard(resp.Responses[1].GetResponseRange().Kvs, resp.Header.Revision)
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			_ = se.gone()
		case se.life.Err() == nil:
			if errors.Is(err, rpctypes.ErrNoSpace) {
				// Deleting needs no space, and an attempt that is still under way finds none either. The guard comes later.
				_ = attempt(life, func(ctx context.Context) error {
					_, err := se.store.cli.Txn(ctx).If(mine).Then(clientv3.OpDelete(e.key)).Commit()
					return err
				})
			}
			se.store.logger.LogAttrs(life, slog.LevelWarn, "entry in doubt could not be taken out yet",
				slog.String("lock", e.req.Name), slog.Any("error", err))
		}
		return err
	})
}

// Extensions implements [store.Ticket].
func (e *entry) Extensions() store.Extensions {
	return store.Extensions{
		WithdrawAfter: e.withdrawAfter, Mark: e.mark, SetOwner: e.setOwner, NotifyContended: e.notifyContended,
	}
}

// Withdraw implements [store.Ticket].
func (e *entry) Withdraw(ctx context.Context) error { return e.depart(ctx, e.takeOut) }

// depart has the entry leave its line, at once or later, by means of a request that reports whether it was there. The
// request does no harm if it is made more than once. If the caller gives up it is made in the background.
func (e *entry) depart(ctx context.Context, request func(context.Context) (bool, error)) error {
	se := e.session
	doing := "leave the line"
	e.line.part(e)
	if e.out.Load() {
		if e.unanswered.Load() {
			return e.takenOut(doing)
		}
		return fmt.Errorf("%s: %s: %w: the entry had left already", se.store, doing, store.ErrGone)
	}
	ended := se.life.Err()
	if ended != nil && !e.outlasts.Load() {
		return fmt.Errorf("%w: %w", store.ErrGone, ended) // it goes with the session
	}
	bounded, cancel := se.life.Within(ctx)
	if ended != nil {
		bounded, cancel = context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	}
	defer cancel()
	there, err := request(bounded)
	switch {
	case err != nil && ended != nil: // the entry has an end of its own, so nothing is done for it in the background
		return se.store.explain(doing, endedBy(ctx, err))
	case err != nil:
		se.life.Start(func() { e.keepDeparting(request) })
		if err = se.explain(ctx, doing, err); !e.outlasts.Load() {
			err = se.life.WentWith(ctx, err)
		}
		return err
	case e.doubt.Load():
		se.life.Start(e.clear)
	}
	if !there {
		return e.takenOut(doing)
	}
	return nil
}

// takenOut is the error of a departure that has not found the entry.
func (e *entry) takenOut(doing string) error {
	if e.unanswered.Load() {
		return fmt.Errorf("%s: %s: the entry is out, but an earlier request to take it out was not answered: %w",
			e.session.store, doing, store.ErrNotKnown)
	}
	return fmt.Errorf("%s: %s: %w: somebody else has taken the entry out", e.session.store, doing, store.ErrGone)
}

// takeOut is the request of a withdrawal.
func (e *entry) takeOut(ctx context.Context) (there bool, err error) {
	r, err := e.session.remove(ctx, e.key, int64(e.order), e.unmark()...)
	e.unanswered.Store(!r.removed && (r.unanswered || e.unanswered.Load()))
	if err == nil {
		e.out.Store(true)
	}
	return r.removed, err
}

// keepDeparting goes on with a departure whose caller has given up.
func (e *entry) keepDeparting(request func(context.Context) (bool, error)) {
	life := e.session.life.Context()
	attempts.UntilDone(life, attempts.Longest, func() error {
		_, err := request(life)
		return err
	})
	if e.doubt.Load() {
		e.clear()
	}
}

// guard is a reading of the key that voids attempts of a session that were given up; see the package comment.
type guard struct {
	modified int64 // its revision; zero if it does not exist
	at       int64 // the revision of the reading
}

func (se *session) guardKey() string { return se.store.keys.guard(se.lease) }

// seenGuard returns the revision that the guard key was last seen at. Revisions, unlike versions, are never used again,
// even if somebody deletes the key.
func (se *session) seenGuard() int64 {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.guard.modified
}

// sawGuard takes in a reading of the guard key.
func (se *session) sawGuard(kvs []*mvccpb.KeyValue, at int64) {
	now := guard{at: at}
	if len(kvs) > 0 {
		now.modified = kvs[0].ModRevision
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	if now.at > se.guard.at {
		se.guard = now
	}
}
