package etcdstore

import (
	"context"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
)

// remove deletes a key if it still has the given create revision, and does the rest in the same transaction. It reports
// whether an attempt found the key and deleted it, and whether one was not answered: that one may have deleted what the
// others did not find.
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
	slow := time.AfterFunc(s.times.retryDelay, func() {
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

// removeAgain makes the request of a removal until it is answered. Several attempts may be under way. When one finds nothing,
// the others are waited for a while longer, and so is the very first, until firstOver is closed. An attempt that is not
// answered for [attempts.Longest] is given up, so that there are never more than a few.
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
		nothing  bool  // an attempt has found nothing
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
				enough.Reset(s.times.answerTimeout)
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
	removed    bool // an attempt found the key and deleted it
	unanswered bool // an attempt was not answered, and may have been carried out
	header     *pb.ResponseHeader
}

// note adds the answer to one attempt, and returns its error.
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
