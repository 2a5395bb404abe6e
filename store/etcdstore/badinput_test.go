package etcdstore_test

import (
	"cmp"
	"context"
	"errors"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// wantErrorContains checks that an error's text contains all of what.
func wantErrorContains(t *testing.T, err error, what ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("got no error, want one that contains %q", what)
		return
	}
	for _, w := range what {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got error %q, want it to contain %q", err, w)
		}
	}
}

// Bug: madelson/DistributedLock
func TestLock_nameIsPrefixOfAnother(t *testing.T) {
	t.Parallel()
	a := newName(t)
	for _, names := range [][2]string{{a, a + "/b"}, {a + "/b/c", a + "/b"}, {a + "x", a}} {
		one, two := newClient(t, server(t).Client(t), longTTL), newClient(t, server(t).Client(t), longTTL)
		three := newClient(t, server(t).Client(t), longTTL)
		first, second := lock(t, one, names[0]), lock(t, two, names[1])
		// The same with waiters.
		between := join(t, three, names[0])
		firstWaiter, secondWaiter := join(t, two, names[0]), join(t, one, names[1])
		if n, m := firstWaiter.Ahead(), secondWaiter.Ahead(); n != 2 || m != 1 {
			t.Errorf("%q: %d and %d entries are ahead of the waiters, want 2 and 1", names, n, m)
		}
		if _, err := one.Mutex(names[1]).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock of %q: got %v, want ErrHeld", names[1], err)
		}
		release(t, second)
		second = awaitHold(t, secondWaiter)
		// When firstWaiter is notified of this departure, it has received everything before it.
		if err := between.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the waiter is notified that another has left", func() bool { return firstWaiter.Ahead() < 2 })
		select {
		case <-firstWaiter.Ready():
			t.Errorf("a release of %q admitted the waiter of %q", names[1], names[0])
		case <-first.Lost():
			t.Errorf("a release of %q ended the hold of %q", names[1], names[0])
		default:
		}
		release(t, first)
		release(t, awaitHold(t, firstWaiter))
		// A try, while there is an entry whose key only resembles one in this line.
		free, err := two.Mutex(names[0]).TryLock(t.Context())
		if err != nil {
			t.Fatalf("TryLock of %q while %q is held: %v", names[0], names[1], err)
		}
		release(t, free)
		release(t, second)
	}
}

func TestOpen_belowServersMinTTL(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, "--heartbeat-interval=100", "--election-timeout=1000") // etcd's defaults
	rec := recorderWithoutCancel()                                           // or the store may give up revoking the lease
	cli := connectWith(t, rec.config(e.Endpoint()))
	st := newStore(t, cli, "")
	_, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Second})
	wantErrorContains(t, err, "TTL 1s", "minimum", "use 2s or more", e.Endpoint())
	leases, err := cli.Leases(t.Context())
	if err != nil || len(leases.Leases) > 0 {
		t.Errorf("got leases %v, %v; want none, because the unsuitable one is revoked", leases, err)
	}
	se, err := st.Open(t.Context(), store.SessionOptions{TTL: 1500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if ttl := se.Terms().TTL; ttl != 2*time.Second {
		t.Errorf("requested 1.5 s: got %v, want it rounded up to 2 s", ttl)
	}
	closeQuickly(se.Close)
}

func TestStore_unreachableEndpoint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		fail func(*testservers.Proxy)
	}{
		{"refused", (*testservers.Proxy).Refuse},
		{"silent", func(p *testservers.Proxy) { p.Hold() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proxy := testservers.NewProxy(t, server(t).Endpoint())
			tt.fail(proxy)
			st := newStore(t, connect(t, proxy.Addr()), "")
			ctx := contextFor(t, testTimeout)
			_, err := st.Open(ctx, store.SessionOptions{TTL: 10 * time.Second})
			wantErrorContains(t, err, proxy.Addr(), "open a session", "check that the endpoints are correct")
			if ctx.Err() != nil {
				t.Error("Open did not return before its context ended")
			}
		})
	}
}

func TestStore_unreachableEndpointShortContext(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	proxy.Hold()
	st := newStore(t, connect(t, proxy.Addr()), "")
	_, err := st.Open(contextFor(t, 300*time.Millisecond), store.SessionOptions{TTL: 10 * time.Second})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open: got %v, want DeadlineExceeded", err)
	}
	wantErrorContains(t, err, proxy.Addr(), "open a session")
	_, err = st.Line(contextFor(t, 300*time.Millisecond), "lock")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Line: got %v, want DeadlineExceeded", err)
	}
	wantErrorContains(t, err, proxy.Addr(), "read the line")
}

// startEtcdWithAuth starts a server with the user "root" and the user "app", which may access only
// the keys under "app/".
func startEtcdWithAuth(t *testing.T, flags ...string) etcd {
	t.Helper()
	e := startEtcd(t, append(flags, "--bcrypt-cost=4")...)
	cli := e.Client(t)
	ctx := t.Context()
	for _, err := range []error{
		errorOf(cli.UserAdd(ctx, "root", "rootpw")),
		errorOf(cli.UserGrantRole(ctx, "root", "root")),
		errorOf(cli.RoleAdd(ctx, "app")),
		errorOf(cli.RoleGrantPermission(ctx, "app", "app/", clientv3.GetPrefixRangeEnd("app/"),
			clientv3.PermissionType(clientv3.PermReadWrite))),
		errorOf(cli.UserAdd(ctx, "app", "secret-of-app")),
		errorOf(cli.UserGrantRole(ctx, "app", "app")),
		errorOf(cli.AuthEnable(ctx)),
	} {
		if err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
			t.Fatal(err)
		}
	}
	return e
}

func errorOf[T any](_ T, err error) error { return err }

func TestAuth_permissionOnPrefix(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	proxy := testservers.NewProxy(t, e.Endpoint())
	cli := connectWith(t, clientv3.Config{
		Endpoints: []string{proxy.Addr()}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
	})
	st := newStore(t, cli, "app/")
	one, two := openSession(t, st), openSession(t, st)
	held := enqueue(t, one, "lock")
	held.await(t, store.Admitted)
	waiter := enqueue(t, two, "lock")
	waiter.await(t, store.Waiting)
	if err := two.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	held.withdraw(t)
	waiter.await(t, store.Admitted)

	// An attempt in doubt makes the store write its epoch key, which the permission covers too.
	root := connectWith(t, clientv3.Config{Endpoints: []string{e.Endpoint()}, Username: "root", Password: "rootpw", DialTimeout: testTimeout})
	proxy.CutReplies()
	ctx := contextUntil(t, "the entry is inserted", func() bool { return keyExists(t, root, "app/other") })
	if _, err := tryEnqueue(ctx, one, "other", false); !errors.Is(err, context.Canceled) {
		t.Errorf("Enqueue without a reply: got %v, want Canceled", err)
	}
	proxy.Reset()
	proxy.Release()
	eventually(t, "the epoch key is written and the entry is deleted", func() bool {
		epochKey, err1 := root.Get(t.Context(), "app/.stile/"+one.ID())
		entries, err2 := root.Get(t.Context(), "app/other/", clientv3.WithPrefix())
		return err1 == nil && err2 == nil && len(epochKey.Kvs) == 1 && len(entries.Kvs) == 0
	})

	lines, err := store.CollectLines(st.Lines(t.Context(), ""))
	if err != nil || len(lines) != 1 || lines[0].Name != "lock" {
		t.Errorf("got lines %+v, %v; want lock alone", lines, err)
	}

	// Under another prefix the user has no permission.
	elsewhere := openSession(t, newStore(t, cli, "elsewhere/"))
	for _, try := range []bool{false, true} {
		ctx := contextFor(t, testTimeout)
		_, err := tryEnqueue(ctx, elsewhere, "lock", try)
		wantErrorContains(t, err, "join the line", proxy.Addr(), "permission denied", "read and write", `"elsewhere/"`)
		if ctx.Err() != nil {
			t.Error("Enqueue did not return before its context ended")
		}
	}
	if err := elsewhere.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm after a request that was denied: %v", err)
	}
}

// The server forgets a client that has sent nothing for a while. A waiter that has to open its watch anew
// authenticates again, and is admitted in its turn.
// Promise: P7
// Bug: etcd #17623
func TestAuth_tokenExpiresDuringWait(t *testing.T) {
	t.Parallel()
	const tokenTTL = time.Second
	e := startEtcdWithAuth(t, "--auth-token-ttl=1")
	proxy := testservers.NewProxy(t, e.Endpoint())
	app := func(endpoint string) *clientv3.Client {
		return connectWith(t, clientv3.Config{
			Endpoints: []string{endpoint}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
		})
	}
	held := enqueue(t, openSession(t, newStore(t, app(e.Endpoint()), "app/")), "lock")
	held.await(t, store.Admitted)
	cli := app(proxy.Addr())
	session := openSession(t, newStore(t, cli, "app/"))
	waiter := enqueue(t, session, "lock")
	waiter.await(t, store.Waiting)

	time.Sleep(3 * tokenTTL) // the token must expire, which is the point of the test
	proxy.Reset()
	held.withdraw(t)
	waiter.await(t, store.Admitted)
	if err := session.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	time.Sleep(3 * tokenTTL)
	waiter.withdraw(t)
	if n := strings.Count(e.Log(), "invalid auth token"); n < 2 {
		t.Errorf("precondition failed: the server has refused %d expired tokens, want at least 2", n)
	}
}

// Credentials that are wrong from the beginning are refused by clientv3.New already.
func TestAuth_wrongCredentials(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	open := func(cli *clientv3.Client, want string) {
		t.Helper()
		_, err := newStore(t, cli, "app/").Open(t.Context(), store.SessionOptions{TTL: 10 * time.Second})
		wantErrorContains(t, err, e.Endpoint(), want)
		if err != nil && strings.Contains(err.Error(), "secret-of-app") {
			t.Errorf("the error contains the password: %v", err)
		}
		if err != nil && strings.Contains(err.Error(), "no answer") {
			t.Errorf("Open retried until its timeout: %v", err)
		}
	}
	rec := recorderWithoutCancel() // or the store may time out before a busy server answers
	cfg := rec.config(e.Endpoint())
	cfg.Username, cfg.Password, cfg.DialTimeout = "app", "secret-of-app", testTimeout
	app := connectWith(t, cfg)
	root := connectWith(t, clientv3.Config{Endpoints: []string{e.Endpoint()}, Username: "root", Password: "rootpw", DialTimeout: testTimeout})
	noCredentials := recorderWithoutCancel()
	open(connectWith(t, noCredentials.config(e.Endpoint())), "the cluster requires authentication: give a user and a password")
	if _, err := root.UserChangePassword(t.Context(), "app", "another"); err != nil {
		t.Fatal(err)
	}
	open(app, "check the user and the password")
}

func TestStore_clusterOutOfSpace(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, "--quota-backend-bytes=1000000")
	cli := e.Client(t)
	st := newStore(t, cli, "")
	se := openSession(t, st)
	held := enqueue(t, se, "held")
	held.await(t, store.Admitted)
	waiter := enqueue(t, openSession(t, st), "held")
	waiter.await(t, store.Waiting)

	var full error
	for n := 0; full == nil && n < 1000; n++ {
		_, full = cli.Put(t.Context(), "filler", strings.Repeat("x", 100_000))
	}
	if !errors.Is(full, rpctypes.ErrNoSpace) {
		t.Fatalf("filling the server: got %v, want ErrNoSpace", full)
	}
	advice := []string{e.Endpoint(), "out of space", "compact and defragment", "etcdctl alarm disarm"}
	for _, try := range []bool{false, true} {
		_, err := tryEnqueue(t.Context(), se, "another", try)
		wantErrorContains(t, err, append(advice, "join the line")...)
	}
	_, err := st.Open(t.Context(), store.SessionOptions{TTL: 10 * time.Second})
	wantErrorContains(t, err, advice...)

	// The lock can still be held, released and handed over.
	if err := se.Confirm(t.Context()); err != nil {
		t.Errorf("Confirm: %v", err)
	}
	held.withdraw(t)
	waiter.await(t, store.Admitted)
	waiter.withdraw(t)
	if err := se.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// An entry in doubt is deleted even if the epoch key cannot be written because the cluster is full.
func TestEnqueue_abortInFullCluster(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, "--quota-backend-bytes=1000000")
	direct := e.Client(t)
	cli, intercept := interceptedClientAt(t, e.Endpoint())
	se := openSession(t, newStore(t, cli, ""))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sent atomic.Bool
	f := handler(func(_ context.Context, _ string, send func() error) error {
		// Only the first request is carried out: those that clean up afterwards are lost while this
		// handler is set.
		if !sent.Swap(true) {
			_ = send()
			cancel()
		}
		return errLost
	})
	intercept.Store(&f)
	if _, err := tryEnqueue(ctx, se, "lock", false); !errors.Is(err, context.Canceled) {
		t.Fatalf("Enqueue without a reply: got %v, want Canceled", err)
	}
	var full error
	for n := 0; full == nil && n < 1000; n++ {
		_, full = direct.Put(t.Context(), "filler", strings.Repeat("x", 100_000))
	}
	if keys := keysUnder(t, direct, "lock"); len(keys) != 1 {
		t.Fatalf("precondition failed: got keys %q, want one", keys)
	}
	intercept.Store(nil)
	eventually(t, "the entry is deleted", func() bool { return len(keysUnder(t, direct, "lock")) == 0 })
}

// The request that inserts an entry uses up the cluster's space: the cluster carries it out, and replies that it is
// out of space. The caller has not got the lock, and the entry is deleted, also if that is refused at first.
// Promise: P5
func TestEnqueue_usesUpTheSpace(t *testing.T) {
	t.Parallel()
	names := []string{newName(t), newName(t)}
	for _, tt := range []struct {
		name string
		join func(st *etcdstore.Store, se store.Session) error
	}{
		{"one lock", func(_ *etcdstore.Store, se store.Session) error {
			_, err := tryEnqueue(t.Context(), se, names[0], false)
			return err
		}},
		{"several locks", func(st *etcdstore.Store, se store.Session) error {
			_, err := tryEnqueueAll(t.Context(), st, se, false, names...)
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cli, intercept := interceptedClientAt(t, server(t).Endpoint())
			st, direct := newStore(t, cli, ""), server(t).Client(t)
			se := openSession(t, st)
			var sent atomic.Int32
			f := handler(func(_ context.Context, method string, send func() error) error {
				switch {
				case path.Base(method) != "Txn":
					return send()
				case sent.Add(1) == 1:
					return cmp.Or(send(), rpctypes.ErrGRPCNoSpace)
				default:
					intercept.Store(nil)
					return rpctypes.ErrGRPCPermissionDenied
				}
			})
			intercept.Store(&f)
			if err := tt.join(st, se); !errors.Is(err, rpctypes.ErrNoSpace) {
				t.Fatalf("got %v, want ErrNoSpace", err)
			}
			for _, name := range names {
				eventually(t, "the entry is deleted", func() bool { return len(keysUnder(t, direct, name)) == 0 })
			}
			if n := epochVersion(t, direct, se); n != 0 {
				t.Errorf("the epoch key was written %d times: it voids other requests of the session", n)
			}
		})
	}
}

func TestLine_foreignKeys(t *testing.T) {
	t.Parallel()
	cli, name := server(t).Client(t), newName(t)
	c := newClient(t, server(t).Client(t), longTTL)
	lease, err := cli.Grant(t.Context(), int64(longTTL.Seconds()))
	if err != nil {
		t.Fatal(err)
	}
	strays := []string{
		name + "/config", // another program's key
		name + "/1f2e3d", // like a lease id, but without a lease
		name + "/abcdef", // with another lease
		name + "/",
	}
	for i, key := range strays {
		opts := []clientv3.OpOption{}
		if i == 2 {
			opts = append(opts, clientv3.WithLease(lease.ID))
		}
		if _, err := cli.Put(t.Context(), key, "{}", opts...); err != nil {
			t.Fatal(err)
		}
	}
	h, err := c.Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatalf("TryLock with stray keys under the name: %v", err)
	}
	release(t, h)
	lock(t, c, name)
	l, err := c.Line(t.Context(), name)
	if err != nil || len(l.Holders) != 1 || len(l.Waiters) != 0 {
		t.Errorf("got line %+v, %v; want the holder alone", l, err)
	}
	remarks := strings.Join(l.Remarks, "\n")
	for _, key := range strays {
		if !strings.Contains(remarks, `"`+key+`"`) {
			t.Errorf("got remarks %q, want one about %q", l.Remarks, key)
		}
	}
	if !strings.Contains(remarks, "delete it") {
		t.Errorf("got remarks %q, want advice", l.Remarks)
	}
}

// An entry with an unknown value excludes others like any entry. Errors contain what is known of
// it.
func TestLine_unknownValue(t *testing.T) {
	t.Parallel()
	cli := server(t).Client(t)
	c := newClient(t, server(t).Client(t), longTTL)
	for _, value := range []string{"", "some text", "{}", `{"stile":1,"mode":"unheard of"}`, `{"stile":"x"}`, "\xff\x00", "null"} {
		name := newName(t)
		se := openSession(t, newStore(t, cli, ""))
		if _, err := cli.Put(t.Context(), name+"/"+se.ID(), value, clientv3.WithLease(leaseOf(t, se))); err != nil {
			t.Fatal(err)
		}
		_, err := c.Mutex(name).TryLock(t.Context())
		if !errors.Is(err, stile.ErrHeld) {
			t.Errorf("value %q: TryLock: got %v, want ErrHeld", value, err)
		}
		wantErrorContains(t, err, name, se.ID(), "an unknown client")
		l, err := c.Line(t.Context(), name)
		if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign {
			t.Fatalf("value %q: got line %+v, %v; want one foreign holder", value, l, err)
		}
		place := join(t, c, name)
		if _, err := c.Break(t.Context(), name, l.Holders[0].Token); err != nil {
			t.Fatal(err)
		}
		awaitHold(t, place)
	}
}

func TestEnqueue_reservedName(t *testing.T) {
	t.Parallel()
	c := newClient(t, server(t).Client(t), longTTL)
	for _, name := range []string{".stile", ".stile/x", ".stile/x/y"} {
		_, err := c.Mutex(name).Lock(t.Context())
		if !errors.Is(err, stile.ErrBadName) {
			t.Errorf("Lock of %q: got %v, want ErrBadName", name, err)
		}
		wantErrorContains(t, err, ".stile")
	}
	for _, name := range []string{".stiles", "x/.stile", "x/.stile/y"} {
		release(t, lock(t, c, name))
	}
}

func TestNew_badOptions(t *testing.T) {
	t.Parallel()
	if _, err := etcdstore.New(nil, nil); err == nil {
		t.Error("New without a client: got no error")
	}
	_, err := etcdstore.New(server(t).Client(t), &etcdstore.Options{Prefix: "a\x00b"})
	wantErrorContains(t, err, "key prefix", "control character")
}
