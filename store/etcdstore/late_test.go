package etcdstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// twoWays is a server that a client reaches in two ways, which it takes in turn for its requests: one is fast, and on
// the other everything arrives very much later, long after the client has given it up and gone the other way.
//
// What is sent the slow way arrives as late as it would if a member of a cluster were stopped with the request in its
// hands: the client has given the request up, the server does not know it.
type twoWays struct {
	server *testservers.Etcd
	direct *clientv3.Client // a third way, for looking
	cli    *clientv3.Client
	slow   *testservers.Proxy
}

// lateness is by how much what is sent the slow way is late: so much that all else is over by then. A request is
// given up, and its cancellation sent after it, half a second after it was sent: so long the server has for it.
const lateness = 4 * time.Second

func newTwoWays(t *testing.T) *twoWays {
	t.Helper()
	e := testservers.StartEtcd(t)
	fast, slow := testservers.NewProxy(t, e.Endpoint()), testservers.NewProxy(t, e.Endpoint())
	w := &twoWays{server: e, direct: e.Client(t), cli: connect(t, fast.Addr(), slow.Addr()), slow: slow}
	await(t, "both ways to be open", func() bool {
		_, err := w.cli.Get(t.Context(), "x")
		return err == nil && fast.Connections() == 1 && slow.Connections() == 1
	})
	return w
}

// nextIsSlow sees to it that the client's next request goes the slow way.
func (w *twoWays) nextIsSlow(t *testing.T) {
	t.Helper()
	w.slow.Delay(lateness, testservers.Up)
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := w.cli.Get(ctx, "x", clientv3.WithSerializable())
		cancel()
		if err == nil {
			return // this one went the fast way
		}
	}
	t.Fatal("ten requests in a row went the slow way")
}

// applied returns how many proposals the server has carried out: those that changed nothing count too.
func (w *twoWays) applied(t *testing.T) uint64 {
	t.Helper()
	status, err := w.direct.Status(t.Context(), w.server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	return status.RaftAppliedIndex
}

// awaitLate waits until the server has carried out what was sent the slow way, of which there must be something.
func (w *twoWays) awaitLate(t *testing.T, sent time.Time) {
	t.Helper()
	if early := time.Since(sent); early > lateness-200*time.Millisecond {
		t.Skipf("SKIPPED: the machine is too busy: the late request has arrived already, after %v", early)
	}
	before := w.applied(t)
	await(t, "the late request", func() bool { return w.applied(t) > before })
	time.Sleep(time.Until(sent.Add(lateness + 700*time.Millisecond)))
}

// history notes what is put under a name.
type history struct {
	mu   sync.Mutex
	puts []string
}

func (w *twoWays) watchPuts(t *testing.T, name string) *history {
	h := &history{}
	events := w.direct.Watch(t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
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
func (h *history) upTo(t *testing.T, w *twoWays, name string) []string {
	t.Helper()
	const mark = "mark"
	if _, err := w.direct.Put(t.Context(), name+"/"+mark, ""); err != nil {
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

// An attempt to put an entry in that was given up is carried out after the lock was taken, and released, by another
// attempt. It must be void, because nobody would ever take that entry out. The guard key makes it so.
func TestLateAttemptIsVoid(t *testing.T) {
	for _, how := range []struct {
		name string
		try  bool
	}{{"lock", false}, {"try", true}} {
		t.Run(how.name, func(t *testing.T) {
			t.Parallel()
			w, name := newTwoWays(t), newName(t)
			se := openSession(t, newStore(t, w.cli, ""))
			history := w.watchPuts(t, name)
			w.nextIsSlow(t)

			sent := time.Now()
			j, err := tryEnqueue(t.Context(), se, name, how.try)
			if err != nil {
				t.Fatal(err)
			}
			j.await(t, store.Admitted)
			if took := time.Since(sent); took < 400*time.Millisecond {
				t.Fatalf("the lock was taken in %v, so no attempt went the slow way", took)
			}
			j.withdraw(t)
			await(t, "the guard to be raised", func() bool { return guard(t, w.direct, se) == 1 })
			w.awaitLate(t, sent)

			if puts := history.upTo(t, w, name); len(puts) != 1 {
				t.Errorf("put under the name were %q, want the entry once", puts)
			}
		})
	}
}

// guard returns how often the guard key of a session was raised.
func guard(t *testing.T, cli *clientv3.Client, se store.Session) int64 {
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
func TestLateAttemptOfFailedEnqueueIsVoid(t *testing.T) {
	t.Parallel()
	w, name := newTwoWays(t), newName(t)
	se := openSession(t, newStore(t, w.cli, ""))
	history := w.watchPuts(t, name)
	w.nextIsSlow(t)

	sent := time.Now()
	ctx := until(t, 300*time.Millisecond)
	if _, err := tryEnqueue(ctx, se, name, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Enqueue returned %v, want the end of its context", err)
	}
	await(t, "the guard to be raised", func() bool { return guard(t, w.direct, se) == 1 })
	w.awaitLate(t, sent)
	if puts := history.upTo(t, w, name); len(puts) > 0 {
		t.Errorf("put under the name were %q, want nothing", puts)
	}
	// The session goes on, with attempts that name the new version of the guard.
	w.slow.Delay(0)
	j := enqueue(t, se, name)
	j.await(t, store.Admitted)
	j.withdraw(t)
}

// The unlocking of one entry is carried out after its successor, under the same key, was put in (defect B1).
func TestLateReleaseSparesNewerEntry(t *testing.T) {
	t.Parallel()
	w, name := newTwoWays(t), newName(t)
	se := openSession(t, newStore(t, w.cli, ""))
	first := enqueue(t, se, name)
	first.await(t, store.Admitted)
	w.nextIsSlow(t)

	sent := time.Now()
	first.withdraw(t)
	if took := time.Since(sent); took < 400*time.Millisecond {
		t.Fatalf("the lock was released in %v, so no attempt went the slow way", took)
	}
	w.nextIsSlow(t) // so that the one after it, which is all that matters here, is fast
	_, _ = w.cli.Get(until(t, 100*time.Millisecond), "x")
	second := enqueue(t, se, name)
	st := second.await(t, store.Admitted)
	w.awaitLate(t, sent)

	if err := first.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
		t.Errorf("withdrawing again returned %v, want ErrGone", err)
	}
	l, err := newStore(t, w.direct, "").Line(t.Context(), name)
	if err != nil || len(l.Entries) != 1 || l.Entries[0].Order != st.Order {
		t.Errorf("the line is %+v, %v; want the newer entry, %d", l, err, st.Order)
	}
	second.silent(t)
}
