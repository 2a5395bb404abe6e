package etcdstore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/store"
)

// A lateRequest is a request that the client has sent and given up, and perhaps repeated, and that
// the server receives only later: for example because a cluster member was stopped with the request
// in its queue.
type lateRequest struct {
	captured atomic.Bool
	pending  chan func() error // capacity 1
	giveUp   atomic.Pointer[context.CancelFunc]
}

// delayNext makes the client's next request of a kind a late request.
func delayNext(intercept *atomic.Pointer[handler], kind string) *lateRequest {
	l := &lateRequest{pending: make(chan func() error, 1)}
	f := handler(func(ctx context.Context, request string, send func() error) error {
		if request != kind || l.captured.Swap(true) {
			return send()
		}
		l.pending <- send
		if giveUp := l.giveUp.Load(); giveUp != nil {
			(*giveUp)()
		}
		<-ctx.Done() // the client gives it up
		return ctx.Err()
	})
	intercept.Store(&f)
	return l
}

// context returns a context that ends when the client sends the request, and so before it can
// repeat the request.
func (l *lateRequest) context(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	l.giveUp.Store(&cancel)
	return ctx
}

// deliver sends the request to the server, which must answer it.
func (l *lateRequest) deliver(t *testing.T) {
	t.Helper()
	if err := l.send(t); err != nil {
		t.Fatalf("late request: %v", err)
	}
}

// send sends the request to the server.
func (l *lateRequest) send(t *testing.T) error {
	t.Helper()
	select {
	case send := <-l.pending:
		return send()
	default:
		t.Fatal("precondition failed: no request was delayed")
		return nil
	}
}

// putLog records the keys that are put under a lock's name.
type putLog struct {
	mu   sync.Mutex
	puts []string
}

func watchPuts(t *testing.T, cli *clientv3.Client, name string) *putLog {
	h := &putLog{}
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

// soFar returns the keys that were put until now.
func (h *putLog) soFar(t *testing.T, cli *clientv3.Client, name string) []string {
	t.Helper()
	const sentinel = "mark"
	if _, err := cli.Put(t.Context(), name+"/"+sentinel, ""); err != nil {
		t.Fatal(err)
	}
	var puts []string
	eventually(t, "the watch delivers the last put", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		puts = h.puts
		return len(puts) > 0 && puts[len(puts)-1] == name+"/"+sentinel
	})
	return puts[:len(puts)-1]
}

// An attempt to insert an entry was given up, and is carried out after another attempt has inserted
// and released it. It must have no effect, because its entry would never be deleted. The epoch key
// voids it.
// Promise: P5
// Bug: CURATOR-498
func TestEnqueue_lateAttemptIsVoid(t *testing.T) {
	for _, tt := range []struct {
		name string
		try  bool
	}{{"lock", false}, {"try", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			direct, name := server(t).Client(t), newName(t)
			se := openSession(t, newStore(t, cli, ""))
			log := watchPuts(t, direct, name)
			late := delayNext(intercept, "Txn")
			j, err := tryEnqueue(t.Context(), se, name, tt.try)
			if err != nil {
				t.Fatal(err)
			}
			j.await(t, store.Admitted)
			j.withdraw(t)
			eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
			late.deliver(t)
			if puts := log.soFar(t, direct, name); len(puts) != 1 {
				t.Errorf("got puts %q, want the entry once", puts)
			}
		})
	}
}

// epochVersion returns how often a session's epoch key was written.
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

// The attempt was given up, and no other attempt succeeded.
// Promise: P5
// Bug: CURATOR-498
func TestEnqueue_lateAttemptAfterFailureIsVoid(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	log := watchPuts(t, direct, name)
	late := delayNext(intercept, "Txn")
	ctx := late.context(t)
	if _, err := tryEnqueue(ctx, se, name, false); !errors.Is(err, context.Canceled) {
		t.Fatalf("Enqueue: got %v, want Canceled", err)
	}
	eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
	late.deliver(t)
	if puts := log.soFar(t, direct, name); len(puts) > 0 {
		t.Errorf("got puts %q, want none", puts)
	}
	// The session stays usable: its attempts name the new revision of the epoch key.
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	j.withdraw(t)
}

// An attempt to open the session and one to insert its entry were given up. Both are carried out
// after the session was closed. The first must not grant the session's lease again, or the second
// would insert an entry that nobody deletes: the epoch key is gone, too.
// Promise: P5
func TestEnqueue_lateAttemptAfterLateGrantIsVoid(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	direct, name := server(t).Client(t), newName(t)
	lateGrant := delayNext(intercept, "LeaseGrant")
	se := openSession(t, newStore(t, cli, ""))
	lateTxn := delayNext(intercept, "Txn")
	enqueue(t, se, name).withdraw(t)
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	lateGrant.deliver(t)
	if err := lateTxn.send(t); !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		t.Errorf("late request: got %v, want ErrLeaseNotFound", err)
	}
	if keys := keysUnder(t, direct, name); len(keys) > 0 {
		t.Errorf("a closed session has the keys %q", keys)
	}
}

// The delete of an entry is carried out after the next entry was inserted under the same key
// (defect B1).
// Promise: P5
// Bug: solid_queue #761
func TestRelease_lateSparesNewerEntry(t *testing.T) {
	t.Parallel()
	cli, intercept := interceptedClient(t)
	direct, name := server(t).Client(t), newName(t)
	se := openSession(t, newStore(t, cli, ""))
	first := enqueue(t, se, name)
	first.await(t, store.Admitted)
	late := delayNext(intercept, "Txn")
	first.withdraw(t)
	second := enqueue(t, se, name)
	st := second.await(t, store.Admitted)
	late.deliver(t)

	if err := first.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("second Withdraw: got %v, want ErrGone", err)
	}
	wantLine(t, direct, name, st.Order)
	second.checkNotNotified(t)
}
