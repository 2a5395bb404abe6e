package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

func tryEnqueueAll(ctx context.Context, st *etcdstore.Store, se store.Session, try bool, names ...string) ([]*testEntry, error) {
	var set []*testEntry
	var reqs []store.Request
	for _, name := range names {
		j := &testEntry{name: name, standings: make(chan store.Standing, 100)}
		set = append(set, j)
		reqs = append(reqs, store.Request{
			Name: name, Owner: store.Owner{Host: "test"}, Try: try, Notify: func(st store.Standing) { j.standings <- st },
		})
	}
	tickets, err := st.Capabilities().EnqueueAll(ctx, se, reqs)
	for i, ticket := range tickets {
		set[i].Ticket = ticket
	}
	return set, err
}

// A request that was not answered may have been carried out. The next one finds all entries, or none.
// If it finds some of them, another client has removed the others.
// Promise: P5
func TestEnqueueAll_afterUnansweredRequest(t *testing.T) {
	for _, try := range []bool{false, true} {
		for _, tt := range []struct {
			name  string
			first func(t *testing.T, names []string, send func() error) // handles the first request
			want  error
		}{
			{"carried out", func(t *testing.T, _ []string, send func() error) { checkNoError(t, send()) }, nil},
			{"not carried out", func(*testing.T, []string, func() error) {}, nil},
			{"carried out, then all evicted", func(t *testing.T, names []string, send func() error) {
				checkNoError(t, send())
				for _, name := range names {
					removeKeys(t, name)
				}
			}, nil},
			{"carried out, then one evicted", func(t *testing.T, names []string, send func() error) {
				checkNoError(t, send())
				removeKeys(t, names[1])
			}, store.ErrGone},
		} {
			t.Run(fmt.Sprintf("try %v/%s", try, tt.name), func(t *testing.T) {
				t.Parallel()
				cli, intercept := interceptedClient(t)
				names := []string{newName(t), newName(t), newName(t)}
				st := newStore(t, cli, "")
				se := openSession(t, st)
				f := handleTxn(1, func(send func() error) error {
					tt.first(t, names, send)
					return errLost
				})
				intercept.Store(&f)
				set, err := tryEnqueueAll(t.Context(), st, se, try, names...)
				if !errors.Is(err, tt.want) {
					t.Fatalf("EnqueueAll: got %v, want %v", err, tt.want)
				}
				for i, name := range names {
					if err == nil {
						set[i].await(t, store.Admitted)
					}
					want := map[bool]int{true: 1, false: 0}[err == nil]
					eventually(t, "the line has the right number of keys", func() bool {
						return len(keysUnder(t, server(t).Client(t), name)) == want
					})
				}
			})
		}
	}
}

// An attempt is carried out late, after the caller has given up. It adds nothing.
// Promise: P5
func TestEnqueueAll_lateAttemptIsVoid(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	direct, names := server(t).Client(t), []string{newName(t), newName(t)}
	st := newStore(t, cli, "")
	se := openSession(t, st)
	late := delayNext(intercept, "Txn")
	_, err := tryEnqueueAll(late.context(t), st, se, false, names...)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("EnqueueAll: got %v, want %v", err, context.Canceled)
	}
	eventually(t, "the session has voided the attempt", func() bool { return epochVersion(t, direct, se) > 0 })
	late.deliver(t)
	for _, name := range names {
		if keys := keysUnder(t, direct, name); len(keys) > 0 {
			t.Errorf("the late attempt put %q", keys)
		}
	}
}

// All entries of one call have the same order, which is the revision of their keys.
// Promise: P2
func TestEnqueueAll_oneRevision(t *testing.T) {
	t.Parallel()
	cli := server(t).Client(t)
	st := newStore(t, cli, "")
	names := []string{newName(t), newName(t)}
	set, err := tryEnqueueAll(t.Context(), st, openSession(t, st), false, names...)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := set[0].await(t, store.Admitted).Order, set[1].await(t, store.Admitted).Order; a != b {
		t.Errorf("got orders %d and %d, want one", a, b)
	}
}

// A late request of a call deletes its keys unconditionally, so no later entry may have one of them.
func TestEnqueueAll_keysAreNeverUsedAgain(t *testing.T) {
	t.Parallel()
	st := newStore(t, server(t).Client(t), "")
	se, names, seen := openSession(t, st), []string{newName(t), newName(t)}, map[string]bool{}
	for range 3 {
		set, err := tryEnqueueAll(t.Context(), st, se, false, names...)
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, enqueue(t, se, names[0]))
		for _, j := range set {
			if key := j.Extensions().Key; seen[key] && j != set[2] {
				t.Errorf("key %q was used before", key)
			} else {
				seen[key] = true
			}
			j.withdraw(t)
		}
	}
}

// A try finds a lock held, reads that it has become free, and is overtaken by another client. It leaves
// nothing.
func TestEnqueueAll_tryOvertaken(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	names := []string{newName(t), newName(t)}
	st, other := newStore(t, cli, ""), openSession(t, newStore(t, server(t).Client(t), ""))
	se := openSession(t, st)
	holder := enqueue(t, other, names[1])
	var txns atomic.Int32
	var released, overtaken sync.Once
	f := handler(func(_ context.Context, request string, send func() error) error {
		switch {
		case request == "Range":
			released.Do(func() { holder.withdraw(t) })
		case request == "Txn" && txns.Add(1) >= 2:
			overtaken.Do(func() { enqueue(t, other, names[1]) })
		}
		return send()
	})
	intercept.Store(&f)
	_, err := tryEnqueueAll(t.Context(), st, se, true, names...)
	if held, ok := errors.AsType[*store.HeldError](err); !ok || held.Name != names[1] {
		t.Errorf("EnqueueAll: got %v, want a HeldError for %q", err, names[1])
	}
	for i, name := range names {
		if keys := keysUnder(t, server(t).Client(t), name); len(keys) != i {
			t.Errorf("lock %d has the keys %q, want %d", i, keys, i)
		}
	}
}

// Several free locks take one request, and a failed try writes nothing.
func TestEnqueueAll_requests(t *testing.T) {
	t.Parallel()
	c, rec := newRecordedClient(t, 0)
	names := []string{newName(t), newName(t), newName(t)}
	m, err := c.LockAll(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	wantRequests(t, "LockAll", rec.takeLog(), "Txn")
	checkNoError(t, m.Release(t.Context()))
	rec.takeLog()
	m, err = c.TryLockAll(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	wantRequests(t, "TryLockAll", rec.takeLog(), "Txn")
	checkNoError(t, m.Release(t.Context()))

	slices.Sort(names)
	holder := newClient(t, server(t).Client(t), longTTL)
	lock(t, holder, names[2])
	rec.takeLog()
	log := watchPuts(t, server(t).Client(t), names[0])
	if _, err := c.TryLockAll(t.Context(), names...); err == nil {
		t.Fatal("TryLockAll with a held lock succeeded")
	}
	wantRequests(t, "TryLockAll with a held lock", rec.takeLog(), "Txn", "Range", "Range", "Range")
	if puts := log.soFar(t, server(t).Client(t), names[0]); len(puts) > 0 {
		t.Errorf("a failed try put %q", puts)
	}
}

// As many locks as one transaction can take; and one more, which is refused with the number.
func TestEnqueueAll_most(t *testing.T) {
	t.Parallel()
	st := newStore(t, server(t).Client(t), "")
	se := openSession(t, st)
	prefix := newName(t)
	var names []string
	for i := range etcdstore.MaxTogether + 1 {
		names = append(names, fmt.Sprint(prefix, "/", i))
	}
	_, err := tryEnqueueAll(t.Context(), st, se, false, names...)
	if want := fmt.Sprint(etcdstore.MaxTogether); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("EnqueueAll of %d names: got %v, want an error with the number %s", len(names), err, want)
	}
	if keys := keysUnder(t, server(t).Client(t), prefix); len(keys) > 0 {
		t.Errorf("the refused call put %d keys", len(keys))
	}
	for _, try := range []bool{false, true} {
		set, err := tryEnqueueAll(t.Context(), st, se, try, names[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range set {
			j.await(t, store.Admitted)
		}
		for _, j := range set {
			j.withdraw(t)
		}
	}
}

// A server that allows fewer operations in a transaction refuses the call, which leaves nothing.
func TestEnqueueAll_serverAllowsFewer(t *testing.T) {
	t.Parallel()
	server := startEtcd(t, "--max-txn-ops=8")
	st := newStore(t, server.Client(t), "")
	se := openSession(t, st)
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("several/", i))
	}
	if _, err := tryEnqueueAll(t.Context(), st, se, false, names...); err == nil {
		t.Error("EnqueueAll succeeded, want an error")
	}
	if keys := keysUnder(t, server.Client(t), "several"); len(keys) > 0 {
		t.Errorf("the refused call put %d keys", len(keys))
	}
	set, err := tryEnqueueAll(t.Context(), st, se, false, names[:3]...)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range set {
		j.await(t, store.Admitted)
	}
}

// etcd's own Mutex waits behind an entry of several, and the other way round.
func TestEnqueueAll_stockMutex(t *testing.T) {
	t.Parallel()
	cli, a, b := server(t).Client(t), newName(t), newName(t)
	st := newStore(t, cli, "")
	stock := func(name string) *concurrency.Mutex {
		return concurrency.NewMutex(stockSession(t, server(t).Endpoint()), name)
	}
	first := stock(b)
	checkNoError(t, first.Lock(t.Context()))
	set, err := tryEnqueueAll(t.Context(), st, openSession(t, st), false, a, b)
	if err != nil {
		t.Fatal(err)
	}
	set[0].await(t, store.Admitted)
	set[1].await(t, store.Waiting)
	second := stock(a)
	locked := locking(t.Context(), second)
	eventually(t, "the stock mutex waits", func() bool { return len(keysUnder(t, cli, a)) == 2 })
	stillLocking(t, locked, "an entry of several is ahead")
	checkNoError(t, first.Unlock(t.Context()))
	set[1].await(t, store.Admitted)
	set[0].withdraw(t)
	checkNoError(t, <-locked)
	checkNoError(t, second.Unlock(t.Context()))
}

// One entry joins a crowded line, in which it reads only the newest entries, and the other a free one.
func TestEnqueueAll_longLine(t *testing.T) {
	t.Parallel()
	cli, free, crowded := server(t).Client(t), newName(t), newName(t)
	st := newStore(t, cli, "")
	st.SetSizes(1, 2, 2)
	var ahead []*testEntry
	for range 6 {
		ahead = append(ahead, enqueue(t, openSession(t, newStore(t, cli, "")), crowded))
	}
	set, err := tryEnqueueAll(t.Context(), st, openSession(t, st), false, free, crowded)
	if err != nil {
		t.Fatal(err)
	}
	set[0].await(t, store.Admitted)
	set[1].await(t, store.Waiting)
	for _, j := range ahead {
		j.withdraw(t)
	}
	set[1].await(t, store.Admitted)
}

// A key of an entry is overwritten while the reply is lost. The call fails and removes the others; the
// foreign value goes too, because its key was the entry's.
func TestEnqueueAll_overwritten(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	direct, names := server(t).Client(t), []string{newName(t), newName(t)}
	st := newStore(t, cli, "")
	se := openSession(t, st)
	f := handleTxn(1, func(send func() error) error {
		checkNoError(t, send())
		keys := keysUnder(t, direct, names[1])
		if _, err := direct.Put(context.Background(), keys[0], "overwritten", clientv3.WithIgnoreLease()); err != nil {
			t.Error(err)
		}
		return errLost
	})
	intercept.Store(&f)
	if _, err := tryEnqueueAll(t.Context(), st, se, false, names...); !errors.Is(err, store.ErrGone) {
		t.Fatalf("EnqueueAll: got %v, want an error matching ErrGone", err)
	}
	for _, name := range names {
		eventually(t, "the line is empty", func() bool { return len(keysUnder(t, direct, name)) == 0 })
	}
}
