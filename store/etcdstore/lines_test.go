package etcdstore_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// Lines are read in pages, each twice as large as the one before: one request for the keys, one for the limits.
func TestLines_fewRequestsForManyLines(t *testing.T) {
	t.Parallel()
	c, rec := newRecordedClient(t, 0)
	holder, waiter := newClient(t, server(t).Client(t), longTTL), newClient(t, server(t).Client(t), longTTL)
	name := newName(t)
	const n = 205
	for i := range n {
		lock(t, holder, fmt.Sprintf("%s/%03d", name, i))
	}
	lock(t, holder, name)
	join(t, waiter, name+"/007")

	lines, err := c.Lines(t.Context(), name+"/")
	if err != nil {
		t.Fatal(err)
	}
	wantRequests(t, "Lines, 205 lines", withoutLeases(rec.takeLog()), "Range", "Txn", "Range", "Txn", "Range", "Txn")
	if len(lines) != n {
		t.Fatalf("got %d lines, want %d", len(lines), n)
	}
	for i, l := range lines {
		waiters := 0
		if i == 7 {
			waiters = 1
		}
		if l.Name != fmt.Sprintf("%s/%03d", name, i) || len(l.Holders) != 1 || len(l.Waiters) != waiters {
			t.Fatalf("line %d: got %+v", i, l)
		}
	}
}

// A line that is read again within a second costs no further query of a lease.
func TestLine_queriesLeasesRarely(t *testing.T) {
	t.Parallel()
	rec := recorderWithoutCancel()
	st, name := newStore(t, connectWith(t, rec.config(server(t).Endpoint())), ""), newName(t)
	enqueue(t, openSession(t, st), name)
	read := func() (store.Entry, []string) {
		t.Helper()
		rec.takeLog()
		l, err := st.Line(t.Context(), name)
		if err != nil || len(l.Entries) != 1 {
			t.Fatalf("got %+v, %v; want one entry", l, err)
		}
		return l.Entries[0], requests(rec.takeLog())
	}
	if _, log := read(); !slices.Contains(log, "LeaseTimeToLive") {
		t.Fatalf("first reading: got requests %q, want a query of the lease", log)
	}
	eventually(t, "a reading without a query of the lease", func() bool { // on a busy machine a second may pass
		e, log := read()
		if e.Remaining <= 0 || e.Remaining > etcdstore.MaxTTL {
			t.Fatalf("got %v remaining, want something up to %v", e.Remaining, etcdstore.MaxTTL)
		}
		return slices.Equal(log, []string{"Txn"})
	})
}

// Whatever the names are and wherever a page ends, each line is listed once, whole, and in the order of
// names, which is not that of their keys.
func TestLines_anyNamesAndPages(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			cli, prefix := server(t).Client(t), newName(t)+"/"
			c := newCrowd(t, cli, prefix, rand.New(rand.NewPCG(seed, 0)))
			for _, size := range []int64{1, 2, 3, 7, 50, 10_000} {
				st := newStore(t, cli, prefix)
				st.SetPageSizes(size, size, 1<<20)
				for _, begin := range []string{"", "a", "a-", "a/", "a/b", ".", ".stile", ".stile/"} {
					got, err := store.CollectLines(st.Lines(t.Context(), begin))
					if err != nil {
						t.Fatal(err)
					}
					c.check(t, fmt.Sprintf("pages of %d, prefix %q", size, begin), begin, got)
				}
			}
			st := newStore(t, cli, prefix)
			got, err := store.CollectLines(st.Lines(t.Context(), ""))
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range got { // a reading of one line shows the same
				one, err := st.Line(t.Context(), l.Name)
				if one.Remarks = nil; err != nil || !equalLines(one, l) {
					t.Errorf("Line(%q): got %+v, %v; Lines has %+v", l.Name, one, err, l)
				}
			}
		})
	}
}

// A crowd is what many names have in etcd.
type crowd struct {
	names  []string // sorted
	orders map[string][]uint64
	limits map[string]int
}

// newCrowd makes entries of names that are likely to be confused, under a key prefix, with keys between
// them that are no entries.
func newCrowd(t *testing.T, cli *clientv3.Client, prefix string, random *rand.Rand) *crowd {
	t.Helper()
	const letters = "aabf1g-./!~"
	c := &crowd{orders: make(map[string][]uint64), limits: make(map[string]int)}
	var leases []clientv3.LeaseID
	for range 3 {
		granted, err := cli.Grant(t.Context(), 3600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cli.Revoke(context.WithoutCancel(t.Context()), granted.ID) })
		leases = append(leases, granted.ID)
	}
	put := func(key, value string, opts ...clientv3.OpOption) int64 {
		resp, err := cli.Put(t.Context(), prefix+key, value, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Revision
	}
	for range 150 {
		name := ""
		for range 1 + random.IntN(5) {
			name += string(letters[random.IntN(len(letters))])
		}
		switch random.IntN(10) {
		case 0:
			put(name+"/zz", "not an entry")
			put(name, "not an entry")
		case 1:
			put(".stile/slots/"+name+"//limit", "3")
			c.limits[name] = 3
		}
		if c.orders[name] != nil {
			continue
		}
		for _, i := range random.Perm(len(leases))[:1+random.IntN(3)] {
			key := fmt.Sprintf("%s/%x", name, leases[i])
			if random.IntN(2) == 0 {
				key += "-nonce"
			}
			c.orders[name] = append(c.orders[name], uint64(put(key, "", clientv3.WithLease(leases[i]))))
		}
	}
	c.names = slices.Sorted(maps.Keys(c.orders))
	return c
}

// check checks the lines of the names that begin with a prefix.
func (c *crowd) check(t *testing.T, what, prefix string, got []store.Line) {
	t.Helper()
	var names []string
	for _, l := range got {
		names = append(names, l.Name)
		var orders []uint64
		for _, e := range l.Entries {
			orders = append(orders, e.Order)
		}
		if !slices.Equal(orders, c.orders[l.Name]) || l.Limit != c.limits[l.Name] {
			t.Errorf("%s: line %q: got orders %d and limit %d, want %d and %d", what, l.Name, orders, l.Limit, c.orders[l.Name], c.limits[l.Name])
		}
	}
	want := slices.DeleteFunc(slices.Clone(c.names), func(n string) bool { return !strings.HasPrefix(n, prefix) })
	if !slices.Equal(names, want) {
		t.Errorf("%s: got names\n%q, want\n%q", what, names, want)
	}
}

// equalLines compares lines without what changes from one reading to the next.
func equalLines(a, b store.Line) bool {
	for _, l := range []*store.Line{&a, &b} {
		l.Entries = slices.Clone(l.Entries)
		for i := range l.Entries {
			l.Entries[i].Remaining = 0
		}
		l.Remarks = nil
	}
	return reflect.DeepEqual(a, b)
}

// moveEntry moves the only entry of a line to another key, in one step.
func moveEntry(t *testing.T, cli *clientv3.Client, lease clientv3.LeaseID, from, to string) {
	t.Helper()
	if _, err := cli.Txn(t.Context()).Then(clientv3.OpDelete(from), clientv3.OpPut(to, "", clientv3.WithLease(lease))).Commit(); err != nil {
		t.Error(err)
	}
}

// A line that is read in two requests is of one revision: an entry that leaves in the step in which another
// joins is not seen together with it. If that revision is compacted between the requests, both are
// repeated.
func TestLines_oneRevision(t *testing.T) {
	t.Parallel()
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprintf("compacted %v", compacted), func(t *testing.T) {
			t.Parallel()
			e := startEtcd(t)
			direct := e.Client(t)
			granted, err := direct.Grant(t.Context(), int64(etcdstore.MaxTTL.Seconds()))
			if err != nil {
				t.Fatal(err)
			}
			first, second := fmt.Sprintf("x/%x-1", granted.ID), fmt.Sprintf("x/%x-2", granted.ID)
			moveEntry(t, direct, granted.ID, "none", first)

			cli, intercept := interceptedClientAt(t, e.Endpoint())
			var moved atomic.Bool
			move := sync.OnceFunc(func() {
				moveEntry(t, direct, granted.ID, first, second)
				if compacted {
					resp, err := direct.Get(t.Context(), "x")
					if err == nil {
						_, err = direct.Compact(t.Context(), resp.Header.Revision)
					}
					if err != nil {
						t.Error(err)
					}
				}
				moved.Store(true)
			})
			f := handler(func(_ context.Context, request string, send func() error) error {
				if request == "Txn that reads" { // the first page has been read
					move()
				}
				return send()
			})
			intercept.Store(&f)
			st := newStore(t, cli, "")
			st.SetPageSizes(1, 1, 1<<20)
			moveEntry(t, direct, granted.ID, "none", fmt.Sprintf("y/%x", granted.ID)) // so that the page is not the last
			lines, err := store.CollectLines(st.Lines(t.Context(), ""))
			if err != nil || !moved.Load() || len(lines) != 2 || lines[0].Name != "x" || len(lines[0].Entries) != 1 {
				t.Errorf("got %+v, %v; want x with one entry, and y", lines, err)
			}
		})
	}
}

// Values that are much larger than entries make pages smaller.
func TestLines_largeValues(t *testing.T) {
	t.Parallel()
	cli, prefix := server(t).Client(t), newName(t)+"/"
	for i := range 40 {
		if _, err := cli.Put(t.Context(), fmt.Sprintf("%sk%02d", prefix, i), strings.Repeat("x", 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	watched, intercept := interceptedClient(t)
	var pages atomic.Int32
	f := handler(func(_ context.Context, request string, send func() error) error {
		if request == "Range" {
			pages.Add(1)
		}
		return send()
	})
	intercept.Store(&f)
	st := newStore(t, watched, prefix)
	st.SetPageSizes(4, 1000, 40_000)
	lines, err := store.CollectLines(st.Lines(t.Context(), ""))
	if err != nil || len(lines) > 0 || pages.Load() < 9 {
		t.Errorf("got %d lines, %v, in %d pages; want none, in about 10 pages", len(lines), err, pages.Load())
	}
}

// withoutKeyWatches returns times with which a held lock causes no requests.
func withoutKeyWatches() etcdstore.Times {
	times := noPollingTimes()
	times.HeldWatchDelay = longInterval
	return times
}

// Stile's own keys are not read, of which records are large.
func TestLines_skipsOwnKeys(t *testing.T) {
	t.Parallel()
	rec := recorderWithoutCancel()
	prefix := newName(t) + "/"
	st := newStore(t, connectWith(t, rec.config(server(t).Endpoint())), prefix)
	st.SetTimes(withoutKeyWatches())
	st.SetPageSizes(1, 1, 1<<20)
	se := openSession(t, st)
	enqueue(t, se, "..")
	enqueue(t, se, "a")
	for i := range 20 {
		if _, err := server(t).Client(t).Put(t.Context(), fmt.Sprintf("%s.stile/records/%d//", prefix, i), "record"); err != nil {
			t.Fatal(err)
		}
	}
	rec.takeLog()
	began := time.Now()
	lines, err := store.CollectLines(st.Lines(t.Context(), ""))
	if err != nil || len(lines) != 2 {
		t.Errorf("got %+v, %v; want two lines", lines, err)
	}
	wantListing(t, "two lines", began, rec.takeLog(), "Range", "Txn", "LeaseTimeToLive", "Range", "Txn")
}

// wantListing checks the requests of a listing that has just ended. The queries of leases count only if it was quick.
func wantListing(t *testing.T, what string, began time.Time, log []string, want ...string) {
	t.Helper()
	if time.Since(began) > time.Second/2 {
		log, want = withoutLeases(log), withoutLeases(want)
	}
	wantRequests(t, what, log, want...)
}

// withoutLeases leaves out the queries of leases, because they are repeated if a page takes long.
func withoutLeases(log []string) []string {
	return slices.DeleteFunc(log, func(s string) bool { return strings.HasPrefix(s, "LeaseTimeToLive") })
}

// A loop that is left reads no further page.
func TestLines_stops(t *testing.T) {
	t.Parallel()
	rec := recorderWithoutCancel()
	st, name := newStore(t, connectWith(t, rec.config(server(t).Endpoint())), ""), newName(t)
	st.SetTimes(withoutKeyWatches())
	st.SetPageSizes(1, 1, 1<<20)
	se := openSession(t, st)
	enqueue(t, se, name)
	enqueue(t, se, name+"x")
	rec.takeLog()
	began := time.Now()
	for l, err := range st.Lines(t.Context(), name) {
		if err != nil || l.Name != name {
			t.Errorf("got %+v, %v, want %q", l, err, name)
		}
		break
	}
	wantListing(t, "one line", began, rec.takeLog(), "Range", "Txn", "LeaseTimeToLive")
}

// Other programs may have large values under the prefix. A page that the client does not accept is read in smaller
// ones.
func TestLines_besideLargeValues(t *testing.T) {
	t.Parallel()
	prefix := newName(t) + "/"
	direct := server(t).Client(t)
	enqueue(t, openSession(t, newStore(t, direct, prefix)), "lock")
	for i := range 40 {
		if _, err := direct.Put(t.Context(), fmt.Sprintf("%sother%02d", prefix, i), strings.Repeat("x", 30_000)); err != nil {
			t.Fatal(err)
		}
	}
	cli := connectWith(t, clientv3.Config{Endpoints: []string{server(t).Endpoint()}, MaxCallRecvMsgSize: 400 << 10, MaxCallSendMsgSize: 200 << 10})
	lines, err := store.CollectLines(newStore(t, cli, prefix).Lines(t.Context(), ""))
	if err != nil || len(lines) != 1 || lines[0].Name != "lock" {
		t.Errorf("got %+v, %v; want the lock alone", lines, err)
	}
}

// If a page takes longer than the server is given, less is asked for.
func TestLines_slowPages(t *testing.T) {
	t.Parallel()
	if pages, _ := testSlowLines(t, 6, 1000, "0", "1", "2", "3", "4", "5"); pages == 0 {
		t.Error("no page was too large, so nothing was tested")
	}
}

// Less is also asked for when the lines of a page are read to their end: here the lines of all parents of the last one.
func TestLines_slowRestOfPages(t *testing.T) {
	t.Parallel()
	_, rests := testSlowLines(t, 6, 6, "a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e", "a/b/c/d/e/a", "a/b/c/d/e/a/b", "a/b/c/d/e/a/b/c")
	if rests == 0 {
		t.Error("no rest of a page was too large, so nothing was tested")
	}
}

// testSlowLines lists lines with pages of 12 keys. The server never answers a request for a page of more than inPage keys,
// or for more than inRest keys of the rest of a page. testSlowLines returns how many such requests there were.
func testSlowLines(t *testing.T, inPage, inRest int64, names ...string) (pages, rests int32) {
	t.Helper()
	var largePages, largeRests atomic.Int32
	slow := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		page, rest := keysAskedFor(req)
		switch {
		case page > inPage:
			largePages.Add(1)
		case rest > inRest:
			largeRests.Add(1)
		default:
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		<-ctx.Done()
		return ctx.Err()
	}
	cli, _ := interceptedClient(t, slow)
	prefix := newName(t) + "/"
	enqueueAll(t, openSession(t, newStore(t, server(t).Client(t), prefix)), names)
	st := newStore(t, cli, prefix)
	st.SetPageSizes(12, 12, 1<<20)
	lines, err := store.CollectLines(st.Lines(t.Context(), ""))
	if err != nil || len(lines) != len(names) {
		t.Errorf("got %d lines, %v; want %d", len(lines), err, len(names))
	}
	return largePages.Load(), largeRests.Load()
}

// keysAskedFor returns how many keys a page, or the rest of one, may return.
func keysAskedFor(req any) (page, rest int64) {
	switch r := req.(type) {
	case *pb.RangeRequest:
		page = r.Limit
	case *pb.TxnRequest:
		for _, op := range r.Success {
			rest += op.GetRequestRange().GetLimit()
		}
	}
	return page, rest
}
