package etcdstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// requireKey returns the only key under a lock's name. The test fails if there is none or there are
// several.
func requireKey(t *testing.T, name string) *mvccpb.KeyValue {
	t.Helper()
	resp, err := server(t).Client(t).Get(t.Context(), name+"/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("lock %q: got keys %v, %v; want one", name, resp, err)
	}
	return resp.Kvs[0]
}

func TestWithdrawAfter_keepsKey(t *testing.T) {
	t.Parallel()
	cli, name := server(t).Client(t), newName(t)
	st := newStore(t, cli, "")
	se := openSession(t, st)
	j := enqueue(t, se, name)
	order := j.await(t, store.Admitted).Order
	before := requireKey(t, name)
	if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	after := requireKey(t, name)
	if string(after.Key) != string(before.Key) || after.CreateRevision != before.CreateRevision {
		t.Errorf("key before: %q, revision %d; after: %q, revision %d; want no change", before.Key, before.CreateRevision, after.Key, after.CreateRevision)
	}
	if after.Lease == before.Lease || after.Lease == 0 {
		t.Errorf("lease before: %x; after: %x; want another one", before.Lease, after.Lease)
	}
	var e store.Entry
	eventually(t, "a read returns the remaining time", func() bool {
		l, err := st.Line(t.Context(), name)
		if err != nil || len(l.Entries) != 1 || len(l.Remarks) != 0 {
			t.Fatalf("got line %+v, %v; want the entry and no remarks", l, err)
		}
		e = l.Entries[0]
		return e.Remaining != 0 // zero if a busy server did not reply in time
	})
	if e.Order != order || !e.Admitted || e.Foreign || e.Owner.Host != "test" {
		t.Errorf("got entry %+v, want order %d, admitted, with its owner", e, order)
	}
	if e.Remaining < 50*time.Minute || e.Remaining > time.Hour {
		t.Errorf("got remaining time %v, want almost an hour", e.Remaining)
	}
	removeKeys(t, name)
}

// The key that the session's next entry would have is still in use.
// Promise: P1
func TestWithdrawAfter_nextEntryHasAnotherKey(t *testing.T) {
	t.Parallel()
	name := newName(t)
	se := openSession(t, newStore(t, server(t).Client(t), ""))
	first := enqueue(t, se, name)
	first.await(t, store.Admitted)
	if err := first.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	outlasting := requireKey(t, name)
	key := string(outlasting.Key)
	second := enqueue(t, se, name)
	if st := second.await(t, store.Waiting); st.Ahead != 1 {
		t.Errorf("%d entries are ahead of the next one, want 1", st.Ahead)
	}
	keys := keysUnder(t, server(t).Client(t), name)
	if len(keys) != 2 || keys[0] != key || !strings.HasPrefix(keys[1], key+"-") {
		t.Errorf("got keys %q, want %q and one with a nonce", keys, key)
	}
	// The time of the first entry is over.
	if _, err := server(t).Client(t).Revoke(t.Context(), clientv3.LeaseID(outlasting.Lease)); err != nil {
		t.Fatal(err)
	}
	second.await(t, store.Admitted)
	second.withdraw(t)
}

// Other clients wait for an entry that outlasts its session as for any other.
// Promise: P1
func TestWithdrawAfter_foreignClientWaits(t *testing.T) {
	const d = 2 * time.Second
	forEachForeignClient(t, func(t *testing.T, r foreignClient, c *stile.Client, name string) {
		hold := lock(t, c, name)
		acquired, leave := r.join(t, name)
		eventually(t, "the foreign client is in the line", func() bool {
			l, err := c.Line(t.Context(), name)
			return err == nil && len(l.Waiters) == 1
		})
		called := time.Now()
		if err := hold.ReleaseAfter(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait(t, acquired, "the foreign client acquires the lock")
		if after := time.Since(called); after < d {
			t.Errorf("the foreign client acquired the lock after %v, want at least %v", after, d)
		}
		leave()
	})
}

// grantRecorder records the ids of the leases that are requested under an id of the client's choice,
// as those of sessions are not.
type grantRecorder struct {
	mu  sync.Mutex
	ids []clientv3.LeaseID
}

func (g *grantRecorder) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if grant, ok := req.(*pb.LeaseGrantRequest); ok && grant.ID != 0 {
		g.mu.Lock()
		g.ids = append(g.ids, clientv3.LeaseID(grant.ID))
		g.mu.Unlock()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// leaseIDs returns each id once.
func (g *grantRecorder) leaseIDs() []clientv3.LeaseID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Compact(slices.Clone(g.ids))
}

// Each request and each reply may be lost.
// Promise: P5
func TestWithdrawAfter_lostMessages(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"LeaseGrant", "Txn"} {
		for _, what := range []string{"request", "reply"} {
			t.Run(method+" "+what, func(t *testing.T) {
				t.Parallel()
				var grants grantRecorder
				cli, intercept := interceptedClient(t, grants.intercept)
				name := newName(t)
				se := openSession(t, newStore(t, cli, ""))
				j := enqueue(t, se, name)
				order := j.await(t, store.Admitted).Order
				var losses atomic.Int32
				f := handler(func(_ context.Context, request string, send func() error) error {
					if request != method || losses.Add(1) > 2 {
						return send()
					}
					if what == "reply" {
						_ = send()
					}
					return errLost
				})
				intercept.Store(&f)
				if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
					t.Fatal(err)
				}
				intercept.Store(nil)
				if n := losses.Load(); n < 2 {
					t.Fatalf("precondition failed: %d messages were lost, want 2", n)
				}
				if err := se.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				// The entry stays for the requested time, attached to the only lease that was
				// requested.
				kv := requireKey(t, name)
				if ids := grants.leaseIDs(); len(ids) != 1 || kv.Lease != int64(ids[0]) || kv.CreateRevision != int64(order) {
					t.Errorf("requested leases %x; key: revision %d, lease %x; want one lease, revision %d",
						ids, kv.CreateRevision, kv.Lease, order)
				}
				direct := server(t).Client(t)
				left, err := direct.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease))
				if err != nil || left.TTL < 50*60 || left.TTL > 60*60 {
					t.Errorf("time to live: got %+v, %v; want almost an hour", left, err)
				}
				if _, err := direct.Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
					t.Fatal(err)
				}
				if keys := keysUnder(t, direct, name); len(keys) > 0 {
					t.Errorf("got keys %q after the lease ended, want none", keys)
				}
			})
		}
	}
}

// The lease expires, or is revoked, before the entry is attached to it.
// Promise: P5
func TestWithdrawAfter_newLeaseVanishes(t *testing.T) {
	t.Parallel()
	var grants grantRecorder
	cli, intercept := interceptedClient(t, grants.intercept)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	f := handleTxn(1, func(send func() error) error {
		if _, err := direct.Revoke(t.Context(), grants.leaseIDs()[0]); err != nil {
			t.Error(err)
		}
		return send()
	})
	intercept.Store(&f)
	if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if ids := grants.leaseIDs(); len(ids) != 2 || requireKey(t, name).Lease != int64(ids[1]) {
		t.Errorf("requested leases %x; key's lease: got %x, want the second", ids, requireKey(t, name).Lease)
	}
	// The session is not lost.
	if err := se.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	j.withdraw(t)
}

// As above, and the caller gives up at that moment. The error about the missing lease must not end
// the session.
func TestWithdrawAfter_newLeaseVanishesAsCallerGivesUp(t *testing.T) {
	t.Parallel()
	var grants grantRecorder
	cli, intercept := interceptedClient(t, grants.intercept)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	ctx, cancel := context.WithCancel(t.Context())
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request != "Txn" {
			return send()
		}
		if ctx.Err() == nil {
			if _, err := direct.Revoke(t.Context(), grants.leaseIDs()[0]); err != nil {
				t.Error(err)
			}
		}
		err := send()
		cancel()
		return err
	})
	intercept.Store(&f)
	if err := j.Extensions().WithdrawAfter(ctx, time.Hour); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrSessionLost) {
		t.Errorf("WithdrawAfter: got %v, want Canceled and not ErrSessionLost", err)
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	eventually(t, "the entry is attached to another lease", func() bool {
		ids := grants.leaseIDs()
		return requireKey(t, name).Lease == int64(ids[len(ids)-1])
	})
	j.withdraw(t)
}

// Promise: P5
func TestWithdrawAfter_brokenEntryLeavesNoLease(t *testing.T) {
	t.Parallel()
	var grants grantRecorder
	cli, intercept := interceptedClient(t, grants.intercept)
	direct, name := server(t).Client(t), newName(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
	j.await(t, store.Admitted)
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request == "Txn" {
			removeKeys(t, name) // too late for the session to be notified
		}
		return send()
	})
	intercept.Store(&f)
	if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); !errors.Is(err, store.ErrGone) {
		t.Errorf("WithdrawAfter of a broken entry: got %v, want ErrGone", err)
	}
	intercept.Store(nil)
	for _, id := range grants.leaseIDs() {
		if resp, err := direct.TimeToLive(t.Context(), id); err != nil || resp.TTL != -1 {
			t.Errorf("lease %x is left: %+v, %v", id, resp, err)
		}
	}
	if err := j.Ticket.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw after that: got %v, want ErrGone", err)
	}
}

// An attempt to insert the entry is left in doubt. The cleanup after it must not delete the entry,
// which outlasts the session.
func TestWithdrawAfter_entryInDoubt(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	var txns atomic.Int32
	f := handler(func(_ context.Context, request string, send func() error) error {
		err := send()
		if request == "Txn" {
			if txns.Add(1) == 1 {
				return errLost
			}
		}
		return err
	})
	intercept.Store(&f)
	j := enqueue(t, se, name)
	order := j.await(t, store.Admitted).Order
	if txns.Load() < 2 {
		t.Fatal("precondition failed: no attempt was in doubt")
	}
	if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
	if kv := requireKey(t, name); kv.CreateRevision != int64(order) {
		t.Errorf("key: got revision %d, want %d", kv.CreateRevision, order)
	}
	j.withdraw(t)
}

// The caller gives up, and then the session ends. The entry may be attached to the new lease, and
// can still be withdrawn.
func TestWithdrawAfter_thenWithdraw(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	f := handler(func(_ context.Context, request string, send func() error) error {
		err := send()
		if request == "Txn" {
			return errLost
		}
		return err
	})
	intercept.Store(&f)
	lease := requireKey(t, name).Lease
	direct := server(t).Client(t)
	ctx := contextUntil(t, "the entry is attached to another lease", func() bool {
		resp, err := direct.Get(t.Context(), name+"/"+se.ID())
		return err == nil && len(resp.Kvs) == 1 && resp.Kvs[0].Lease != lease
	})
	if err := j.Extensions().WithdrawAfter(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("WithdrawAfter without a reply: got %v, want Canceled", err)
	}
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	intercept.Store(nil)
	requireKey(t, name)
	if err := j.Ticket.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
	if keys := keysUnder(t, server(t).Client(t), name); len(keys) > 0 {
		t.Errorf("got keys %v after Withdraw, want none", keys)
	}
}

// A time longer than etcd's maximum TTL is not an error.
func TestWithdrawAfter_longerThanMaxLease(t *testing.T) {
	t.Parallel()
	name := newName(t)
	j := enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
	j.await(t, store.Admitted)
	if err := j.Extensions().WithdrawAfter(t.Context(), 1<<63-1); err != nil {
		t.Fatal(err)
	}
	j.withdraw(t)
}
