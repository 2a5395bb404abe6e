package etcdstore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// A lateRequest is one that a client has sent and given up, and that the server has not got yet: a member of a cluster,
// say, was stopped with the request in its hands. The client may have made it again.
type lateRequest struct {
	held   atomic.Bool
	arrive chan func() error // holds one
}

// nextIsLate makes the client's next Txn a late request.
func nextIsLate(now *atomic.Pointer[tampering]) *lateRequest {
	l := &lateRequest{arrive: make(chan func() error, 1)}
	f := tampering(func(ctx context.Context, request string, carryOut func() error) error {
		if request != "Txn" || l.held.Swap(true) {
			return carryOut()
		}
		l.arrive <- carryOut
		<-ctx.Done() // the client gives it up
		return ctx.Err()
	})
	now.Store(&f)
	return l
}

// arrives has the request carried out, at last.
func (l *lateRequest) arrives(t *testing.T) {
	t.Helper()
	select {
	case carryOut := <-l.arrive:
		if err := carryOut(); err != nil {
			t.Fatalf("the late request was not carried out: %v", err)
		}
	default:
		t.Fatal("the scenario has failed: there was no request to be late")
	}
}

// history notes what is put under a name.
type history struct {
	mu   sync.Mutex
	puts []string
}

func watchPuts(t *testing.T, cli *clientv3.Client, name string) *history {
	h := &history{}
	events := cli.Watch(t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
	<-events
	go func() {
		for resp := range events {
			for _, ev := range resp.Events {
				h.mu.Lock()
				h.puts = append(h.puts, string(ev.Kv.Key))
				h.mu.Unlock()
			}
		}
	}()
	return h
}

// upTo returns what was put under the name until now.
func (h *history) upTo(t *testing.T, cli *clientv3.Client, name string) []string {
	t.Helper()
	const mark = "mark"
	if _, err := cli.Put(t.Context(), name+"/"+mark, ""); err != nil {
		t.Fatal(err)
	}
	var puts []string
	await(t, "the watch to catch up", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		puts = h.puts
		return len(puts) > 0 && puts[len(puts)-1] == name+"/"+mark
	})
	return puts[:len(puts)-1]
}

// An attempt to insert an entry was given up, and is carried out after another attempt has inserted
// and released it. It must have no effect, because its entry would never be deleted. The epoch key
// voids it.
// Promise: P5
func TestEnqueue_lateAttemptIsVoid(t *testing.T) {
	for _, how := range []struct {
		name string
		try  bool
	}{{"lock", false}, {"try", true}} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			cli, now := tampered(t)
			direct, name := server(t).Client(t), newName(t)
			se := openSession(t, newStore(t, cli, ""))
			history := watchPuts(t, direct, name)
			late := nextIsLate(now)
			j, err := tryEnqueue(t.Context(), se, name, how.try)
			if err != nil {
				t.Fatal(err)
			}
			j.await(t, store.Admitted)
			j.withdraw(t)
			await(t, "the epoch key to be written", func() bool { return epochVersion(t, direct, se) > 0 })
			late.arrives(t)
			if puts := history.upTo(t, direct, name); len(puts) != 1 {
				t.Errorf("put under the name were %q, want the entry once", puts)
			}
		})
	}
}

// epochVersion returns how often the epoch key of a session was written.
func epochVersion(t *testing.T, cli *clientv3.Client, se store.Session) int64 {
	t.Helper()
	resp, err := cli.Get(t.Context(), ".stile/"+se.ID())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return 0
	}
	return resp.Kvs[0].Version
}

// An attempt that was given up for good, with no other that succeeded.
// Promise: P5
func TestEnqueue_lateAttemptAfterFailureIsVoid(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	history := watchPuts(t, direct, name)
	late := nextIsLate(now)
	ctx := endsWhen(t, "an attempt to be made", late.held.Load)
	if _, err := tryEnqueue(ctx, se, name, false); !errors.Is(err, context.Canceled) {
		t.Fatalf("Enqueue returned %v, want the end of its context", err)
	}
	await(t, "the epoch key to be written", func() bool { return epochVersion(t, direct, se) > 0 })
	late.arrives(t)
	if puts := history.upTo(t, direct, name); len(puts) > 0 {
		t.Errorf("put under the name were %q, want nothing", puts)
	}
	// The session goes on, with attempts that name the new revision of the epoch key.
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	j.withdraw(t)
}

// The delete of an entry is carried out after the next entry was inserted under the same key
// (defect B1).
// Promise: P5
func TestRelease_lateSparesNewerEntry(t *testing.T) {
	t.Parallel()
	cli, now := tampered(t)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	first := enqueue(t, se, name)
	first.await(t, store.Admitted)
	late := nextIsLate(now)
	first.withdraw(t)
	second := enqueue(t, se, name)
	st := second.await(t, store.Admitted)
	late.arrives(t)

	if err := first.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("withdrawing again returned %v, want ErrGone", err)
	}
	wantLine(t, direct, name, st.Order)
	second.silent(t)
}
