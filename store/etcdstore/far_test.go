package etcdstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// longLine is a line of exclusive entries, each of a session of its own. For these sessions a line
// is long if more than two entries are ahead.
type longLine struct {
	name     string
	sessions []store.Session
	entries  []*testEntry
}

// newLongLine returns a line with n entries, all of which have settled: the sessions of those with
// one or two entries ahead watch the line, the others follow the entry two places ahead.
func newLongLine(t *testing.T, n int) *longLine {
	t.Helper()
	l := &longLine{name: newName(t)}
	for range n {
		l.join(t, server(t).Client(t))
	}
	return l
}

func (l *longLine) join(t *testing.T, cli *clientv3.Client) {
	t.Helper()
	l.joinUnsettled(t, cli, noPollingTimes())
	l.settled(t, len(l.entries)-1)
}

func (l *longLine) joinUnsettled(t *testing.T, cli *clientv3.Client, times etcdstore.Times) {
	t.Helper()
	st := newStore(t, cli, "")
	st.SetTimes(times)
	st.SetSizes(1, 1, 1)
	se := openSession(t, st)
	l.sessions, l.entries = append(l.sessions, se), append(l.entries, enqueue(t, se, l.name))
}

// settled waits until the entry at i is watched as its position requires.
func (l *longLine) settled(t *testing.T, i int) {
	t.Helper()
	switch i {
	case 0:
		l.entries[0].await(t, store.Admitted)
	case 1, 2:
		eventually(t, fmt.Sprintf("the session of entry %d watches the line", i), func() bool {
			return etcdstore.LineWatched(l.sessions[i], l.name)
		})
	default:
		l.follows(t, i, i-2)
	}
}

// follows waits until the session at i follows the entry at ahead.
func (l *longLine) follows(t *testing.T, i, ahead int) {
	t.Helper()
	eventually(t, fmt.Sprintf("entry %d follows entry %d", i, ahead), func() bool {
		return etcdstore.Followed(l.sessions[i], l.name) == sessionKey(l.name, l.sessions[ahead])
	})
}

// leave takes the entry at i out of the line.
func (l *longLine) leave(t *testing.T, i int) {
	t.Helper()
	l.entries[i].withdraw(t)
	l.entries = append(l.entries[:i:i], l.entries[i+1:]...)
	l.sessions = append(l.sessions[:i:i], l.sessions[i+1:]...)
}

// drain releases the lock until the line is empty. Each entry must be admitted in its turn.
func (l *longLine) drain(t *testing.T) {
	t.Helper()
	for len(l.entries) > 1 {
		l.leave(t, 0)
		l.entries[0].await(t, store.Admitted)
		for _, waiter := range l.entries[1:] {
			waiter.checkStillWaiting(t)
		}
	}
}

// checkStillWaiting checks that the entry has not been admitted, and is not gone.
func (j *testEntry) checkStillWaiting(t *testing.T) {
	t.Helper()
	for len(j.standings) > 0 {
		if st := <-j.standings; st.State != store.Waiting {
			t.Fatalf("lock %q: a waiter's standing is %v (%v)", j.name, st.State, st.Cause)
		}
	}
}

// silentWatchStream is a stream that drops the events of watches.
type silentWatchStream struct {
	grpc.ClientStream
	silent *atomic.Bool
}

func (s silentWatchStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if resp, ok := m.(*pb.WatchResponse); ok && s.silent.Load() {
		resp.Events = nil
	}
	return err
}

// dropWatchEvents returns the option of a client that receives no events of watches while silent is
// set.
func dropWatchEvents(silent *atomic.Bool) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return silentWatchStream{s, silent}, err
	})
}

// Promise: P3, P7
func TestFar_admittedInOrder(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 12)
	for i, entry := range l.entries[1:] {
		if i >= 2 && etcdstore.LineWatched(l.sessions[1+i], l.name) {
			t.Errorf("the session with %d entries ahead watches the whole line", 1+i)
		}
		entry.checkStillWaiting(t)
	}
	sessions := l.sessions
	l.drain(t)
	for i, se := range sessions[3 : len(sessions)-1] {
		if etcdstore.LineWatched(se, l.name) {
			t.Errorf("session %d watches the long line after it has left", 3+i)
		}
	}
}

// An entry that does not read the whole line when it joins counts the keys ahead of it.
func TestFar_aheadOnJoining(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 3)
	l.joinUnsettled(t, server(t).Client(t), noPollingTimes())
	if st := <-l.entries[3].standings; st.State != store.Waiting || st.Ahead != 3 {
		t.Errorf("the first standing: got %v with %d ahead, want waiting with 3", st.State, st.Ahead)
	}
}

// A followed entry may leave from the middle of the line. Its follower then follows another one.
// Promise: P7
func TestFar_followedEntryGivesUp(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 6)
	l.leave(t, 3) // the one that the last entry follows
	l.follows(t, 4, 2)
	l.leave(t, 2) // again
	l.follows(t, 3, 1)
	l.drain(t)
}

// The follower does not notice that entries behind the followed one give up, and entries ahead of
// it.
// Promise: P7
func TestFar_otherEntriesGiveUp(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 5)
	l.leave(t, 3)
	l.leave(t, 1)
	l.drain(t)
}

// All entries vanish in one revision, those ahead of the follower and its own. It must not be
// admitted.
// Promise: P1
func TestFar_deletedWithAllAhead(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 6)
	if _, err := server(t).Client(t).Delete(t.Context(), l.name+"/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	for _, entry := range l.entries[1:] {
		entry.awaitGone(t)
	}
}

// Promise: P6
func TestFar_ownEntryDeleted(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 5)
	last := len(l.entries) - 1
	if _, err := server(t).Client(t).Delete(t.Context(), sessionKey(l.name, l.sessions[last])); err != nil {
		t.Fatal(err)
	}
	l.entries[last].awaitGone(t)
	l.entries = l.entries[:last]
	l.drain(t)
}

func TestFar_ownEntryOverwritten(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 4)
	last := len(l.entries) - 1
	key := sessionKey(l.name, l.sessions[last])
	overwrite(t, key)
	l.entries[last].awaitGone(t)
	eventually(t, "the overwritten key is deleted", func() bool {
		resp, err := server(t).Client(t).Get(t.Context(), key, clientv3.WithCountOnly())
		return err == nil && resp.Count == 0
	})
	l.entries = l.entries[:last]
	l.drain(t)
}

// The followed entry leaves after the line was read and before its watch starts.
// Promise: P7
// Bug: solid_queue #456
func TestFar_followedEntryLeavesBeforeWatch(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 3)
	followed := sessionKey(l.name, l.sessions[1])
	var left atomic.Bool
	l.joinUnsettled(t, connectWith(t, clientv3.Config{
		Endpoints: []string{server(t).Endpoint()},
		DialOptions: []grpc.DialOption{onWatch(func(key string) {
			if key == followed && !left.Swap(true) {
				_, _ = server(t).Client(t).Delete(context.Background(), followed)
			}
		})},
	}), noPollingTimes())
	l.entries[1].awaitGone(t)
	l.entries = append(l.entries[:1:1], l.entries[2:]...)
	l.sessions = append(l.sessions[:1:1], l.sessions[2:]...)
	l.drain(t)
}

// Promise: P6
func TestFar_ownEntryDeletedBeforeWatch(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 3)
	var deleted atomic.Bool
	l.joinUnsettled(t, connectWith(t, clientv3.Config{
		Endpoints: []string{server(t).Endpoint()},
		DialOptions: []grpc.DialOption{onWatch(func(key string) {
			if !deleted.Swap(true) { // the first watch is that of the entry itself
				_, _ = server(t).Client(t).Delete(context.Background(), key)
			}
		})},
	}), noPollingTimes())
	l.entries[3].awaitGone(t)
}

// A session's reply for an earlier entry arrives while the session reads the end of the line for a
// later one. The read does not show the earlier entry, which is far ahead, and not gone.
// Promise: P5
func TestFar_earlierEntryOfSameSession(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 1)
	cli, intercept := interceptedClient(t)
	st := newStore(t, cli, "")
	st.SetSizes(1, 1, 1)
	se := openSession(t, st)
	inserted, reply, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var held, read atomic.Bool
	f := handler(func(_ context.Context, request string, send func() error) error {
		err := send()
		switch {
		case request == "Txn" && !held.Swap(true):
			close(inserted)
			<-reply
		case request == "Range" && !read.Swap(true):
			close(reply)
			<-returned
		}
		return err
	})
	intercept.Store(&f)
	var earlier *testEntry
	go func() {
		defer close(returned)
		var err error
		if earlier, err = tryEnqueue(t.Context(), se, l.name, false); err != nil {
			t.Error(err)
		}
	}()
	<-inserted
	for range 4 {
		enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), l.name)
	}
	later := enqueue(t, se, l.name)
	<-returned
	l.leave(t, 0)
	earlier.await(t, store.Admitted)
	later.checkStillWaiting(t)
}

// The session watches the whole line when it joins a long line. The reply for an earlier entry of it,
// which is admitted, arrives while it reads the end of the line for the later one. So the session
// has two entries, and keeps watching the whole line. When the others have left, the later entry is
// admitted.
// Promise: P7
func TestFar_admittedEarlierEntryOfSameSession(t *testing.T) {
	t.Parallel()
	name := newName(t)
	cli, intercept := interceptedClient(t)
	st := newStore(t, cli, "")
	times := noPollingTimes()
	times.IdleTimeout = longInterval
	st.SetTimes(times)
	st.SetSizes(1, 1, 1)
	se := openSession(t, st)
	holder := enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name)
	first := enqueue(t, se, name)
	eventually(t, "the session watches the line", func() bool { return etcdstore.LineWatched(se, name) })
	holder.withdraw(t)
	first.await(t, store.Admitted)
	first.withdraw(t)

	inserted, reply, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var held, read atomic.Bool
	f := handler(func(_ context.Context, request string, send func() error) error {
		err := send()
		switch {
		case request == "Txn" && !held.Swap(true):
			close(inserted)
			<-reply
		case request == "Range" && !read.Swap(true):
			close(reply)
			<-returned
		}
		return err
	})
	intercept.Store(&f)
	var earlier *testEntry
	go func() {
		defer close(returned)
		var err error
		if earlier, err = tryEnqueue(t.Context(), se, name, false); err != nil {
			t.Error(err)
		}
	}()
	<-inserted
	var others []*testEntry
	for range 4 {
		others = append(others, enqueue(t, openSession(t, newStore(t, server(t).Client(t), "")), name))
	}
	later := enqueue(t, se, name)
	<-returned
	earlier.await(t, store.Admitted)
	for _, other := range others {
		other.withdraw(t)
	}
	later.checkStillWaiting(t)
	earlier.withdraw(t)
	later.await(t, store.Admitted)
}

// A session with two waiting entries watches the whole line. When one is withdrawn, the other is
// the only one, and follows an entry as soon as a periodic read finds that it may.
// Promise: P7
func TestFar_periodicReadFindsLongLine(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 4)
	times := noPollingTimes()
	times.RecheckInterval = 20 * time.Millisecond
	l.joinUnsettled(t, server(t).Client(t), times)
	se := l.sessions[4]
	second := enqueue(t, se, l.name)
	eventually(t, "the session watches the line", func() bool { return etcdstore.LineWatched(se, l.name) })
	second.withdraw(t)
	l.follows(t, 4, 2)
	l.drain(t)
}

// onWatch returns the option of a client that calls f with the key of each watch before it requests
// the watch.
func onWatch(f func(key string)) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return watchRequestStream{s, f}, err
	})
}

type watchRequestStream struct {
	grpc.ClientStream
	f func(key string)
}

func (s watchRequestStream) SendMsg(m any) error {
	if req, ok := m.(*pb.WatchRequest); ok && req.GetCreateRequest() != nil {
		s.f(string(req.GetCreateRequest().Key))
	}
	return s.ClientStream.SendMsg(m)
}

// The followed entry leaves while its follower is disconnected.
// Promise: P7
func TestFar_followedEntryLeavesDuringDisconnection(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 3)
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	l.join(t, connect(t, proxy.Addr()))
	proxy.Refuse()
	proxy.Reset()
	for range 3 {
		l.leave(t, 0)
	}
	proxy.Accept()
	l.entries[0].await(t, store.Admitted)
}

// The watch of the followed entry reports nothing although its connection stays open. The entries
// are read periodically.
// Promise: P7
// Bug: redisson #3891
func TestFar_silentWatch(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 3)
	var silent atomic.Bool
	cli := connectWith(t, clientv3.Config{
		Endpoints:   []string{server(t).Endpoint()},
		DialOptions: []grpc.DialOption{dropWatchEvents(&silent)},
	})
	times := noPollingTimes()
	times.RecheckInterval = 20 * time.Millisecond
	l.joinUnsettled(t, cli, times)
	l.settled(t, 3)
	silent.Store(true)
	for range 3 {
		l.leave(t, 0)
	}
	l.entries[0].await(t, store.Admitted)
}

// Keys of other lines may be in the range of the keys of a line's entries. They are read too, but
// they keep nobody waiting.
func TestFar_keysOfOtherLines(t *testing.T) {
	t.Parallel()
	cli := server(t).Client(t)
	name := newName(t)
	other := openSession(t, newStore(t, cli, ""))
	for i := range 20 {
		enqueue(t, other, fmt.Sprintf("%s/backup-%d", name, i)).await(t, store.Admitted)
	}
	st := newStore(t, cli, "")
	st.SetSizes(1, 1, 1)
	held, waiting := openSession(t, st), openSession(t, st)
	first := enqueue(t, held, name)
	first.await(t, store.Admitted)
	second := enqueue(t, waiting, name)
	second.await(t, store.Waiting)
	first.withdraw(t)
	second.await(t, store.Admitted)
}

// Keys of other lines stand between a waiter and the entries ahead of it. They are read too, but it
// follows the same entry as without them.
func TestFar_keysOfOtherLinesBetween(t *testing.T) {
	t.Parallel()
	l := newLongLine(t, 5)
	other := openSession(t, newStore(t, server(t).Client(t), ""))
	for i := range 20 {
		enqueue(t, other, fmt.Sprintf("%s/backup-%d", l.name, i)).await(t, store.Admitted)
	}
	l.join(t, server(t).Client(t))
	l.drain(t)
}

// The followed key is overwritten, which detaches it from its lease, and its lease id is so short
// that the key does not count as an entry any more. Its follower must not wait for its deletion.
// Promise: P7
func TestFar_followedKeyIsNoEntryAnyMore(t *testing.T) {
	t.Parallel()
	cli := server(t).Client(t)
	l := newLongLine(t, 1)
	lease := grantShortID(t, cli)
	followed := etcdstore.EntryKey(l.name, lease, "")
	if _, err := cli.Put(t.Context(), followed, "", clientv3.WithLease(lease)); err != nil {
		t.Fatal(err)
	}
	times := noPollingTimes()
	times.RecheckInterval = 20 * time.Millisecond
	l.joinUnsettled(t, cli, times)
	l.joinUnsettled(t, cli, times)
	eventually(t, "the last entry follows the other client's", func() bool {
		return etcdstore.Followed(l.sessions[2], l.name) == followed
	})
	overwrite(t, followed)
	eventually(t, "the last entry's session watches the line", func() bool {
		return etcdstore.LineWatched(l.sessions[2], l.name)
	})
	l.drain(t)
}

// grantShortID grants a lease with an id that etcd would not choose.
func grantShortID(t *testing.T, cli *clientv3.Client) clientv3.LeaseID {
	t.Helper()
	id := rand.Int64N(1 << 40)
	resp, err := clientv3.RetryLeaseClient(cli).LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id, TTL: 300})
	if err != nil {
		t.Fatal(err)
	}
	return clientv3.LeaseID(resp.ID)
}

// Names below a line's name are outside of the range of its entries' keys, unless they begin like a
// lease id.
func TestKeys_rangeOfEntries(t *testing.T) {
	t.Parallel()
	cli := server(t).Client(t)
	name := newName(t)
	se := openSession(t, newStore(t, cli, ""))
	for _, below := range []string{"nightly", "reports/2026", "ünal"} {
		enqueue(t, se, name+"/"+below).await(t, store.Admitted)
	}
	from, end := etcdstore.EntryRange(name)
	resp, err := cli.Get(t.Context(), from, clientv3.WithRange(end), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) > 0 {
		t.Errorf("the range of %q has the key %q", name, resp.Kvs[0].Key)
	}
	for _, lease := range []clientv3.LeaseID{1, 0xf, -1, 1 << 62, -1 << 63} {
		for _, nonce := range []string{"", "NONCE"} {
			if key := etcdstore.EntryKey(name, lease, nonce); key < from || key >= end || !strings.HasPrefix(key, name+"/") {
				t.Errorf("key %q is not in the range from %q to %q", key, from, end)
			}
		}
	}
}
