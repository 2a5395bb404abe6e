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
	cli, intercept := interceptedClient(t)
	se := openSession(t, newStore(t, cli, ""))
	j, err := tryEnqueue(t.Context(), se, newName(t), false)
	if err != nil {
		t.Fatal(err)
	}
	j.await(t, store.Admitted)
	requested := make(chan struct{})
	once := sync.OnceFunc(func() { close(requested) })
	f := handler(func(ctx context.Context, request string, send func() error) error {
		if request != "Txn" {
			return send()
		}
		once()
		<-ctx.Done() // the request is not sent
		return ctx.Err()
	})
	intercept.Store(&f)
	done := make(chan error, 1)
	go func() { done <- j.Withdraw(t.Context()) }()
	<-requested
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: got %v, want ErrGone", err)
	}
}

// A request that was not answered may have been carried out. If the next one finds no entry, either
// it was, or the entry was gone before. The error is ErrNotKnown.
// Promise: P5
func TestWithdraw_afterUnansweredRequest(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first func(t *testing.T, name string, send func() error) // handles the first request
		want  error
	}{
		{"carried out", func(t *testing.T, _ string, send func() error) { checkNoError(t, send()) }, store.ErrNotKnown},
		{"evicted before", func(t *testing.T, name string, _ func() error) { removeKeys(t, name) }, store.ErrNotKnown},
		{"not carried out", func(*testing.T, string, func() error) {}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			name := newName(t)
			j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
			j.await(t, store.Admitted)
			f := handleTxn(1, func(send func() error) error {
				tt.first(t, name, send)
				return errLost
			})
			intercept.Store(&f)
			if err := j.Withdraw(t.Context()); !errors.Is(err, tt.want) || errors.Is(err, store.ErrGone) {
				t.Errorf("Withdraw: got %v, want %v", err, tt.want)
			}
			if keyExists(t, server(t).Client(t), name) {
				t.Error("the entry is still there")
			}
		})
	}
}

// As above, for WithdrawAfter. If the first request was carried out, the next one finds the entry.
// Promise: P5
func TestWithdrawAfter_afterUnansweredRequest(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
	j.await(t, store.Admitted)
	f := handleTxn(1, func(send func() error) error {
		checkNoError(t, send())
		removeKeys(t, name)
		return errLost
	})
	intercept.Store(&f)
	if err := j.Extensions().WithdrawAfter(t.Context(), longTTL); !errors.Is(err, store.ErrNotKnown) || errors.Is(err, store.ErrGone) {
		t.Errorf("WithdrawAfter: got %v, want ErrNotKnown", err)
	}
}

// On a slow cluster a second request is sent before the first is answered. The first reply shows
// that the entry was deleted.
// Promise: P5
func TestWithdraw_slowClusterFirstReplyCounts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		evicted bool
		want    error
	}{{"removed", false, nil}, {"evicted before", true, store.ErrGone}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			name := newName(t)
			st := newStore(t, cli, "")
			times := noPollingTimes()
			times.AnswerTimeout = longInterval
			st.SetTimes(times)
			j := enqueue(t, openSession(t, st), name)
			j.await(t, store.Admitted)
			var requests atomic.Int32
			repeated := make(chan struct{})
			f := handler(func(ctx context.Context, request string, send func() error) error {
				if request != "Txn" {
					return send()
				}
				switch requests.Add(1) {
				case 1:
					if tt.evicted {
						removeKeys(t, name)
					}
					err := send()
					<-repeated
					select { // the reply arrives a little later, unless the attempt is canceled
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(10 * time.Millisecond):
						return err
					}
				case 2:
					defer close(repeated)
				}
				return send()
			})
			intercept.Store(&f)
			if err := j.Withdraw(t.Context()); !errors.Is(err, tt.want) || errors.Is(err, store.ErrNotKnown) {
				t.Errorf("Withdraw: got %v, want %v", err, tt.want)
			}
		})
	}
}

// On a slower cluster a later attempt may delete the entry, and its reply may come last.
func TestWithdraw_slowClusterLaterReplyCounts(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	st := newStore(t, cli, "")
	times := noPollingTimes()
	times.AnswerTimeout = longInterval
	st.SetTimes(times)
	j := enqueue(t, openSession(t, st), newName(t))
	j.await(t, store.Admitted)
	var requests atomic.Int32
	foundNothing := make(chan struct{}) // the third attempt has found nothing
	f := handler(func(ctx context.Context, request string, send func() error) error {
		if request != "Txn" {
			return send()
		}
		switch requests.Add(1) {
		case 1:
			<-foundNothing
			return send()
		case 2:
			err := send()
			<-foundNothing
			select { // the reply arrives a little later, unless the attempt is canceled
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
				return err
			}
		case 3:
			defer close(foundNothing)
		}
		return send()
	})
	intercept.Store(&f)
	if err := j.Withdraw(t.Context()); err != nil {
		t.Errorf("Withdraw: %v", err)
	}
}

// When the first reply shows that the entry was deleted, the later attempts are canceled: Withdraw does not
// wait for their replies.
func TestWithdraw_slowClusterDoesNotAwaitTheRest(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), newName(t))
	j.await(t, store.Admitted)
	var requests atomic.Int32
	repeated := make(chan struct{})
	once := sync.OnceFunc(func() { close(repeated) })
	f := handler(func(ctx context.Context, request string, send func() error) error {
		if request != "Txn" {
			return send()
		}
		if requests.Add(1) == 1 {
			err := send()
			<-repeated
			return err
		}
		once()
		<-ctx.Done() // no reply
		return ctx.Err()
	})
	intercept.Store(&f)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := j.Withdraw(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("Withdraw: got %v, want nil before the end of the context (%v)", err, ctx.Err())
	}
}

// Without replies, the first attempt stays in flight and the others are canceled, so their number
// is bounded.
func TestWithdraw_unansweredAttemptsAreCanceled(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), newName(t))
	j.await(t, store.Admitted)
	attempts := make(chan context.Context, 100)
	f := handler(func(ctx context.Context, request string, send func() error) error {
		if request != "Txn" {
			return send()
		}
		attempts <- ctx
		<-ctx.Done()
		return ctx.Err()
	})
	intercept.Store(&f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Withdraw(ctx) }()
	first, second := <-attempts, <-attempts
	<-attempts
	<-second.Done()
	if first.Err() != nil {
		t.Error("the first attempt was canceled")
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Withdraw: got %v, want Canceled", err)
	}
	intercept.Store(nil)
}

// handleTxn returns a handler that calls handle for the nth Txn that writes. Those after it are sent after
// that, because the store repeats a request that is slow.
func handleTxn(nth int32, handle func(send func() error) error) handler {
	var txns atomic.Int32
	done := make(chan struct{})
	return func(_ context.Context, request string, send func() error) error {
		if request != "Txn" {
			return send()
		}
		switch n := txns.Add(1); {
		case n == nth:
			defer close(done)
			return handle(send)
		case n > nth:
			<-done
		}
		return send()
	}
}

func checkNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
