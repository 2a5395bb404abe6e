package etcdstore_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// holdSlot inserts an entry in the mode of a slot, which is admitted.
func holdSlot(t *testing.T, se store.Session, name string, slots int) *testEntry {
	t.Helper()
	return holdMode(t, se, name, line.Slot(slots))
}

// holdMode adds an entry and waits until it is admitted.
func holdMode(t *testing.T, se store.Session, name string, mode line.Mode) *testEntry {
	t.Helper()
	standings := make(chan store.Standing, 100)
	ticket, err := se.Enqueue(t.Context(), store.Request{
		Name: name, Mode: mode, Owner: store.Owner{Host: "test"}, Notify: func(st store.Standing) { standings <- st },
	})
	if err != nil {
		t.Fatal(err)
	}
	j := &testEntry{ticket, name, standings}
	j.await(t, store.Admitted)
	return j
}

// claim claims a slot number.
func (j *testEntry) claim(t *testing.T) int {
	t.Helper()
	number, _, err := j.Extensions().ClaimNumber(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return number
}

func claimsPrefix(name string) string { return ".stile/slots/" + name + "//" }

// wantClaims checks which numbers have a key.
func wantClaims(t *testing.T, name string, want ...int) {
	t.Helper()
	resp, err := server(t).Client(t).Get(t.Context(), claimsPrefix(name), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, kv := range resp.Kvs {
		n, err := strconv.Atoi(strings.TrimPrefix(string(kv.Key), claimsPrefix(name)))
		if err != nil {
			continue // the limit
		}
		got = append(got, n)
	}
	if !slices.Equal(got, want) {
		t.Errorf("numbers that are claimed: got %v, want %v", got, want)
	}
}

// The release, the break and the end of the session remove the claim with the entry, in one step.
// Promise: P5
func TestClaimNumber_removedWithEntry(t *testing.T) {
	st := newStore(t, server(t).Client(t), "")
	for how, leave := range map[string]func(se store.Session, j *testEntry) error{
		"released": func(_ store.Session, j *testEntry) error { return j.Withdraw(t.Context()) },
		"broken": func(_ store.Session, j *testEntry) error {
			l, err := st.Line(t.Context(), j.name)
			if err == nil {
				_, err = st.Break(t.Context(), j.name, l.Entries[0].Order)
			}
			return err
		},
		"closed": func(se store.Session, _ *testEntry) error { return se.Close(t.Context()) },
	} {
		t.Run(how, func(t *testing.T) {
			name := newName(t)
			se := openSession(t, st)
			j := holdSlot(t, se, name, 1)
			j.claim(t)
			wantClaims(t, name, 0)
			cli := server(t).Client(t)
			events := cli.Watch(t.Context(), "", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
			<-events
			if err := leave(se, j); err != nil {
				t.Fatal(err)
			}
			if wantClaims(t, name); t.Failed() {
				return
			}
			deleted := make(map[string]int64)
			entryKey := j.Extensions().Key
			for len(deleted) < 2 {
				for _, ev := range (<-events).Events {
					if key := string(ev.Kv.Key); key == entryKey || strings.HasPrefix(key, claimsPrefix(name)) {
						deleted[key] = ev.Kv.ModRevision
					}
				}
			}
			if deleted[entryKey] != deleted[claimsPrefix(name)+"0"] {
				t.Errorf("revisions of the deletions: got %v, want the same", deleted)
			}
		})
	}
}

// An attempt is carried out, but not answered: the next one finds the claim.
func TestClaimNumber_replyLost(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	j := holdSlot(t, openSession(t, newStore(t, cli, "")), name, 2)
	f := handleTxn(1, func(send func() error) error { return cmp.Or(send(), errLost) })
	intercept.Store(&f)
	if n := j.claim(t); n != 0 {
		t.Errorf("number: got %d, want 0", n)
	}
	wantClaims(t, name, 0)
	if n := holdSlot(t, openSession(t, newStore(t, server(t).Client(t), "")), name, 2).claim(t); n != 1 {
		t.Errorf("number of the other holder: got %d, want 1", n)
	}
}

// captureClaim makes the client's next request that puts a claim a late request. before is called when
// the client repeats it.
func captureClaim(intercept *atomic.Pointer[handler], before func()) *lateRequest {
	l := &lateRequest{pending: make(chan func() error, 1)}
	once := sync.OnceFunc(before)
	f := handler(func(ctx context.Context, request string, send func() error) error {
		switch {
		case request != "Txn":
		case !l.captured.Swap(true):
			l.pending <- send
			<-ctx.Done() // the client gives it up
			return ctx.Err()
		default:
			once()
		}
		return send()
	})
	intercept.Store(&f)
	return l
}

// An attempt that was given up is carried out after the release. It leaves no claim.
// Promise: P5
func TestClaimNumber_lateAfterRelease(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	j := holdSlot(t, openSession(t, newStore(t, cli, "")), name, 2)
	late := captureClaim(intercept, func() {})
	j.claim(t)
	j.withdraw(t)
	wantClaims(t, name)
	late.deliver(t)
	wantClaims(t, name)
}

// An attempt is carried out after the entry has claimed another number, because another entry had the
// first one for a while. The entry must not have two.
// Promise: P1
func TestClaimNumber_lateAfterOtherClaim(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	direct := newStore(t, server(t).Client(t), "")
	j, other := holdSlot(t, openSession(t, newStore(t, cli, "")), name, 2), holdSlot(t, openSession(t, direct), name, 2)
	late := captureClaim(intercept, func() {
		if n := other.claim(t); n != 0 {
			t.Errorf("number of the other holder: got %d, want 0", n)
		}
	})
	if n := j.claim(t); n != 1 {
		t.Errorf("number: got %d, want 1", n)
	}
	other.withdraw(t)
	late.deliver(t)
	wantClaims(t, name, 1)
}

// A claim whose entry was deleted by hand counts for nothing, and its owner does not delete the claim
// of the next holder.
// Promise: P1
func TestClaimNumber_entryDeletedByHand(t *testing.T) {
	t.Parallel()
	name := newName(t)
	st := newStore(t, server(t).Client(t), "")
	j := holdSlot(t, openSession(t, st), name, 1)
	j.claim(t)
	if _, err := server(t).Client(t).Delete(t.Context(), j.Extensions().Key); err != nil {
		t.Fatal(err)
	}
	j.awaitGone(t)
	next := holdSlot(t, openSession(t, st), name, 1)
	if n := next.claim(t); n != 0 {
		t.Errorf("number of the next holder: got %d, want 0", n)
	}
	if err := j.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw: got %v, want ErrGone", err)
	}
	wantClaims(t, name, 0)
}

// A limit is set and removed. An attempt to set it is carried out last, and does nothing.
func TestSetLimit_lateAttemptIsVoid(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	st, direct := newStore(t, cli, ""), newStore(t, server(t).Client(t), "")
	late := captureClaim(intercept, func() {})
	if err := st.Capabilities().SetLimit(t.Context(), name, 3); err != nil {
		t.Fatal(err)
	}
	if err := direct.Capabilities().SetLimit(t.Context(), name, 0); err != nil {
		t.Fatal(err)
	}
	late.deliver(t)
	if l, err := direct.Line(t.Context(), name); err != nil || l.Limit != 0 {
		t.Errorf("limit after the late attempt: got %d, %v, want 0", l.Limit, err)
	}
}

// A holder is shown as one also if the limit was lowered, once it has published when it obtained the
// lock.
func TestLine_holderBeyondLoweredLimit(t *testing.T) {
	t.Parallel()
	name := newName(t)
	st := newStore(t, server(t).Client(t), "")
	holdSlot(t, openSession(t, st), name, 3)
	second := holdSlot(t, openSession(t, st), name, 3)
	now := time.Now()
	if err := second.Extensions().SetOwner(t.Context(), store.Owner{Host: "test", Since: now, Obtained: now}); err != nil {
		t.Fatal(err)
	}
	if err := st.Capabilities().SetLimit(t.Context(), name, 1); err != nil {
		t.Fatal(err)
	}
	if l, err := st.Line(t.Context(), name); err != nil || len(l.Entries) != 2 || !l.Entries[1].Admitted {
		t.Errorf("line: got %+v, %v, want two holders", l, err)
	}
}

// The reply to a limit is lost: the repetition finds it.
func TestSetLimit_replyLost(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	st := newStore(t, cli, "")
	f := handleTxn(1, func(send func() error) error { return cmp.Or(send(), errLost) })
	intercept.Store(&f)
	if err := st.Capabilities().SetLimit(t.Context(), name, 4); err != nil {
		t.Fatal(err)
	}
	if l, err := st.Line(t.Context(), name); err != nil || l.Limit != 4 {
		t.Errorf("limit: got %d, %v, want 4", l.Limit, err)
	}
}
