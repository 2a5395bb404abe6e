package redisstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// holdSlot puts in the entry of a slot, which is admitted.
func holdSlot(t *testing.T, se store.Session, name string, slots int) *testEntry {
	t.Helper()
	s := join(t, se, name, line.Slot(slots))
	s.await(t, store.Admitted)
	return s
}

// claim claims a slot number.
func (s *testEntry) claim(t *testing.T) int {
	t.Helper()
	number, _, err := s.Extensions().ClaimNumber(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// The reply to a claim is lost: the repetition finds the number.
func TestClaimNumber_replyLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	s := holdSlot(t, open(t, st, longTTL), name, 2)
	interceptor.next("number", loseReply)
	if n := s.claim(t); n != 0 {
		t.Errorf("number: got %d, want 0", n)
	}
	if n := holdSlot(t, open(t, st, longTTL), name, 2).claim(t); n != 1 {
		t.Errorf("number of the other holder: got %d, want 1", n)
	}
}

// A request that was abandoned arrives after the entry was withdrawn. It leaves nothing.
// Promise: P5
func TestClaimNumber_lateRequestChangesNothing(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	s := holdSlot(t, open(t, st, longTTL), name, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var deliver func(context.Context) []rueidis.RedisResult
	interceptor.next("number", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		deliver = send
		cancel()
		return failRequest(ctx, send)
	})
	if _, _, err := s.Extensions().ClaimNumber(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("ClaimNumber: got %v, want Canceled", err)
	}
	s.leave(t)
	next := holdSlot(t, open(t, st, longTTL), name, 1)
	for _, r := range deliver(t.Context()) {
		if err := r.Error(); err != nil {
			t.Error(err)
		}
	}
	if n := next.claim(t); n != 0 {
		t.Errorf("number of the next holder: got %d, want 0", n)
	}
}

// A request that was abandoned arrives after the limit was changed again. It has no effect.
func TestSetLimit_lateRequestChangesNothing(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var deliver func(context.Context) []rueidis.RedisResult
	interceptor.next("limit", func(ctx context.Context, send func(context.Context) []rueidis.RedisResult) []rueidis.RedisResult {
		deliver = send
		cancel()
		return failRequest(ctx, send)
	})
	set := st.Capabilities().SetLimit
	if err := set(ctx, name, 3); !errors.Is(err, context.Canceled) {
		t.Fatalf("SetLimit: got %v, want Canceled", err)
	}
	if err := errors.Join(set(t.Context(), name, 5), set(t.Context(), name, 0)); err != nil {
		t.Fatal(err)
	}
	for _, r := range deliver(t.Context()) {
		if err := r.Error(); err != nil {
			t.Error(err)
		}
	}
	if l, err := st.Line(t.Context(), name); err != nil || l.Limit != 0 {
		t.Errorf("limit: got %d, %v, want 0", l.Limit, err)
	}
}

// The reply to a limit is lost: the repetition finds it.
func TestSetLimit_replyLost(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st, interceptor := interceptedStore(t, server.Addr())
	interceptor.next("limit", loseReply)
	if err := st.Capabilities().SetLimit(t.Context(), name, 4); err != nil {
		t.Fatal(err)
	}
	if l, err := st.Line(t.Context(), name); err != nil || l.Limit != 4 {
		t.Errorf("limit: got %d, %v, want 4", l.Limit, err)
	}
}

// The number leaves with the entry, also if others stay in the line.
// Promise: P5
func TestClaimNumber_removedWithEntry(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	name := newName(t)
	st := storeAt(t, server.Addr())
	s, stays := holdSlot(t, open(t, st, longTTL), name, 2), holdSlot(t, open(t, st, longTTL), name, 2)
	s.claim(t)
	stays.claim(t)
	s.leave(t)
	cli := connect(t, server.Addr())
	fields, err := cli.Do(t.Context(), cli.B().Hkeys().Key("{"+name+"}//e").Build()).AsStrSlice()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.DeleteFunc(fields, func(f string) bool { return !strings.HasPrefix(f, "number ") })); n != 1 {
		t.Errorf("numbers in the store: got %d, want 1", n)
	}
}
