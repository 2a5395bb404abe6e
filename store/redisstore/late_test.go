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

// The session is closed while an entry is put in, and the request arrives after everything was taken out.
// Promise: P5
func TestRequestThatArrivesAfterCloseIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	hold(t, se, newName(t)).leave(t) // the server has learnt the script
	asked, closed := make(chan struct{}), make(chan struct{})
	arrived := make(chan error, 1)
	courier.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		close(asked)
		<-closed // the client has not been heard of the end of ctx yet
		arrived <- send(t.Context())[0].Error()
		return failed(ctx, send)
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
		t.Errorf("the session is closed, and joining says %v", err)
	}
	if left := keysOf(t, server, name); len(left) > 0 {
		t.Errorf("the request that came late has left %q", left)
	}
}

// A request arrives so late that its session has ended, and nobody remembers that it was given up; its process has died, say.
// Promise: P5
func TestRequestThatArrivesAfterItsSessionIsVoid(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	hold(t, se, newName(t)).leave(t) // the server has learnt the script
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var deliver func(context.Context) []rueidis.RedisResult
	courier.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		deliver = send
		cancel()
		return failed(ctx, send)
	})
	if _, err := tryJoin(ctx, se, name, line.Exclusive); !errors.Is(err, context.Canceled) {
		t.Fatalf("it was given up, and joining says %v", err)
	}
	voids := redisstore.Keys("", name)[6]
	eventually(t, "it is noted that the entry must not come", func() bool {
		n, err := server.Do("EXISTS", voids).AsInt64()
		return err == nil && n == 1
	})
	server.Do("DEL", voids, "//session/"+se.ID())
	if err := deliver(t.Context())[0].Error(); err != nil {
		t.Error(err)
	}
	if left := keysOf(t, server, name); len(left) > 0 {
		t.Errorf("the request that came late has left %q", left)
	}
	if _, err := tryJoin(t.Context(), se, name, line.Exclusive); !errors.Is(err, store.ErrSessionLost) {
		t.Errorf("the session has ended, and joining says %v", err)
	}
}

// The caller gives up at the worst moment: the entry is in, and has to be kept for another confirmation.
// Promise: P5
func TestNothingIsLeftOfARequestThatIsGivenUpBetweenTwoConfirmations(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	hold(t, se, newName(t)).leave(t) // the server has learnt the script
	ctx, cancel := context.WithCancel(t.Context())
	courier.next("join", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		results := send(ctx)
		confirm(t, se)
		cancel()
		return results
	})
	if _, err := tryJoin(ctx, se, name, line.Exclusive); !errors.Is(err, context.Canceled) {
		t.Errorf("want an error that says so, got %v", err)
	}
	eventually(t, "no key is left of a lock that was given up", func() bool { return len(keysOf(t, server, name)) == 0 })
}

// A break that was carried out says so, though its first reply was lost.
func TestBreakWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	s := hold(t, se, name)
	standing, _, _ := s.standing()
	courier.next("break", unanswered)
	e, err := st.Break(t.Context(), name, standing.Order)
	if err != nil || e.Order != standing.Order || e.Session != se.ID() || !e.Admitted || e.Owner.Host != "test" {
		t.Errorf("Break returned %+v, %v", e, err)
	}
	s.await(t, store.Gone)
	if _, err := st.Break(t.Context(), name, standing.Order); !errors.Is(err, store.ErrGone) {
		t.Errorf("of an entry that is gone Break says %v", err)
	}
}

// However long is asked for, it is not too short.
func TestEntryMayBeLeftForAsLongAsATimeCanBe(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Millisecond, 200 * 365 * 24 * time.Hour} {
		name := newName(t)
		st := storeAt(t, server.Addr())
		s := hold(t, open(t, st, lasting), name)
		if err := s.Extensions().WithdrawAfter(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		l, err := st.Line(t.Context(), name)
		if err != nil || len(l.Entries) != 1 || l.Entries[0].Remaining < 100*365*24*time.Hour {
			t.Errorf("an entry that was left for %v: %+v, %v", d, l.Entries, err)
		}
	}
}

// A server that has forgotten the script is sent it once, however much it is asked for.
func TestForgottenScriptIsSentOnce(t *testing.T) {
	t.Parallel()
	const locks = 50
	server := testservers.StartRedis(t)
	st, courier := storeBy(t, server.Addr())
	se := open(t, st, lasting)
	for range locks {
		hold(t, se, newName(t))
	}
	server.Do("SCRIPT", "FLUSH")
	courier.commands()
	confirm(t, se)
	if n := strings.Count(strings.Join(courier.commands(), " ")+" ", "EVAL "); n != 1 {
		t.Errorf("the script was sent %d times", n)
	}
}

// Letting an entry go later is one moment with closing its session. Whoever says that it will stand must be right.
// Promise: P5
func TestEntryThatWasLeftStandsThoughTheSessionIsClosedMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	for _, carriedOut := range []bool{true, false} {
		name := newName(t)
		st, courier := storeBy(t, server.Addr())
		se := open(t, st, lasting)
		s := hold(t, se, name)
		asked, closed := make(chan struct{}), make(chan struct{})
		courier.next("linger", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
			results := failed
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
		go func() { done <- s.Extensions().WithdrawAfter(t.Context(), lasting) }()
		<-asked
		if err := se.Close(t.Context()); err != nil {
			t.Error(err)
		}
		close(closed)
		// Whether it is carried out cannot be known any more as the session ends.
		err, left := <-done, keysOf(t, server, name)
		if err == nil && !carriedOut || (len(left) > 0) != carriedOut {
			t.Errorf("carried out: %v; WithdrawAfter says %v, and the keys are %q", carriedOut, err, left)
		}
	}
}
