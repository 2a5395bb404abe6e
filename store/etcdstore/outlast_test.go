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

// keyOf returns the only key under a lock's name.
func keyOf(t *testing.T, name string) *mvccpb.KeyValue {
	t.Helper()
	resp, err := server(t).Client(t).Get(t.Context(), name+"/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("under %q there is %v, %v; want one key", name, resp, err)
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
	before := keyOf(t, name)
	if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	after := keyOf(t, name)
	if string(after.Key) != string(before.Key) || after.CreateRevision != before.CreateRevision {
		t.Errorf("the key was %q of revision %d, and is %q of %d", before.Key, before.CreateRevision, after.Key, after.CreateRevision)
	}
	if after.Lease == before.Lease || after.Lease == 0 {
		t.Errorf("the lease was %x, and is %x", before.Lease, after.Lease)
	}
	var e store.Entry
	await(t, "a reading that tells how much time is left", func() bool {
		l, err := st.Line(t.Context(), name)
		if err != nil || len(l.Entries) != 1 || len(l.Remarks) != 0 {
			t.Fatalf("the line is %+v, %v; want the entry, and nothing to remark", l, err)
		}
		e = l.Entries[0]
		return e.Remaining != 0 // a busy server is not waited for
	})
	if e.Order != order || !e.Admitted || e.Foreign || e.Owner.Host != "test" {
		t.Errorf("the entry is %+v, want the one of order %d, admitted, with its owner", e, order)
	}
	if e.Remaining < 50*time.Minute || e.Remaining > time.Hour {
		t.Errorf("the entry has %v left, want almost an hour", e.Remaining)
	}
	removeKeys(t, name)
}

// The key that the session's next entry would have is in use.
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
	outlasting := keyOf(t, name)
	key := string(outlasting.Key)
	second := enqueue(t, se, name)
	if st := second.await(t, store.Waiting); st.Ahead != 1 {
		t.Errorf("the next entry waits behind %d, want the one before", st.Ahead)
	}
	keys := keysUnder(t, server(t).Client(t), name)
	if len(keys) != 2 || keys[0] != key || !strings.HasPrefix(keys[1], key+"-") {
		t.Errorf("the keys are %q, want %q and one with a nonce", keys, key)
	}
	// Its time is over.
	if _, err := server(t).Client(t).Revoke(t.Context(), clientv3.LeaseID(outlasting.Lease)); err != nil {
		t.Fatal(err)
	}
	second.await(t, store.Admitted)
	second.withdraw(t)
}

// Other clients wait for an entry that outlasts its session as for any other.
// Promise: P1
func TestWithdrawAfter_rivalWaits(t *testing.T) {
	const d = 2 * time.Second
	eachRival(t, func(t *testing.T, r rival, c *stile.Client, name string) {
		hold := lock(t, c, name)
		acquired, leave := r.join(t, name)
		await(t, "the rival to stand in the line", func() bool {
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
		wait(t, acquired, "the rival's lock")
		if after := time.Since(called); after < d {
			t.Errorf("the rival was let in after %v, want %v at least", after, d)
		}
		leave()
	})
}

// grants keeps the ids of the leases that are asked for.
type grants struct {
	mu  sync.Mutex
	ids []clientv3.LeaseID
}

func (g *grants) see(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if grant, ok := req.(*pb.LeaseGrantRequest); ok && grant.ID != 0 {
		g.mu.Lock()
		g.ids = append(g.ids, clientv3.LeaseID(grant.ID))
		g.mu.Unlock()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// all returns the ids, each once.
func (g *grants) all() []clientv3.LeaseID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Compact(slices.Clone(g.ids))
}

// Each request may be lost on its way, and each reply.
// Promise: P5
func TestWithdrawAfter_lostMessages(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"LeaseGrant", "Txn"} {
		for _, what := range []string{"request", "reply"} {
			t.Run(of+" "+what, func(t *testing.T) {
				t.Parallel()
				var leases grants
				cli, now := tampered(t, leases.see)
				name := newName(t)
				se := openSession(t, newStore(t, cli, ""))
				j := enqueue(t, se, name)
				order := j.await(t, store.Admitted).Order
				var losses atomic.Int32
				f := tampering(func(_ context.Context, request string, carryOut func() error) error {
					if request != of || losses.Add(1) > 2 {
						return carryOut()
					}
					if what == "reply" {
						_ = carryOut()
					}
					return errLost
				})
				now.Store(&f)
				if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
					t.Fatal(err)
				}
				now.Store(nil)
				if n := losses.Load(); n < 2 {
					t.Fatalf("the scenario has failed: %d messages were lost", n)
				}
				if err := se.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				// It stands for as long as it was asked to, under the only lease that was asked for.
				kv := keyOf(t, name)
				if ids := leases.all(); len(ids) != 1 || kv.Lease != int64(ids[0]) || kv.CreateRevision != int64(order) {
					t.Errorf("asked for were the leases %x; the key is of revision %d, under %x; want one lease, and revision %d",
						ids, kv.CreateRevision, kv.Lease, order)
				}
				direct := server(t).Client(t)
				left, err := direct.TimeToLive(t.Context(), clientv3.LeaseID(kv.Lease))
				if err != nil || left.TTL < 50*60 || left.TTL > 60*60 {
					t.Errorf("the entry is to go in %+v seconds, %v; want almost an hour", left, err)
				}
				if _, err := direct.Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
					t.Fatal(err)
				}
				if keys := keysUnder(t, direct, name); len(keys) > 0 {
					t.Errorf("when the lease had ended there was %q", keys)
				}
			})
		}
	}
}

// The lease expires, or is revoked, before the entry is attached to it.
// Promise: P5
func TestWithdrawAfter_newLeaseVanishes(t *testing.T) {
	t.Parallel()
	var leases grants
	cli, now := tampered(t, leases.see)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	var revoked atomic.Bool
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		if request == "Txn" && !revoked.Swap(true) {
			if _, err := direct.Revoke(t.Context(), leases.all()[0]); err != nil {
				t.Error(err)
			}
		}
		return carryOut()
	})
	now.Store(&f)
	if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if ids := leases.all(); len(ids) != 2 || keyOf(t, name).Lease != int64(ids[1]) {
		t.Errorf("asked for were the leases %x; the key is under %x, want the second", ids, keyOf(t, name).Lease)
	}
	// This is no reason to think that the session is lost.
	if err := se.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	j.withdraw(t)
}

// As above, and the caller gives up at that moment: the missing lease is not taken for the
// session's.
func TestWithdrawAfter_newLeaseVanishesAsCallerGivesUp(t *testing.T) {
	t.Parallel()
	var leases grants
	cli, now := tampered(t, leases.see)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	ctx, cancel := context.WithCancel(t.Context())
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		if request != "Txn" {
			return carryOut()
		}
		if ctx.Err() == nil {
			if _, err := direct.Revoke(t.Context(), leases.all()[0]); err != nil {
				t.Error(err)
			}
		}
		err := carryOut()
		cancel()
		return err
	})
	now.Store(&f)
	if err := j.Extensions().WithdrawAfter(ctx, time.Hour); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrSessionLost) {
		t.Errorf("WithdrawAfter returned %v, want that its context has ended", err)
	}
	if err := se.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	await(t, "the entry to be under another lease", func() bool {
		ids := leases.all()
		return keyOf(t, name).Lease == int64(ids[len(ids)-1])
	})
	j.withdraw(t)
}

// Promise: P5
func TestWithdrawAfter_brokenEntryLeavesNoLease(t *testing.T) {
	t.Parallel()
	var leases grants
	cli, now := tampered(t, leases.see)
	direct, name := server(t).Client(t), newName(t)
	j := enqueue(t, openSession(t, newStore(t, cli, "")), name)
	j.await(t, store.Admitted)
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		if request == "Txn" {
			removeKeys(t, name) // after the session could have heard of it
		}
		return carryOut()
	})
	now.Store(&f)
	if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); !errors.Is(err, store.ErrGone) {
		t.Errorf("WithdrawAfter of an entry that was broken returned %v, want ErrGone", err)
	}
	now.Store(nil)
	for _, id := range leases.all() {
		if resp, err := direct.TimeToLive(t.Context(), id); err != nil || resp.TTL != -1 {
			t.Errorf("the lease %x is left: %+v, %v", id, resp, err)
		}
	}
	if err := j.Ticket.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("Withdraw after that returned %v, want ErrGone", err)
	}
}

// An attempt to put the entry in is left in doubt. Clearing up after it must not take out the entry, which stands on.
func TestWithdrawAfter_entryInDoubt(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	var txns atomic.Int32
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		err := carryOut()
		if request == "Txn" {
			if txns.Add(1) == 1 {
				return errLost
			}
		}
		return err
	})
	now.Store(&f)
	j := enqueue(t, se, name)
	order := j.await(t, store.Admitted).Order
	if txns.Load() < 2 {
		t.Fatal("the scenario has failed: no attempt was in doubt")
	}
	if err := j.Extensions().WithdrawAfter(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	await(t, "the epoch key to be written", func() bool { return epochVersion(t, direct, se) > 0 })
	if kv := keyOf(t, name); kv.CreateRevision != int64(order) {
		t.Errorf("the key is of revision %d, want %d", kv.CreateRevision, order)
	}
	j.withdraw(t)
}

// The caller gives up, and then the session ends. The entry may be attached to the new lease, and
// can still be withdrawn.
func TestWithdrawAfter_thenWithdraw(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, ""))
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	f := tampering(func(_ context.Context, request string, carryOut func() error) error {
		err := carryOut()
		if request == "Txn" {
			return errLost
		}
		return err
	})
	now.Store(&f)
	lease := keyOf(t, name).Lease
	direct := server(t).Client(t)
	ctx := endsWhen(t, "the entry to be under another lease", func() bool {
		resp, err := direct.Get(t.Context(), name+"/"+se.ID())
		return err == nil && len(resp.Kvs) == 1 && resp.Kvs[0].Lease != lease
	})
	if err := j.Extensions().WithdrawAfter(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("WithdrawAfter without a reply returned %v, want the end of its context", err)
	}
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	now.Store(nil)
	keyOf(t, name)
	if err := j.Ticket.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
	if keys := keysUnder(t, server(t).Client(t), name); len(keys) > 0 {
		t.Errorf("after that there is %v", keys)
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
