package etcdstore

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store/internal/attempts"
)

// remove deletes a key if it still has the given create revision, and applies rest in the same
// transaction. It reports whether an attempt found and deleted the key, and whether an attempt was
// not answered: that attempt may have deleted a key that the others did not find.
//
// If the first attempt is slow, others are made, but the first is not canceled: on a slow cluster
// it is the one that deletes the key.
func (s *Store) remove(ctx context.Context, key string, created int64, rest ...clientv3.Op) (removal, error) {
	t := s.removeTxn(key, created, rest...)
	return s.removeBy(ctx, t, func(ctx context.Context) (*clientv3.TxnResponse, error) { return t.commit(ctx, s.cli) })
}

// removeTxn is one attempt of a removal.
func (s *Store) removeTxn(key string, created int64, rest ...clientv3.Op) txn {
	return txn{
		conditions: []clientv3.Cmp{createdAt(key, created)},
		then:       append(rest, clientv3.OpDelete(key)),
		enter:      s.enterRemoval,
	}
}

// enterRemoval waits until a removal may be sent alone, or repeated, and returns a function to call when it is answered.
// See maxRemovals.
func (s *Store) enterRemoval(ctx context.Context) (leave func(), err error) {
	giveBack, err := s.removals.Enter(ctx)
	if err != nil {
		return nil, notSentError{attempts.GaveUp(ctx, err)}
	}
	late := time.AfterFunc(s.times.removalPlace, giveBack)
	return func() {
		late.Stop()
		giveBack()
	}, nil
}

// removeBy is remove, with a function that makes the first attempt.
func (s *Store) removeBy(
	ctx context.Context, t txn, attempt func(context.Context) (*clientv3.TxnResponse, error),
) (removal, error) {
	first, endFirst := context.WithCancelCause(ctx)
	defer endFirst(nil)
	var others struct { // the attempts after the first one
		removal
		err     error
		running sync.WaitGroup
	}
	others.running.Add(1)
	slow := time.AfterFunc(s.times.retryDelay, func() {
		defer others.running.Done()
		others.removal, others.err = s.removeAgain(ctx, first, t)
		endFirst(nil)
	})
	var r removal
	err := r.note(attempt(first))
	switch {
	case r.removed:
		endFirst(errRemoved)
	case err == nil:
		endFirst(errNotFound)
	default:
		endFirst(nil)
	}
	switch stopped := slow.Stop(); {
	case stopped && (err == nil || refused(err)):
		return r, err
	case stopped:
		others.removal, others.err = s.removeAgain(ctx, first, t)
	default:
		others.running.Wait()
	}
	if err != nil {
		err = others.err
	}
	return r.merge(others.removal), err
}

// errRemoved ends the context of the first attempt of a removal that has found the key, and errNotFound that of one that
// has not.
var (
	errRemoved  = errors.New("the key is deleted")
	errNotFound = errors.New("the key is not there")
)

// removeAgain repeats the request of a removal until it is answered. Several attempts may be in flight.
// When one does not find the key, the others, and the very first until its context has ended, are awaited
// for the store's answerTimeout. If that has deleted the key, nothing else is awaited. An attempt that is
// not answered within [attempts.MaxTimeout] is canceled, which bounds their number. Together they take one place. If the
// first attempt is answered before they have it, none is made.
func (s *Store) removeAgain(ctx context.Context, first context.Context, t txn) (r removal, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	answered := func() bool { return context.Cause(first) == errRemoved || context.Cause(first) == errNotFound }
	waiting, stopWaiting := context.WithCancel(ctx)
	stop := context.AfterFunc(first, func() {
		if answered() {
			stopWaiting()
		}
	})
	leave, err := s.enterRemoval(waiting)
	stop()
	stopWaiting()
	switch {
	case err != nil && answered():
		return removal{}, nil
	case err != nil:
		return removal{}, err
	}
	defer leave()
	t.enter = nil
	type answer struct {
		resp *clientv3.TxnResponse
		err  error
	}
	answers := make(chan answer)
	attempt := func() {
		try, cancel := context.WithTimeout(ctx, attempts.MaxTimeout)
		defer cancel()
		resp, err := t.commit(try, s.cli)
		select {
		case answers <- answer{resp, err}:
		case <-ctx.Done():
		}
	}

	var (
		inFlight    = 0
		retryAfter  = attempts.MinTimeout
		pause       = firstPause
		retryTimer  = time.NewTimer(0)
		notFound    bool  // an attempt has not found the key
		last        error // of an attempt that failed
		answerTimer = time.NewTimer(time.Duration(math.MaxInt64))
		firstOver   = first.Done()
	)
	defer retryTimer.Stop()
	defer answerTimer.Stop()
	for !notFound || inFlight > 0 || firstOver != nil {
		select {
		case <-retryTimer.C:
			inFlight++
			go attempt()
			retryTimer.Reset(retryAfter)
			retryAfter = min(2*retryAfter, attempts.MaxTimeout)
		case a := <-answers:
			inFlight--
			err := r.note(a.resp, a.err)
			switch {
			case r.removed:
				return r, nil
			case refused(err) && !notFound:
				return r, err
			case err == nil && !notFound:
				notFound = true
				retryTimer.Stop()
				answerTimer.Reset(s.times.answerTimeout)
			case err != nil && !notFound:
				last = err
				retryTimer.Reset(pause)
				pause = min(2*pause, attempts.MaxPause)
			}
		case <-firstOver:
			if context.Cause(first) == errRemoved {
				r.unanswered = r.unanswered || inFlight > 0
				return r, nil
			}
			firstOver = nil
		case <-answerTimer.C:
			r.unanswered = r.unanswered || inFlight > 0
			return r, nil
		case <-ctx.Done():
			r.unanswered = r.unanswered || inFlight > 0
			return r, attempts.GaveUp(ctx, last)
		}
	}
	return r, nil
}

// removal is the combined result of the attempts to delete a key.
type removal struct {
	removed    bool // an attempt found the key and deleted it
	unanswered bool // an attempt was not answered, and may have been carried out
	header     *pb.ResponseHeader
}

// note adds the result of one attempt, and returns its error.
func (r *removal) note(resp *clientv3.TxnResponse, err error) error {
	if err != nil {
		r.unanswered = r.unanswered || outcomeUnknown(err)
		return err
	}
	r.removed, r.header = r.removed || resp.Succeeded, resp.Header
	return nil
}

// merge returns the combined result of both.
func (r removal) merge(other removal) removal {
	r.removed, r.unanswered = r.removed || other.removed, r.unanswered || other.unanswered
	if r.header == nil {
		r.header = other.header
	}
	return r
}
