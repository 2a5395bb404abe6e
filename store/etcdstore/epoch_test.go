package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// An entryCatcher catches the requests of a client that would insert entries into chosen lines, and delays the
// writes of epoch keys.
type entryCatcher struct {
	// onEpoch, if set, is called instead of each write of an epoch key. write carries it out, and returns.
	onEpoch atomic.Pointer[func(ctx context.Context, write func() error) error]
	// carriedOut says that what is caught is carried out first. Only its reply is lost.
	carriedOut bool

	mu     sync.Mutex
	names  map[string]bool // lines
	caught map[string][]func() (inserted bool, err error)
	puts   int // writes of epoch keys
}

// client returns a client whose requests the catcher sees.
func (c *entryCatcher) client(t *testing.T, names ...string) *clientv3.Client {
	t.Helper()
	c.names, c.caught = make(map[string]bool), make(map[string][]func() (bool, error))
	for _, name := range names {
		c.names[name] = true
	}
	interceptor := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		send := func() error { return invoke(ctx, method, req, reply, cc, opts...) }
		if _, put := req.(*pb.PutRequest); put {
			c.mu.Lock()
			c.puts++
			c.mu.Unlock()
			if f := c.onEpoch.Load(); f != nil {
				return (*f)(ctx, send)
			}
		}
		txn, ok := req.(*pb.TxnRequest)
		if !ok {
			return send()
		}
		name, ok := c.catch(txn, func() (bool, error) {
			resp := &pb.TxnResponse{}
			err := invoke(context.WithoutCancel(ctx), method, req, resp, cc)
			return resp.Succeeded, err
		})
		if !ok {
			return send()
		}
		if c.carriedOut {
			if _, err := c.carryOut(name); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return connectWith(t, clientv3.Config{
		Endpoints: []string{server(t).Endpoint()}, DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(interceptor)},
	})
}

func (c *entryCatcher) catch(txn *pb.TxnRequest, send func() (bool, error)) (name string, caught bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range txn.Success {
		name := path.Dir(string(op.GetRequestPut().GetKey()))
		if c.names[name] {
			c.caught[name] = append(c.caught[name], send)
			return name, true
		}
	}
	return "", false
}

// has reports whether a request for a line was caught.
func (c *entryCatcher) has(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.caught[name]) > 0
}

// carryOut carries out what was caught for a line, and reports whether that has inserted an entry.
func (c *entryCatcher) carryOut(name string) (inserted bool, err error) {
	c.mu.Lock()
	caught := slices.Clone(c.caught[name])
	c.mu.Unlock()
	for _, send := range caught {
		ok, err := send()
		if err != nil {
			return false, err
		}
		inserted = inserted || ok
	}
	return inserted, nil
}

func (c *entryCatcher) epochWrites() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.puts
}

// abandon makes a call that joins a line, and gives it up when its request was caught.
func (c *entryCatcher) abandon(t *testing.T, se store.Session, name string) {
	t.Helper()
	ctx := contextUntil(t, "the request is caught", func() bool { return c.has(name) })
	if _, err := tryEnqueue(ctx, se, name, false); !errors.Is(err, context.Canceled) {
		t.Errorf("Enqueue: got %v, want Canceled", err)
	}
}

// checkVoid carries out what was caught for a line, and checks that it inserts nothing.
func (c *entryCatcher) checkVoid(t *testing.T, name string) {
	t.Helper()
	inserted, err := c.carryOut(name)
	if err != nil {
		t.Errorf("late request: %v", err)
	}
	if inserted {
		t.Errorf("a late request has inserted an entry of %q", name)
	}
}

// The contexts of many calls end. Each write of the epoch key voids all joins of the session that are under way.
// If each of the calls made one, other calls would hardly ever get a lock.
func TestEpoch_abandonedCallsShareWrites(t *testing.T) {
	t.Parallel()
	const calls = 40
	var names []string
	for i := range calls {
		names = append(names, fmt.Sprintf("%s/%d", newName(t), i))
	}
	var c entryCatcher
	st := newStore(t, c.client(t, names...), "")
	se := openSession(t, st)
	release := make(chan struct{})
	hold := func(_ context.Context, write func() error) error {
		<-release // none of the calls is answered meanwhile
		return write()
	}
	c.onEpoch.Store(&hold)
	c.abandon(t, se, names[0])
	eventually(t, "the epoch key is about to be written", func() bool { return c.epochWrites() > 0 })
	for i, name := range names[1:] {
		c.abandon(t, se, name)
		eventually(t, "the call waits for the next write", func() bool { return etcdstore.CallsForNextEpoch(se) == i+1 })
	}
	close(release)
	eventually(t, "the epoch key is written twice", func() bool { return epochVersion(t, server(t).Client(t), se) > 1 })
	for _, name := range names {
		c.checkVoid(t, name)
	}
	// On a busy machine a write may be repeated, because its answer comes late.
	if n := epochVersion(t, server(t).Client(t), se); n > calls/2 {
		t.Errorf("the epoch key was written %d times for %d calls, want 2: one was under way while the others came", n, calls)
	}
}

// After a write of the epoch key there is a pause, in which joins are not voided.
func TestEpoch_pauseBetweenWrites(t *testing.T) {
	t.Parallel()
	first, second := newName(t), newName(t)
	var c entryCatcher
	st := newStore(t, c.client(t, first, second), "")
	times := noPollingTimes()
	times.EpochPause = longInterval
	st.SetTimes(times)
	se := openSession(t, st)
	c.abandon(t, se, first)
	eventually(t, "the epoch key is written", func() bool { return epochVersion(t, server(t).Client(t), se) > 0 })
	c.abandon(t, se, second)
	eventually(t, "the second call waits for a write", func() bool { return etcdstore.CallsForNextEpoch(se) == 1 })
	before := c.epochWrites()
	enqueue(t, se, newName(t)).withdraw(t)
	if n := c.epochWrites(); n != before {
		t.Errorf("the epoch key was written %d times more before the pause is over", n-before)
	}
}

// The pause lets joins succeed, on a slow cluster too, and does not grow with the length of an outage.
func TestEpoch_lengthOfPause(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond:       100 * time.Millisecond,
		100 * time.Millisecond: 400 * time.Millisecond,
		time.Hour:              5 * time.Second,
	} {
		if got := etcdstore.PauseAfterEpoch(took); got != want {
			t.Errorf("after a write of %v: got a pause of %v, want %v", took, got, want)
		}
	}
}

// A call is abandoned while a write of the epoch key is under way, and after that was carried out: the attempt
// knows the new epoch. It needs a further write.
// Promise: P5
func TestEpoch_writeUnderWayIsNotShared(t *testing.T) {
	t.Parallel()
	first, second := newName(t), newName(t)
	var c entryCatcher
	direct, se := server(t).Client(t), openSession(t, newStore(t, c.client(t, first), ""))
	release := make(chan struct{})
	var once sync.Once
	hold := func(_ context.Context, write func() error) error {
		err := write()
		once.Do(func() { <-release })
		return err
	}
	c.onEpoch.Store(&hold)
	c.abandon(t, se, first)
	eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
	enqueue(t, se, second).withdraw(t) // the session learns the new epoch
	c.mu.Lock()
	c.names[second] = true
	c.mu.Unlock()
	c.abandon(t, se, second)
	eventually(t, "the second call waits for the next write", func() bool { return etcdstore.CallsForNextEpoch(se) == 1 })
	close(release)
	eventually(t, "the epoch key is written again", func() bool { return epochVersion(t, direct, se) > 1 })
	c.checkVoid(t, second)
}

// An abandoned attempt has inserted its entry. The entry is deleted before the epoch key is written: others wait
// behind it.
// Promise: P5
func TestEpoch_entryIsDeletedBeforeWrite(t *testing.T) {
	t.Parallel()
	name := newName(t)
	c := entryCatcher{carriedOut: true}
	direct, se := server(t).Client(t), openSession(t, newStore(t, c.client(t, name), ""))
	never := func(ctx context.Context, _ func() error) error {
		<-ctx.Done()
		return ctx.Err()
	}
	c.onEpoch.Store(&never)
	c.abandon(t, se, name)
	eventually(t, "the entry is deleted", func() bool { return !keyExists(t, direct, name) })
}

// An abandoned attempt is carried out after its entry was looked for, and before the epoch key is written.
// Promise: P5
// Bug: CURATOR-498
func TestEpoch_entryIsDeletedAfterWrite(t *testing.T) {
	t.Parallel()
	name := newName(t)
	var c entryCatcher
	direct, se := server(t).Client(t), openSession(t, newStore(t, c.client(t, name), ""))
	var inserted atomic.Bool
	deliver := func(_ context.Context, write func() error) error {
		if ok, err := c.carryOut(name); ok && err == nil {
			inserted.Store(true)
		}
		return write()
	}
	c.onEpoch.Store(&deliver)
	c.abandon(t, se, name)
	eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
	if !inserted.Load() {
		t.Fatal("precondition failed: the late request has not inserted the entry")
	}
	eventually(t, "the entry is deleted", func() bool { return !keyExists(t, direct, name) })
}

// The servers refuse the write of the epoch key. It is repeated until they carry it out.
// Promise: P5
func TestEpoch_refusedWriteIsRepeated(t *testing.T) {
	t.Parallel()
	name := newName(t)
	var c entryCatcher
	direct, se := server(t).Client(t), openSession(t, newStore(t, c.client(t, name), ""))
	var refused atomic.Bool
	refuse := func(_ context.Context, write func() error) error {
		if !refused.Swap(true) {
			return rpctypes.ErrGRPCPermissionDenied
		}
		return write()
	}
	c.onEpoch.Store(&refuse)
	c.abandon(t, se, name)
	eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
	c.checkVoid(t, name)
}

// A call that was answered, and fails afterwards, deletes its entry and needs no write of the epoch key. Here the
// keys of other locks fill the read of the line, and the read that follows is refused.
// Promise: P5
func TestEpoch_notWrittenForAnsweredCall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		join func(t *testing.T, st store.Store, se store.Session, name string) error
	}{
		{"one lock", func(t *testing.T, _ store.Store, se store.Session, name string) error {
			_, err := tryEnqueue(t.Context(), se, name, false)
			return err
		}},
		{"several locks", func(t *testing.T, st store.Store, se store.Session, name string) error {
			reqs := []store.Request{
				{Name: newName(t), Notify: func(store.Standing) {}}, {Name: name, Notify: func(store.Standing) {}},
			}
			_, err := st.Capabilities().EnqueueAll(t.Context(), se, reqs)
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cli, intercept := interceptedClient(t)
			direct, st, name := server(t).Client(t), newStore(t, cli, ""), newName(t)
			st.SetSizes(2, 2, 2)
			var refuse atomic.Bool
			f := handler(func(_ context.Context, request string, send func() error) error {
				if refuse.Load() && request == "Range" {
					return rpctypes.ErrGRPCPermissionDenied
				}
				return send() // waits for the reply, so every attempt is answered, however slow the machine is
			})
			intercept.Store(&f)
			se := openSession(t, st)
			var others []*testEntry
			for i := range 4 {
				others = append(others, enqueue(t, se, fmt.Sprintf("%s/%d", name, i)))
			}
			refuse.Store(true)
			if err := tt.join(t, st, se, name); !errors.Is(err, rpctypes.ErrPermissionDenied) {
				t.Fatalf("got %v, want ErrPermissionDenied", err)
			}
			refuse.Store(false)
			eventually(t, "only the entries of the other locks are left", func() bool {
				return len(keysUnder(t, direct, name)) == len(others)
			})
			for range 5 { // a write would come meanwhile
				enqueue(t, se, newName(t)).withdraw(t)
			}
			if n := epochVersion(t, direct, se); n != 0 {
				t.Errorf("the epoch key was written %d times, want none", n)
			}
		})
	}
}

// The servers refuse the write of the epoch key. An entry that is inserted late is deleted all the same.
// Promise: P5
func TestEpoch_entryIsDeletedWhileWritesAreRefused(t *testing.T) {
	t.Parallel()
	name := newName(t)
	var c entryCatcher
	direct, se := server(t).Client(t), openSession(t, newStore(t, c.client(t, name), ""))
	refuse := func(context.Context, func() error) error { return rpctypes.ErrGRPCPermissionDenied }
	c.onEpoch.Store(&refuse)
	c.abandon(t, se, name)
	eventually(t, "a write is refused", func() bool { return c.epochWrites() > 0 })
	if inserted, err := c.carryOut(name); !inserted || err != nil {
		t.Fatalf("the late attempt: inserted %v, %v", inserted, err)
	}
	eventually(t, "the entry is deleted", func() bool { return !keyExists(t, direct, name) })
}

// A set that is refused, after an attempt without an answer, returns without waiting for the next write of the
// epoch key.
func TestEpoch_refusedSetDoesNotWait(t *testing.T) {
	t.Parallel()
	first, held, other := newName(t), newName(t), newName(t)
	var c entryCatcher
	st := newStore(t, c.client(t, first, other), "")
	times := noPollingTimes()
	times.EpochPause = longInterval
	st.SetTimes(times)
	direct, se := server(t).Client(t), openSession(t, st)
	enqueue(t, openSession(t, newStore(t, direct, "")), held)
	c.abandon(t, se, first)
	eventually(t, "the epoch key is written", func() bool { return epochVersion(t, direct, se) > 0 })
	refused := make(chan error, 1)
	go func() {
		ignore := func(store.Standing) {}
		_, err := st.Capabilities().EnqueueAll(t.Context(), se, []store.Request{
			{Name: other, Try: true, Notify: ignore}, {Name: held, Try: true, Notify: ignore},
		})
		refused <- err
	}()
	eventually(t, "the first attempt gets no answer", func() bool { return c.has(other) })
	c.mu.Lock()
	c.names[other] = false // the next one does
	c.mu.Unlock()
	select {
	case err := <-refused:
		if _, ok := errors.AsType[*store.HeldError](err); !ok {
			t.Errorf("got %v, want that one of the locks is held", err)
		}
	case <-time.After(testTimeout):
		t.Errorf("not within %v: the set is refused", testTimeout)
	}
}
