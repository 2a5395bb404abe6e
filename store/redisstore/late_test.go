package redisstore_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// The session is closed while an entry is put in, and the request arrives after everything was
// removed.
// Promise: P5
func TestEnqueue_lateRequestAfterCloseIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t) // loads the script
	asked, closed := make(chan struct{}), make(chan struct{})
	arrived := make(chan error, 1)
	interceptor.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		close(asked)
		<-closed // ctx has ended, but the request is still sent
		arrived <- send(t.Context())[0].Error()
		return failRequest(ctx, send)
	})
	done := make(chan error, 1)
	go func() {
		_, err := tryJoin(t.Context(), se, name, line.Exclusive)
		done <- err
	}()
	<-asked
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
	close(closed)
	if err := <-arrived; err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("join: got %v, want ErrSessionLost", err)
	}
	if left := keysOf(t, server, name); len(left) > 0 {
		t.Errorf("the late request left keys %q", left)
	}
}

// A renewal arrives after the lock was released, or after the session was closed. It brings nothing back.
// Promise: P5
// Bug: openobserve #12544
func TestConfirm_lateRequestRevivesNothing(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, closes := range []bool{false, true} {
		name := newName(t)
		st, interceptor := interceptedStore(t, server.Addr())
		se := open(t, st, longTTL)
		s := hold(t, se, name)
		asked, gone := make(chan struct{}), make(chan struct{})
		arrived := make(chan error, 10) // of the requests for the session and its line
		interceptor.next("visit", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			close(asked)
			<-gone
			results := send(t.Context())
			for _, r := range results {
				arrived <- r.Error()
			}
			close(arrived)
			return results
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = se.Confirm(t.Context()) // what it returns is not the point of this test
		}()
		<-asked
		s.leave(t)
		if closes {
			if err := se.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		close(gone)
		<-done
		for err := range arrived {
			if err != nil {
				t.Errorf("the late renewal: %v", err)
			}
		}
		if left := keysOf(t, server, name); len(left) > 0 {
			t.Errorf("the late renewal left keys %q", left)
		}
		n, err := server.Do("EXISTS", "//session/"+se.ID()).AsInt64()
		if err != nil || (n == 0) != closes {
			t.Errorf("closed %v: got %d sessions, %v", closes, n, err)
		}
	}
}

// A request arrives after its session has ended, and its void mark is lost too.
// Promise: P5
func TestEnqueue_lateRequestAfterSessionEnded(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t) // loads the script
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var deliver func(context.Context) []rueidis.RedisResult
	interceptor.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		deliver = send
		cancel()
		return failRequest(ctx, send)
	})
	if _, err := tryJoin(ctx, se, name, line.Exclusive); !errors.Is(err, context.Canceled) {
		t.Fatalf("join: got %v, want Canceled", err)
	}
	voids := redisstore.Keys("", name)[6]
	eventually(t, "the entry is voided", func() bool {
		n, err := server.Do("EXISTS", voids).AsInt64()
		return err == nil && n == 1
	})
	server.Do("DEL", voids, "//session/"+se.ID())
	if err := deliver(t.Context())[0].Error(); err != nil {
		t.Error(err)
	}
	if left := keysOf(t, server, name); len(left) > 0 {
		t.Errorf("the late request left keys %q", left)
	}
	if _, err := tryJoin(t.Context(), se, name, line.Exclusive); !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("join: got %v, want ErrSessionLost", err)
	}
}

// The caller gives up at the worst moment: the entry is in, and its lease has to be extended for
// another confirmation.
// Promise: P5
func TestEnqueue_canceledDuringConfirmation(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t) // loads the script
	ctx, cancel := context.WithCancel(t.Context())
	interceptor.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		results := send(ctx)
		confirm(t, se)
		cancel()
		return results
	})
	if _, err := tryJoin(ctx, se, name, line.Exclusive); !errors.Is(err, context.Canceled) {
		t.Errorf("join: got %v, want Canceled", err)
	}
	eventually(t, "no key of the abandoned lock is left", func() bool { return len(keysOf(t, server, name)) == 0 })
}

// A break that was carried out succeeds though its first reply was lost.
func TestBreak_replyLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	s := hold(t, se, name)
	standing, _, _ := s.standing()
	interceptor.next("break", loseReply)
	e, err := st.Break(t.Context(), name, standing.Order)
	if err != nil || e.Order != standing.Order || e.Session != se.ID() || !e.Admitted || e.Owner.Host != "test" {
		t.Errorf("Break: got %+v, %v", e, err)
	}
	s.await(t, store.Gone)
	if _, err := st.Break(t.Context(), name, standing.Order); !errors.Is(err, store.ErrGone) {
		t.Errorf("second Break: got %v, want ErrGone", err)
	}
}

// The longest possible durations are accepted.
func TestWithdrawAfter_longestDuration(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Millisecond, 200 * 365 * 24 * time.Hour} {
		name := newName(t)
		st := storeAt(t, server.Addr())
		s := hold(t, open(t, st, longTTL), name)
		if err := s.Extensions().WithdrawAfter(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		l, err := st.Line(t.Context(), name)
		if err != nil || len(l.Entries) != 1 || l.Entries[0].Remaining < 100*365*24*time.Hour {
			t.Errorf("WithdrawAfter(%v): got %+v, %v", d, l.Entries, err)
		}
	}
}

// A server that has lost the script is sent it once per confirmation, however many operations there
// are.
func TestScript_sentOnceAfterFlush(t *testing.T) {
	t.Parallel()
	const locks = 50
	server := testservers.StartRedis(t)
	st, interceptor := interceptedStore(t, server.Addr())
	se := open(t, st, longTTL)
	for range locks {
		hold(t, se, newName(t))
	}
	server.Do("SCRIPT", "FLUSH")
	interceptor.commands()
	confirm(t, se)
	if n := strings.Count(strings.Join(interceptor.commands(), " ")+" ", "EVAL "); n != 1 {
		t.Errorf("the script was sent %d times, want once", n)
	}
}

// A withdrawal for later races with closing the session. If it succeeds the entry must stand.
// Promise: P5
func TestWithdrawAfter_whileSessionCloses(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, carriedOut := range []bool{true, false} {
		name := newName(t)
		st, interceptor := interceptedStore(t, server.Addr())
		se := open(t, st, longTTL)
		s := hold(t, se, name)
		asked, closed := make(chan struct{}), make(chan struct{})
		interceptor.next("detach", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			results := failRequest
			if carriedOut {
				answer := send(ctx)
				results = func(context.Context, func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
					return answer
				}
			}
			close(asked)
			<-closed
			return results(ctx, send)
		})
		done := make(chan error, 1)
		go func() { done <- s.Extensions().WithdrawAfter(t.Context(), longTTL) }()
		<-asked
		if err := se.Close(t.Context()); err != nil {
			t.Error(err)
		}
		close(closed)
		// Whether it was carried out cannot be found out once the session has ended.
		err, left := <-done, keysOf(t, server, name)
		if err == nil && !carriedOut || (len(left) > 0) != carriedOut {
			t.Errorf("carried out: %v; WithdrawAfter: got %v, keys %q", carriedOut, err, left)
		}
	}
}
