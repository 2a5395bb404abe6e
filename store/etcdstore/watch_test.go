package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// watchAll watches all lines of a store. It returns a channel that receives a value for each call.
func watchAll(t *testing.T, st store.Store) <-chan struct{} {
	t.Helper()
	calls := make(chan struct{}, 1000)
	startWatch(t, st, "", func([]string) { calls <- struct{}{} })
	wait(t, calls, "the watch is open")
	return calls
}

// watchNames watches the lines with a prefix. It returns a channel that receives the names of each call
// but the first.
func watchNames(t *testing.T, st store.Store, prefix string) <-chan []string {
	t.Helper()
	calls := make(chan []string, 1000)
	startWatch(t, st, prefix, func(names []string) { calls <- names })
	if names := nextCall(t, calls); names != nil {
		t.Fatalf("the first call has the names %q, want none", names)
	}
	return calls
}

// startWatch starts a watch that ends with the test.
func startWatch(t *testing.T, st store.Store, prefix string, changed func(names []string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := st.Watch(ctx, prefix, changed); !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// nextCall waits for a call of a watch, and returns its names.
func nextCall(t *testing.T, calls <-chan []string) []string {
	t.Helper()
	select {
	case names := <-calls:
		return names
	case <-time.After(testTimeout):
		t.Fatalf("not within %v: the watch reports a change", testTimeout)
		return nil
	}
}

// nextNames is nextCall for a call with names. On a busy machine the server may not answer in time. Then there is a call
// without names, because any line may have changed; those that have are named nevertheless.
func nextNames(t *testing.T, calls <-chan []string) (names []string) {
	t.Helper()
	for names == nil {
		names = nextCall(t, calls)
	}
	return names
}

// awaitNames waits until calls have had all of the names.
func awaitNames(t *testing.T, calls <-chan []string, want ...string) {
	t.Helper()
	for missing := want; len(missing) > 0; {
		names := nextNames(t, calls)
		missing = slices.DeleteFunc(missing, func(name string) bool { return slices.Contains(names, name) })
	}
}

// wantNoNames fails if a line was named that has not changed. It returns how many calls were without names, as in
// nextNames.
func wantNoNames(t *testing.T, calls <-chan []string) (without int) {
	t.Helper()
	for len(calls) > 0 {
		if names := <-calls; names != nil {
			t.Fatalf("the call %q without a change", names)
		}
		without++
	}
	return without
}

// awaitLength waits for a call after which the line has the given number of entries.
func awaitLength(t *testing.T, calls <-chan struct{}, st store.Store, name string, length int) {
	t.Helper()
	for {
		wait(t, calls, fmt.Sprintf("a call after which the line has %d entries", length))
		for {
			// The caller reads the line, and repeats a read that fails.
			l, err := st.Line(t.Context(), name)
			if err == nil && len(l.Entries) == length {
				return
			}
			if err == nil {
				break
			}
		}
	}
}

// Promise: P7
// Bug: etcd #16223
func TestWatch_survivesCompaction(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	direct := e.Client(t)
	proxy, name := testservers.NewProxy(t, e.Endpoint()), newName(t)
	calls := watchAll(t, newStore(t, connect(t, proxy.Addr()), ""))
	other := newStore(t, direct, "")

	proxy.Hold()
	enqueue(t, openSession(t, other), name)
	resp, err := direct.Put(t.Context(), "other", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	proxy.Release()
	awaitLength(t, calls, other, name, 1)
}

// Promise: P7
func TestWatch_survivesServerRestart(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	name := newName(t)
	st := newStore(t, e.Client(t), "")
	calls := watchAll(t, st)
	se := openSession(t, st)
	j := enqueue(t, se, name)
	awaitLength(t, calls, st, name, 1)
	e.Restart()
	j.withdraw(t)
	awaitLength(t, calls, st, name, 0)
}

// The watch's connection stops delivering data without an error. The other connection works.
// Promise: P7
func TestWatch_silentStreamOnlyDelays(t *testing.T) {
	t.Parallel()
	name := newName(t)
	one, two := testservers.NewProxy(t, server(t).Endpoint()), testservers.NewProxy(t, server(t).Endpoint())
	cli := connect(t, one.Addr(), two.Addr())
	direct := newStore(t, server(t).Client(t), "")
	se := openSession(t, direct)
	eventually(t, "both connections are open", func() bool {
		_, err := cli.Get(t.Context(), "x")
		return err == nil && one.Connections() > 0 && two.Connections() > 0
	})
	st := newStore(t, cli, "")
	times := noPollingTimes()
	times.ResyncInterval = 200 * time.Millisecond // then the watch is replaced
	times.WatchTimeout = etcdstore.DefaultTimes().WatchTimeout
	st.SetTimes(times)
	calls := watchAll(t, st)
	// It is unknown which connection the watch uses, so each is silenced in turn.
	for _, proxy := range []*testservers.Proxy{one, two} {
		proxy.Hold()
		j := enqueue(t, se, name)
		awaitLength(t, calls, direct, name, 1)
		j.withdraw(t)
		awaitLength(t, calls, direct, name, 0)
		proxy.Release()
	}
}

// lossyWatches counts the watches that a client opens, and makes it lose responses.
type lossyWatches struct {
	lose         atomic.Int32 // how many of the next responses with events are lost
	loseProgress atomic.Bool  // all responses about the progress are lost
	delay        atomic.Int64 // how long each response with events takes

	mu     sync.Mutex
	opened map[string]watchRequest // the last ones, by key
	anew   int                     // how many others started from the present, and so skipped changes
}

// watchRequest is the nth request for a watch of a key.
type watchRequest struct {
	n    int
	from int64 // revision
}

func (l *lossyWatches) option() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return lossyStream{s, l}, err
	})
}

type lossyStream struct {
	grpc.ClientStream
	watches *lossyWatches
}

func (s lossyStream) SendMsg(m any) error {
	if req, ok := m.(*pb.WatchRequest); ok && req.GetCreateRequest() != nil {
		key := string(req.GetCreateRequest().Key)
		from := req.GetCreateRequest().StartRevision
		s.watches.mu.Lock()
		n := s.watches.opened[key].n + 1
		s.watches.opened[key] = watchRequest{n, from}
		if n > 1 && from == 0 {
			s.watches.anew++
		}
		s.watches.mu.Unlock()
	}
	return s.ClientStream.SendMsg(m)
}

func (s lossyStream) RecvMsg(m any) error {
	for {
		err := s.ClientStream.RecvMsg(m)
		resp, ok := m.(*pb.WatchResponse)
		if err != nil || !ok || resp.Created || resp.Canceled {
			return err
		}
		lost := s.watches.loseProgress.Load()
		if len(resp.Events) > 0 {
			time.Sleep(time.Duration(s.watches.delay.Load()))
			lost = s.watches.lose.Add(-1) >= 0
		}
		if !lost {
			return nil
		}
	}
}

// newLossyStore returns a store that replaces quiet watches soon, and the watches of its client.
func newLossyStore(t *testing.T, e etcd) (*etcdstore.Store, *lossyWatches) {
	t.Helper()
	watches := &lossyWatches{opened: make(map[string]watchRequest)}
	st := newStore(t, connectWith(t, clientv3.Config{Endpoints: []string{e.Endpoint()}, DialOptions: []grpc.DialOption{watches.option()}}), "")
	times := noPollingTimes()
	times.ResyncInterval, times.WatchTimeout = 50*time.Millisecond, longInterval
	st.SetTimes(times)
	return st, watches
}

// watchNames is the function of that name for a store with these watches, and waits until the lines' watch is open. The
// first call does not show that: on a busy machine it may tell that the server has not answered yet. Changes before the
// watch is open are not named.
func (l *lossyWatches) watchNames(t *testing.T, st store.Store, prefix string) <-chan []string {
	t.Helper()
	calls := watchNames(t, st, prefix)
	eventually(t, "a watch continues where the first has ended", func() bool {
		opened := l.last()
		for _, w := range opened {
			if w.from == 0 {
				return false
			}
		}
		return len(opened) > 0
	})
	return calls
}

// awaitReplacements waits until each watch has been replaced twice.
func (l *lossyWatches) awaitReplacements(t *testing.T) {
	t.Helper()
	before := l.last()
	eventually(t, "quiet watches are replaced", func() bool {
		now := l.last()
		for key, w := range before {
			if now[key].n < w.n+2 {
				return false
			}
		}
		return true
	})
}

// awaitStartAfter waits until each watch has been replaced by one that starts after a revision.
func (l *lossyWatches) awaitStartAfter(t *testing.T, revision int64) {
	t.Helper()
	eventually(t, "quiet watches start from later revisions", func() bool {
		for _, w := range l.last() {
			if w.from <= revision {
				return false
			}
		}
		return true
	})
}

// wantContinued fails if a watch did not continue where the one before it ended.
func (l *lossyWatches) wantContinued(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.anew > 0 {
		t.Errorf("%d watches started from the present, want all to continue", l.anew)
	}
}

func (l *lossyWatches) last() map[string]watchRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.opened)
}

// A watch that has stopped delivering is replaced by another one, which delivers what was missed, by name.
// Promise: P7
func TestWatch_missedChangesAreNamed(t *testing.T) {
	t.Parallel()
	e := startEtcd(t) // not shared, so that the missed revisions follow the known ones
	st, watches := newLossyStore(t, e)
	other := newStore(t, e.Client(t), "")
	se, prefix := openSession(t, other), newName(t)
	calls := watches.watchNames(t, st, prefix)
	var names []string
	for i := range 3 {
		watches.lose.Store(1)
		names = append(names, fmt.Sprintf("%s/%d", prefix, i))
		enqueue(t, se, names[i])
		awaitNames(t, calls, names[i])
		if watches.lose.Load() > 0 {
			t.Fatal("the watch has lost no response")
		}
	}
	// All entries of a session go in one revision.
	watches.lose.Store(1)
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitNames(t, calls, names...)
}

// A server without a processor takes longer for the events of a watch than a watch is kept that is quiet. The watches
// are kept longer then, so that one of them delivers the events.
// Promise: P7
func TestWatch_slowEventsArrive(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st, watches := newLossyStore(t, e)
	se, prefix := openSession(t, newStore(t, e.Client(t), "")), newName(t)
	calls := watches.watchNames(t, st, prefix)
	watches.delay.Store(int64(100 * time.Millisecond)) // a quiet watch is replaced after 50 ms
	for i := range 3 {
		name := fmt.Sprintf("%s/%d", prefix, i)
		enqueue(t, se, name)
		awaitNames(t, calls, name)
	}
	watches.wantContinued(t)
}

// A watch that begins anew starts at the present. It is not kept longer because the watches before it were behind.
func TestWatch_beginsAnewNotBehind(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	revision := put(t, e.Client(t), 2)
	for name, c := range map[string]struct {
		next     int64
		failures int32 // of the first requests
		verify   error
		prepare  func(st *etcdstore.Store)
	}{
		"far behind":     {next: 1, prepare: func(st *etcdstore.Store) { st.SetMaxCatchUp(1) }},
		"data restored":  {next: revision + 100},
		"failed attempt": {next: revision, failures: 1},
		"out of step":    {next: revision, verify: etcdstore.ErrOutOfStep},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var failures atomic.Int32
			failures.Store(c.failures)
			st := newStore(t, intercepted(t, e, func(context.Context, any) error {
				if failures.Add(-1) >= 0 {
					return status.Error(codes.Unknown, "a failure of the test") // the etcd client does not repeat it
				}
				return nil
			}), "")
			if c.prepare != nil {
				c.prepare(st)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			behind, err := st.BehindAtBegin(ctx, newName(t), c.next, c.verify, c.failures > 0)
			if err != nil {
				t.Fatal(err)
			}
			if behind != 0 {
				t.Errorf("the watch begins anew with a count of %d watches behind, want 0", behind)
			}
		})
	}
}

// The replacement of a quiet watch causes no call.
func TestWatch_quietWithoutCalls(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st, watches := newLossyStore(t, e)
	se, prefix := openSession(t, newStore(t, e.Client(t), "")), newName(t)
	calls := watches.watchNames(t, st, prefix)
	unnamed := 0
	for i := range 3 {
		watches.awaitReplacements(t)
		unnamed += wantNoNames(t, calls)
		name := fmt.Sprintf("%s/%d", prefix, i)
		enqueue(t, se, name)
		awaitNames(t, calls, name)
	}
	watches.wantContinued(t)
	if unnamed >= 6 { // three times two watches were replaced
		t.Errorf("got %d calls without names", unnamed)
	}
}

// On a cluster, each watch may be on another member, which may not have the newest revisions yet.
// Promise: P7
func TestWatch_replacedOnCluster(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	st := newStore(t, connect(t, cluster.Endpoints()...), "")
	times := noPollingTimes()
	times.ResyncInterval, times.WatchTimeout = 10*time.Millisecond, longInterval
	st.SetTimes(times)
	se, prefix := openSession(t, newStore(t, connect(t, cluster.Endpoints()...), "")), newName(t)
	calls := watchNames(t, st, prefix)
	rounds := 0
	for i := 0; rounds < 6; i++ {
		if i == 60 {
			t.Fatal("the watch names the changes in fewer than one of ten rounds")
		}
		missing := make(map[string]bool)
		for j := range 5 {
			name := fmt.Sprintf("%s/%d-%d", prefix, i, j)
			enqueue(t, se, name)
			missing[name] = true
		}
		for rounds++; len(missing) > 0; {
			names := nextCall(t, calls)
			if names == nil { // the cluster has not answered in time: any line may have changed
				rounds--
				break
			}
			for _, name := range names {
				delete(missing, name)
			}
		}
	}
}

// The limit of slots is no part of the entries of its line, and may admit some of them.
// Promise: P7
func TestWatch_reportsLimits(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	other := newStore(t, e.Client(t), "")
	setLimit := other.Capabilities().SetLimit
	for _, prefix := range []string{"", "name"} {
		st, watches := newLossyStore(t, e)
		calls := watches.watchNames(t, st, prefix)
		for i := range 3 {
			watches.awaitReplacements(t)
			watches.lose.Store(int32(i % 2))
			if err := setLimit(t.Context(), "name/1", 1+i); err != nil {
				t.Fatal(err)
			}
			awaitNames(t, calls, "name/1")
		}
		if err := setLimit(t.Context(), "elsewhere", 1); err != nil {
			t.Fatal(err)
		}
		if err := setLimit(t.Context(), "name/1", 0); err != nil {
			t.Fatal(err)
		}
		if prefix == "" {
			awaitNames(t, calls, "elsewhere", "name/1")
		} else if names := nextNames(t, calls); !slices.Equal(names, []string{"name/1"}) {
			t.Errorf("got a call with the names %q, want only the one with the prefix", names)
		}
		watches.wantContinued(t)
	}
}

// Other clients change other keys. A quiet watch does not fall behind by that, so it need not skip any
// changes.
func TestWatch_changesOfOtherKeys(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	cli := e.Client(t)
	st, watches := newLossyStore(t, e)
	st.SetMaxCatchUp(20)
	times := noPollingTimes()
	times.WatchTimeout = longInterval
	times.ResyncInterval = 400 * time.Millisecond // etcd knows the progress of a watch of past changes after 100 ms
	st.SetTimes(times)
	se, prefix := openSession(t, newStore(t, cli, "")), newName(t)
	calls := watches.watchNames(t, st, prefix)
	for i := range 3 {
		watches.awaitStartAfter(t, put(t, cli, 10))
		wantNoNames(t, calls)
		name := fmt.Sprintf("%s/%d", prefix, i)
		watches.lose.Store(1)
		enqueue(t, se, name)
		awaitNames(t, calls, name)
	}
	watches.wantContinued(t)
}

// A watch that has fallen far behind, here because etcd does not reply about its progress, continues at the
// present, and says that any line may have changed.
// Promise: P7
func TestWatch_skipsChangesIfFarBehind(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	cli := e.Client(t)
	st, watches := newLossyStore(t, e)
	st.SetMaxCatchUp(10)
	watches.loseProgress.Store(true)
	se, prefix := openSession(t, newStore(t, cli, "")), newName(t)
	calls := watches.watchNames(t, st, prefix)
	watches.lose.Store(1)
	enqueue(t, se, prefix+"/1")
	eventually(t, "the watch has lost a response", func() bool { return watches.lose.Load() <= 0 })
	put(t, cli, 11)
	awaitAnyLine(t, calls, se, prefix+"/2")
}

// awaitAnyLine waits for a call without names, and then, by joining lines, for one with names: the watch
// works again.
func awaitAnyLine(t *testing.T, calls <-chan []string, se store.Session, prefix string) {
	t.Helper()
	for nextCall(t, calls) != nil {
	}
	for i := 0; ; i++ { // the watch of the limits may call without names once more
		enqueue(t, se, fmt.Sprintf("%s/%d", prefix, i))
		if nextCall(t, calls) != nil {
			return
		}
	}
}

// put changes a key n times that is not about a lock. It returns the revision of the last change.
func put(t *testing.T, cli *clientv3.Client, n int) (revision int64) {
	t.Helper()
	for range n {
		resp, err := cli.Put(t.Context(), "other", "")
		if err != nil {
			t.Fatal(err)
		}
		revision = resp.Header.Revision
	}
	return revision
}

// The data are restored from a backup. Changes after that have revisions that the watch has passed already.
// Promise: P7
func TestWatch_survivesRestoreOfData(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	cli := e.Client(t)
	st, watches := newLossyStore(t, e)
	other, prefix := newStore(t, cli, ""), newName(t)
	calls := watches.watchNames(t, st, prefix)
	backup := filepath.Join(t.TempDir(), "backup")
	e.Kill()
	if err := os.CopyFS(backup, os.DirFS(e.DataDir())); err != nil {
		t.Fatal(err)
	}
	e.Start()
	e.AwaitReady()
	se := openSession(t, other)
	for i := range 5 {
		name := fmt.Sprintf("%s/%d", prefix, i)
		enqueue(t, se, name)
		names := nextCall(t, calls)
		for names == nil { // the server was down
			names = nextCall(t, calls)
		}
		if !slices.Equal(names, []string{name}) {
			t.Fatalf("got a call with the names %q, want %q", names, name)
		}
	}
	e.Kill()
	if err := errors.Join(os.RemoveAll(e.DataDir()), os.CopyFS(e.DataDir(), os.DirFS(backup))); err != nil {
		t.Fatal(err)
	}
	e.Start()
	e.AwaitReady()
	awaitAnyLine(t, calls, openSession(t, other), prefix+"/new")
}

// A watch ends when the permission to read is taken away.
func TestWatch_permissionRevoked(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	st := newStore(t, connectWith(t, clientv3.Config{
		Endpoints: []string{e.Endpoint()}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
	}), "app/")
	times := noPollingTimes()
	times.ResyncInterval = 50 * time.Millisecond
	st.SetTimes(times)
	root := connectWith(t, clientv3.Config{
		Endpoints: []string{e.Endpoint()}, Username: "root", Password: "rootpw", DialTimeout: testTimeout,
	})
	ctx, first := contextFor(t, testTimeout), true
	err := st.Watch(ctx, "", func([]string) {
		if first {
			first = false
			if _, err := root.RoleRevokePermission(ctx, "app", "app/", clientv3.GetPrefixRangeEnd("app/")); err != nil {
				t.Error(err)
			}
		}
	})
	wantErrorContains(t, err, "watch", "permission denied", `"app/"`)
}

// While no watch starts, nobody knows which lines have changed. Readers must not rely on the last notification.
func TestWatch_anyLineWhileNoneStarts(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	st := newStore(t, connect(t, proxy.Addr()), "")
	times := noPollingTimes()
	times.ResyncInterval, times.WatchTimeout = 200*time.Millisecond, 200*time.Millisecond
	st.SetTimes(times)
	calls := make(chan []string, 1000)
	startWatch(t, st, newName(t), func(names []string) { calls <- names })
	nextCall(t, calls)
	proxy.Hold()
	for range 2 {
		if names := nextCall(t, calls); names != nil {
			t.Fatalf("the store does not answer: got a call with the names %q, want none", names)
		}
	}
	proxy.Release()
}

// Changes of keys that are not about locks cause no call.
func TestWatch_ignoresOtherKeys(t *testing.T) {
	t.Parallel()
	e := startEtcd(t) // not shared, because other tests' locks cause calls
	cli, name := e.Client(t), newName(t)
	st := newStore(t, cli, "")
	se, calls := openSession(t, st), watchNames(t, st, "")
	for round := range 20 {
		for _, key := range []string{"config", "registry/pods/default/web-1", "a/b/", "/", "a", ".stile/1f", "a/0x1f"} {
			if _, err := cli.Put(t.Context(), key, "{}"); err != nil {
				t.Fatal(err)
			}
			if _, err := cli.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		lock := fmt.Sprintf("%s-%d", name, round)
		enqueue(t, se, lock)
		names := nextCall(t, calls) // it comes after any call that the keys could cause
		if slices.Equal(names, []string{lock}) {
			return
		}
		// On a busy machine the server may not answer in time. Then there is a call without names.
		if slices.ContainsFunc(names, func(n string) bool { return !strings.HasPrefix(n, name) }) {
			t.Fatalf("got a call with the names %q, want only %q", names, lock)
		}
	}
	t.Error("there is a call without names each time that other keys change")
}

func TestWatch_readNotPermitted(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	cli := connectWith(t, clientv3.Config{
		Endpoints: []string{e.Endpoint()}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
	})
	st := newStore(t, cli, "app/")
	calls := watchAll(t, st)
	held := enqueue(t, openSession(t, st), "lock")
	awaitLength(t, calls, st, "lock", 1)
	waiter := enqueue(t, openSession(t, st), "lock")
	waiter.await(t, store.Waiting)

	for _, prefix := range []string{"", "lock"} {
		ctx := contextFor(t, testTimeout)
		err := newStore(t, cli, "elsewhere/").Watch(ctx, prefix, func(names []string) {
			if names != nil { // without names it says that the server has not answered in time
				t.Errorf("called with the names %q without permission to read", names)
			}
		})
		wantErrorContains(t, err, "watch", fmt.Sprintf("%q", prefix), e.Endpoint(), "permission denied", "read and write", `"elsewhere/"`)
		if ctx.Err() != nil {
			t.Error("Watch did not return before its context ended")
		}
	}
	// The denied watches have ended no other watch.
	held.withdraw(t)
	waiter.await(t, store.Admitted)
	awaitLength(t, calls, st, "lock", 1)
}
