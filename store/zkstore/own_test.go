package zkstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A hold is watched from its creation, although the caller does not wait for that. If the entry is
// broken before the watch is set, the reply to the request for the watch reports it.
// Promise: P6
// Bug: CURATOR-171
func TestHold_brokenAtOnce(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	se, name := openSession(t, newStore(t, nil, m.addr())), newName(t)
	for _, when := range []string{"before its watch is set", "after that"} {
		if when == "before its watch is set" {
			m.intercept(func(op int32, _ []byte) action {
				if op == opSetWatches {
					return stall
				}
				return pass
			}, nil)
		}
		before := m.replies()
		j := enqueue(t, se, name, line.Exclusive)
		j.await(t, store.Admitted)
		if when == "after that" {
			m.awaitReplies(t, "setWatches", 1, before)
		}
		if err := conn.Delete("/"+name+"/"+nodes(t, conn, "/"+name)[0], -1); err != nil {
			t.Fatal(err)
		}
		m.intercept(nil, nil)
		m.resume()
		j.gone(t, store.ErrGone) // not found by a periodic check: see noRecheck
		if err := j.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
			t.Errorf("broken %s: Withdraw: got %v, want ErrGone", when, err)
		}
	}
}

// A confirmation covers the entries too: it succeeds only when all are watched, also after a
// reconnection.
// Promise: P1
// Bug: redisson #1604
func TestConfirm_coversUnwatchedEntries(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	se, name := openSession(t, newStore(t, nil, m.addr())), newName(t)
	for _, when := range []string{"after its creation", "after a reconnection"} {
		lose, lost := once(opSetWatches, discard)
		before := m.replies()
		var j *joined
		if when == "after its creation" {
			m.intercept(lose, nil)
			j = enqueue(t, se, name, line.Exclusive)
		} else {
			j = enqueue(t, se, name, line.Exclusive)
			m.awaitReplies(t, "setWatches", 1, before)
			m.intercept(lose, nil)
			m.reset()
		}
		j.await(t, store.Admitted)
		receive(t, lost, "discarded request for watches")
		if err := conn.Delete("/"+name+"/"+nodes(t, conn, "/"+name)[0], -1); err != nil {
			t.Fatal(err)
		}
		before = m.replies()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- se.Confirm(ctx) }()
		m.awaitReplies(t, "multi", 1, before)
		j.expectNothing(t)
		cancel()
		if err := <-done; err == nil {
			t.Errorf("%s: Confirm succeeded before the loss of the entry was reported", when)
		}

		m.reset() // the client notices that there is no reply, and retries
		confirmEventually(t, se)
		select {
		case st := <-j.standings:
			if st.State != store.Gone {
				t.Errorf("%s: deleted entry: got %v, want Gone", when, st.State)
			}
		default:
			t.Errorf("%s: Confirm succeeded, and the loss of the entry was not reported", when)
		}
		m.intercept(nil, nil)
	}
}

// After a reconnection there are many requests to make. A confirmation does not wait behind all of
// them: only a few reads are in flight at a time, and admitted entries need none. In this test no
// read is answered.
// Promise: P7
func TestConfirm_notDelayedByReads(t *testing.T) {
	t.Parallel()
	const (
		each     = 50
		readings = 16
	)
	m := newInterceptor(t, server(t).Endpoint())
	other, se := openSession(t, newStore(t, nil, server(t).Endpoint())), openSession(t, newStore(t, nil, m.addr()))
	prefix := newName(t) + "/"
	before := m.replies()
	var held, behind []*joined
	var ahead *joined
	for i := range each {
		name := prefix + "held-" + strconv.Itoa(i)
		holder := enqueue(t, other, name, line.Exclusive) // so that the session follows the line
		held = append(held, enqueue(t, se, name, line.Exclusive))
		holder.withdraw(t)
		held[i].await(t, store.Admitted)
		name = prefix + "waited-" + strconv.Itoa(i)
		ahead = enqueue(t, other, name, line.Exclusive)
		behind = append(behind, enqueue(t, se, name, line.Exclusive))
		behind[i].await(t, store.Waiting)
	}
	m.awaitReplies(t, "getData", 2*each, before) // the holders' nodes
	confirm(t, se)                               // so that all of its entries are watched

	var mu sync.Mutex
	asked := map[string]int{}
	count := func(op int32, frame []byte) action {
		mu.Lock()
		defer mu.Unlock()
		asked[opNames[op]]++
		if (op == opGetChildren2 || op == opGetData) && bytes.Contains(frame, []byte("/held-")) {
			t.Errorf("%s in a line whose entry is admitted", opNames[op])
		}
		return pass
	}
	m.intercept(count, func(to int32, _ []byte) action {
		if to == opGetChildren2 || to == opGetData {
			return discard
		}
		return pass
	})
	m.reset()
	await(t, "all concurrent reads", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return asked["getChildren"]+asked["getData"] >= readings
	})
	confirm(t, se)
	mu.Lock()
	if n := asked["getChildren"] + asked["getData"]; n != readings {
		t.Errorf("got %d reads in flight, want %d", n, readings)
	}
	// The first request may be sent before all nodes are known, and the confirmation may be faster.
	if n := asked["setWatches"]; n < 1 || n > 5 {
		t.Errorf("got %d requests for the watches of %d entries, want 1 to 5", n, 2*each)
	}
	mu.Unlock()

	// All lines are still followed afterwards.
	before = m.replies()
	m.intercept(count, nil)
	m.reset()
	m.awaitReplies(t, "getData", each, before)
	confirm(t, se)
	ahead.withdraw(t)
	behind[each-1].admitted(t)
	for _, j := range append(held, behind...) {
		j.expectNoneQueued(t)
	}
}

// expectNoneQueued checks that no more standings were delivered.
func (j *joined) expectNoneQueued(t *testing.T) {
	t.Helper()
	select {
	case st := <-j.standings:
		t.Errorf("the entry for %q is %v (%v), want no delivery", j.name, st.State, st.Cause)
	default:
	}
}

// A client that holds 20 000 locks, and one connection that is reset. It takes minutes and much
// memory, so it is not a test: run it with go test -run=xxx -bench=Reconnect_manyHolds
// -benchtime=1x.
func BenchmarkReconnect_manyHolds(t *testing.B) {
	const n, ttl = 20_000, 8 * time.Second
	z := testservers.StartZooKeeper(t)
	m := newInterceptor(t, z.Endpoint())
	var failed, renewed atomic.Int32
	c, err := stile.New(newStore(t, nil, m.addr()), &stile.Options{TTL: ttl, Hooks: stile.Hooks{SessionRenewed: func(r stile.RenewalEvent) {
		if r.Err == nil {
			renewed.Add(1)
			return
		}
		failed.Add(1)
		t.Logf("renewal: %.150s", r.Err)
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithTimeout(c.Close) })
	holds := make([]*stile.Hold, n)
	var locking sync.WaitGroup
	places := make(chan struct{}, 32)
	start := time.Now()
	for i := range n {
		places <- struct{}{}
		locking.Go(func() {
			defer func() { <-places }()
			h, err := c.Mutex(fmt.Sprintf("many/%d", i)).Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			holds[i] = h
		})
	}
	locking.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d holds after %v", n, time.Since(start))
	m.takeRequests()
	failed.Store(0)
	start = time.Now()
	m.reset()
	last := renewed.Load()
	await(t, "three renewals", func() bool { return renewed.Load() >= last+3 })
	lost := len(slices.DeleteFunc(slices.Clone(holds), func(h *stile.Hold) bool { return h.Valid() }))
	asked := map[string]int{}
	for _, request := range m.takeRequests() {
		asked[request]++
	}
	t.Logf("%v after a reset %d of %d holds are lost; %d renewals failed; requests: %v", time.Since(start), lost, n, failed.Load(), asked)
	if lost > 0 {
		t.Error("holds were lost")
	}
}

// A follower lags behind until a sync: on each connection the listings before it show no entry that
// was created since the test began. An entry whose creation was not answered is found all the same,
// and not created twice.
// Promise: P5
// Bug: CURATOR-498
func TestEnqueue_createUnansweredOnLaggingServer(t *testing.T) {
	t.Parallel()
	m := newInterceptor(t, server(t).Endpoint())
	conn := connect(t, server(t).Endpoint())
	se := openSession(t, newStore(t, nil, m.addr()))
	// close is whether the connection is closed after the reply to the sync.
	for _, close := range []bool{false, true} {
		for range 10 {
			name := newName(t)
			enqueue(t, se, name, line.Exclusive).withdraw(t) // so that the directory is there
			lag := false
			closing := close
			lose, lost := once(opCreate2, cut)
			m.intercept(func(op int32, _ []byte) action {
				switch op {
				case 0:
					lag = true
				case opSync:
					lag = false
				}
				return pass
			}, func(to int32, frame []byte) action {
				switch {
				case to == opGetChildren2 && lag:
					// No entry has a name of this form. The length of the listing stays the same.
					for at := bytes.Index(frame, []byte("-lock-")); at >= 0; at = bytes.Index(frame, []byte("-lock-")) {
						copy(frame[at:], "-none-")
					}
				case to == opSync && closing:
					closing = false
					return passLast
				}
				return lose(to, frame)
			})
			j := enqueue(t, se, name, line.Exclusive)
			receive(t, lost, "lost reply")
			m.intercept(nil, nil)
			if all := nodes(t, conn, "/"+name); len(all) != 1 {
				t.Fatalf("entries: got %s, want one", strings.Join(all, ", "))
			}
			j.admitted(t)
			j.withdraw(t)
		}
	}
}
