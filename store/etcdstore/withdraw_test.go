package etcdstore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile/store"
)

// An entry is gone with its session. A Withdraw in flight at that time returns ErrGone:
// ErrSessionLost alone would leave open whether the entry still stands.
func TestWithdraw_sessionEndsMeanwhile(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	se := openSession(t, newStore(t, cli, ""))
	j, err := tryEnqueue(t.Context(), se, newName(t), false)
	if err != nil {
		t.Fatal(err)
	}
	j.await(t, store.Admitted)
	asked := make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	f := tampering(func(ctx context.Context, request string, carryOut func() error) error {
		if request != "Txn" {
			return carryOut()
		}
		once()
		<-ctx.Done() // it never leaves the client
		return ctx.Err()
	})
	now.Store(&f)
	done := make(chan error, 1)
	go func() { done <- j.Withdraw(t.Context()) }()
	<-asked
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw, whose session was closed meanwhile: %v, want ErrGone", err)
	}
}

// A request that was not answered may have been carried out. If the next one finds no entry, either
// it was, or the entry was gone before. The error is ErrNotKnown.
// Promise: P5
func TestWithdraw_afterUnansweredRequest(t *testing.T) {
	for _, what := range []struct {
		name  string
		first func(t *testing.T, name string, carryOut func() error) // what becomes of the first request
		want  error
	}{
		{"carried out", func(t *testing.T, _ string, carryOut func() error) { succeed(t, carryOut()) }, store.ErrNotKnown},
		{"evicted before", func(t *testing.T, name string, _ func() error) { removeKeys(t, name) }, store.ErrNotKnown},
		{"not carried out", func(*testing.T, string, func() error) {}, nil},
	} {
		t.Run(what.name, func(t *testing.T) {
			t.Parallel()
			cli, now := tampered(t)
			name := newName(t)
			j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
			j.await(t, store.Admitted)
			f := firstTxn(func(carryOut func() error) error {
				what.first(t, name, carryOut)
				return errLost
			})
			now.Store(&f)
			if err := j.Withdraw(t.Context()); !errors.Is(err, what.want) || errors.Is(err, store.ErrGone) {
				t.Errorf("Withdraw: %v, want %v", err, what.want)
			}
			if there(t, server(t).Client(t), name) {
				t.Error("the entry is still there")
			}
		})
	}
}

// As above, for WithdrawAfter. If the first request was carried out, the next one finds the entry.
// Promise: P5
func TestWithdrawAfter_afterUnansweredRequest(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	name := newName(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
	j.await(t, store.Admitted)
	f := firstTxn(func(carryOut func() error) error {
		succeed(t, carryOut())
		removeKeys(t, name)
		return errLost
	})
	now.Store(&f)
	if err := j.Extensions().WithdrawAfter(t.Context(), ample); !errors.Is(err, store.ErrNotKnown) || errors.Is(err, store.ErrGone) {
		t.Errorf("WithdrawAfter: %v, want ErrNotKnown", err)
	}
}

// On a slow cluster a second request is sent before the first is answered. The first reply shows
// that the entry was deleted.
// Promise: P5
func TestWithdraw_slowClusterFirstReplyCounts(t *testing.T) {
	for _, what := range []struct {
		name    string
		evicted bool
		want    error
	}{{"removed", false, nil}, {"evicted before", true, store.ErrGone}} {
		t.Run(what.name, func(t *testing.T) {
			t.Parallel()
			cli, now := tampered(t)
			name := newName(t)
			st := newStore(t, cli, "")
			times := byEvents()
			times.AnswerTimeout = never
			st.SetTimes(times)
			j := enqueue(t, openSession(t, st), name)
			j.await(t, store.Admitted)
			var asked atomic.Int32
			again := make(chan struct{})
			f := tampering(func(ctx context.Context, request string, carryOut func() error) error {
				if request != "Txn" {
					return carryOut()
				}
				switch asked.Add(1) {
				case 1:
					if what.evicted {
						removeKeys(t, name)
					}
					err := carryOut()
					<-again
					select { // and a little later, if it is still waited for
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(10 * time.Millisecond):
						return err
					}
				case 2:
					defer close(again)
				}
				return carryOut()
			})
			now.Store(&f)
			if err := j.Withdraw(t.Context()); !errors.Is(err, what.want) || errors.Is(err, store.ErrNotKnown) {
				t.Errorf("Withdraw: %v, want %v", err, what.want)
			}
		})
	}
}

// On a slower cluster a later attempt may delete the entry, and its reply may come last.
func TestWithdraw_slowClusterLaterReplyCounts(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	st := newStore(t, cli, "")
	times := byEvents()
	times.AnswerTimeout = never
	st.SetTimes(times)
	j := enqueue(t, openSession(t, st), newName(t))
	j.await(t, store.Admitted)
	var asked atomic.Int32
	nothing := make(chan struct{}) // the third attempt has found nothing
	f := tampering(func(ctx context.Context, request string, carryOut func() error) error {
		if request != "Txn" {
			return carryOut()
		}
		switch asked.Add(1) {
		case 1:
			<-nothing
			return carryOut()
		case 2:
			err := carryOut()
			<-nothing
			select { // and a little later, if it is still waited for
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
				return err
			}
		case 3:
			defer close(nothing)
		}
		return carryOut()
	})
	now.Store(&f)
	if err := j.Withdraw(t.Context()); err != nil {
		t.Errorf("Withdraw: %v", err)
	}
}

// Without replies, the first attempt stays in flight and the others are canceled, so their number
// is bounded.
func TestWithdraw_unansweredAttemptsAreCanceled(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), newName(t))
	j.await(t, store.Admitted)
	attempts := make(chan context.Context, 100)
	f := tampering(func(ctx context.Context, request string, carryOut func() error) error {
		if request != "Txn" {
			return carryOut()
		}
		attempts <- ctx
		<-ctx.Done()
		return ctx.Err()
	})
	now.Store(&f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Withdraw(ctx) }()
	first, second := <-attempts, <-attempts
	<-attempts
	<-second.Done()
	if first.Err() != nil {
		t.Error("the first attempt was given up")
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Withdraw: %v", err)
	}
	now.Store(nil)
}

// firstTxn does something of its own with the first Txn. The others are carried out after that: the store makes another when
// the first is slow.
func firstTxn(does func(carryOut func() error) error) tampering {
	var asked atomic.Bool
	done := make(chan struct{})
	return func(_ context.Context, request string, carryOut func() error) error {
		switch {
		case request != "Txn":
		case !asked.Swap(true):
			defer close(done)
			return does(carryOut)
		default:
			<-done
		}
		return carryOut()
	}
}

func succeed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
