package etcdstore

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
)

// errOtherWatch ends a watch because the session's entries need another one.
var errOtherWatch = errors.New("the line has moved up")

// follow watches as much of the line as the session's entries need, until a watch ends.
func (w *lineWatch) follow(ctx context.Context) error {
	for {
		if w.needsRead() {
			if _, err := w.reread(ctx); err != nil {
				return err
			}
		}
		var err error
		w.emptyReads = 0 // none with the watch that is opened now
		if e, ahead := w.followingEntry(); e != nil {
			err = w.watchFollowed(ctx, e, ahead)
		} else {
			err = w.watchOnce(ctx)
		}
		if !errors.Is(err, errOtherWatch) {
			return err
		}
	}
}

// blockingLocked returns how many entries must leave before the entry is admitted, or an upper
// bound if it does not know all entries ahead. It is zero if and only if the entry is admitted; an
// admitted entry stays admitted, also if the limit of slots is lowered.
func (e *entry) blockingLocked() int {
	switch {
	case e.delivery.Admitted():
		return 0
	case e.tracker == nil:
		return max(1, e.aheadBound)
	}
	return e.tracker.Blocking()
}

// onlyLocked returns the session's entry if it has only one that stands in the line; nil otherwise.
func (w *lineWatch) onlyLocked() *entry {
	var only *entry
	for e := range w.mine {
		switch {
		case e.state != inLine:
		case only != nil:
			return nil
		default:
			only = e
		}
	}
	return only
}

// rereadExtent returns which entries of the line must be read: those up to the session's last entry. upTo is zero if
// the session has no entry in the line.
func (w *lineWatch) rereadExtent() (x extent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e := range w.mine {
		if e.state == inLine {
			x.upTo = max(x.upTo, e.order)
		}
	}
	if e := w.onlyLocked(); e != nil && e.req.Mode == line.Exclusive && e.blockingLocked() > 0 {
		x.limit = w.session.store.sizes.watchLimit
		if w.open != 0 {
			x.limit = w.session.store.sizes.keepWatchLimit
		}
		x.limit += 2 // the entry itself, and the one to follow
		// If the entry that it followed has left, few may be ahead now.
		x.far = e.blockingLocked() > w.session.store.sizes.farLimit && !e.followedLeft
	}
	return x
}

// needsRead reports whether nothing is known of the entries ahead of the session's entry.
func (w *lineWatch) needsRead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.onlyLocked()
	return e != nil && e.tracker == nil && e.followed == nil && !e.followedLeft
}

// followingEntry returns the session's entry, if it is the only one, and the entry far ahead that it
// follows; nil if the session must watch the whole line.
func (w *lineWatch) followingEntry() (e *entry, followed listedEntry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e = w.onlyLocked()
	if e == nil || e.tracker != nil || e.followed == nil {
		return nil, listedEntry{}
	}
	return e, *e.followed
}

// stopFollowing forgets the entry that e follows. left reports whether that entry has left.
func (w *lineWatch) stopFollowing(e *entry, left bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.followed, e.following, e.followedLeft = nil, false, left
}

// markFollowing records that no deletion of the followed entry can be missed any more.
func (w *lineWatch) markFollowing(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.following = true
}

// watchFollowed waits until the entry ahead that e follows has left. Meanwhile e cannot be admitted, so
// this is all that must be known, besides that e itself is still there. The watches start at the
// present, like that of a line, and a read covers what happened before.
func (w *lineWatch) watchFollowed(ctx context.Context, e *entry, ahead listedEntry) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := false
	defer func() { w.stopFollowing(e, left) }()

	s := w.session.store
	own, err := s.openWatch(ctx, cancel, e.key)
	if err != nil {
		return err
	}
	other, err := s.openWatch(ctx, cancel, ahead.ID, clientv3.WithFilterPut())
	if err != nil {
		return err
	}
	if left, err = w.recheckFar(ctx, e, ahead); err != nil {
		return err
	} else if left {
		return errOtherWatch
	}
	w.markFollowing(e)
	silence := time.NewTimer(w.farRecheckDelay())
	defer silence.Stop()
	for {
		select {
		case resp, ok := <-own:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			w.session.noteRevision(resp.Header)
			for _, ev := range resp.Events {
				w.handleKeyEvent(e, ev)
			}
		case resp, ok := <-other:
			if !ok || resp.Err() != nil {
				return resp.Err()
			}
			w.session.noteRevision(resp.Header)
			if left = len(resp.Events) > 0; left {
				return errOtherWatch
			}
		case <-w.rereadNow:
			return errOtherWatch
		case <-silence.C:
			left, err = w.recheckFar(ctx, e, ahead)
			switch {
			case err != nil:
				return err
			case left:
				return errWatchSilent
			}
			w.emptyReads++
			silence.Reset(w.farRecheckDelay())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// farRecheckDelay is recheckDelay while many entries are ahead: a missed event costs no time until
// these have left.
func (w *lineWatch) farRecheckDelay() time.Duration {
	return max(w.recheckDelay(), 8*w.session.store.times.recheckInterval)
}

// recheckFar reads the entry and the one that it follows, and reports whether the latter has left, or
// its key is not an entry any more.
func (w *lineWatch) recheckFar(ctx context.Context, e *entry, ahead listedEntry) (left bool, err error) {
	before := w.session.seenRevision.Load()
	resp, err := w.session.store.commit(ctx, nil, []clientv3.Op{clientv3.OpGet(e.key), clientv3.OpGet(ahead.ID)}, nil)
	if err == nil {
		err = w.session.checkRevision(before, resp.Header)
	}
	if err != nil {
		return false, err
	}
	own, other := firstKey(resp.Responses[0]), firstKey(resp.Responses[1])
	w.handleKey(e, own, resp.Header.Revision)
	if other == nil || uint64(other.CreateRevision) != ahead.Order {
		return true, nil
	}
	_, _, stands := w.session.store.keys.parse(other)
	return !stands, nil
}

// firstKey returns the key in the response of a read; nil if it did not exist.
func firstKey(r *pb.ResponseOp) *mvccpb.KeyValue {
	if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}
