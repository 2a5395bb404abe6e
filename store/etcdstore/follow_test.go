package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
)

// follow starts to follow the lines with a prefix. It ends with the test. The channel receives each change.
func follow(t *testing.T, st store.Store, prefix string) <-chan store.Changes {
	t.Helper()
	changes := make(chan store.Changes, 10_000)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := st.Capabilities().Follow(ctx, prefix, func(c store.Changes) { changes <- c })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Follow: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return changes
}

// followed is follow, and waits for the first change, which it checks and returns. On a busy machine there may be errors
// before it, because the server has not answered in time.
func followed(t *testing.T, st store.Store, prefix string) (<-chan store.Changes, store.Changes) {
	t.Helper()
	changes := follow(t, st, prefix)
	first := nextChange(t, changes)
	for first.Err != nil {
		first = nextChange(t, changes)
	}
	if !first.All {
		t.Fatalf("the first change is %+v, want all lines", first)
	}
	return changes, first
}

func nextChange(t *testing.T, changes <-chan store.Changes) store.Changes {
	t.Helper()
	select {
	case c := <-changes:
		return c
	case <-time.After(testTimeout):
		t.Fatalf("not within %v: a change", testTimeout)
		return store.Changes{}
	}
}

// describe describes a change: "lock: 1f held, 2a waits; other:".
func describe(c store.Changes) string {
	var lines []string
	for _, l := range c.Lines {
		var entries []string
		for _, e := range l.Entries {
			how := "waits"
			if e.Admitted {
				how = "holds"
			}
			entries = append(entries, e.Session+" "+how)
		}
		lines = append(lines, strings.TrimSpace(l.Name+": "+strings.Join(entries, ", ")))
	}
	text := strings.Join(lines, "; ")
	if c.All {
		text = strings.TrimSpace("all: " + text)
	}
	return text
}

func wantChange(t *testing.T, changes <-chan store.Changes, want string) store.Changes {
	t.Helper()
	c := nextChange(t, changes)
	if got := describe(c); got != want || c.Err != nil {
		t.Fatalf("got the change %q, %v, want %q", got, c.Err, want)
	}
	return c
}

// wantSameLines checks that a change of all lines has what Lines returns.
func wantSameLines(t *testing.T, st store.Store, prefix string, all store.Changes) {
	t.Helper()
	lines, err := store.CollectLines(st.Lines(t.Context(), prefix))
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		for j := range lines[i].Entries {
			lines[i].Entries[j].Remaining = 0
		}
	}
	if got, want := fmt.Sprintf("%+v", all.Lines), fmt.Sprintf("%+v", lines); got != want || len(lines) == 0 {
		t.Errorf("following begins with\n%s\nLines returns\n%s", got, want)
	}
}

// Each hold is seen with its token, in order, even if it lasts only as long as two requests.
func TestFollow_rapidHandOvers(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st := newStore(t, e.Client(t), "")
	a, b := openSession(t, st), openSession(t, st)
	for _, prefix := range []string{"", "name"} {
		changes, _ := followed(t, newStore(t, e.Client(t), ""), prefix)
		for range 200 {
			held := enqueue(t, a, "name")
			waits := enqueue(t, b, "name")
			order := held.await(t, store.Admitted).Order
			held.withdraw(t)
			next := waits.await(t, store.Admitted).Order
			waits.withdraw(t)
			for i, want := range []string{a.ID() + " holds", a.ID() + " holds, " + b.ID() + " waits", b.ID() + " holds", ""} {
				c := wantChange(t, changes, strings.TrimSpace("name: "+want))
				if i == 1 && (c.Lines[0].Entries[0].Order != order || c.Lines[0].Entries[1].Order != next) {
					t.Fatalf("got the change %+v, want the orders %d and %d", c, order, next)
				}
			}
		}
	}
}

// What one step has changed is one change: all entries of a session go at once.
func TestFollow_stepsAreWhole(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st := newStore(t, e.Client(t), "")
	changes, _ := followed(t, st, "")
	se := openSession(t, st)
	var gone []string
	for i := range 20 {
		name := fmt.Sprintf("name/%02d", i)
		enqueue(t, se, name)
		wantChange(t, changes, name+": "+se.ID()+" holds")
		gone = append(gone, name+":")
	}
	if err := se.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantChange(t, changes, strings.Join(gone, "; "))
}

// Following shows what Lines shows: names below others, other clients' keys, keys that are no entries, keys that were
// overwritten, limits, and owners.
func TestFollow_showsWhatLinesShows(t *testing.T) {
	t.Parallel()
	for _, storePrefix := range []string{"", "stile/"} {
		e := startEtcd(t)
		cli := e.Client(t)
		st := newStore(t, cli, storePrefix)
		put := func(key, value string, opts ...clientv3.OpOption) {
			t.Helper()
			if _, err := cli.Put(t.Context(), storePrefix+key, value, opts...); err != nil {
				t.Fatal(err)
			}
		}
		foreign, err := cli.Grant(t.Context(), 300)
		if err != nil {
			t.Fatal(err)
		}
		live, _ := followed(t, st, "jobs")
		se := openSession(t, st)
		enqueue(t, se, "jobs")
		enqueue(t, se, "jobs/nightly")
		enqueue(t, se, "jobs/nightly/deep")
		enqueue(t, se, "other")
		put("jobs/"+fmt.Sprintf("%x", int64(foreign.ID)), "", clientv3.WithLease(foreign.ID))
		put("jobs/config", "{}")
		put("jobs/1f", "no lease")
		put("jobs", "x")
		put("jobsx/"+fmt.Sprintf("%x", int64(foreign.ID)), "", clientv3.WithLease(foreign.ID))
		put("jobs/nightly/"+fmt.Sprintf("%x", int64(foreign.ID)), "", clientv3.WithLease(foreign.ID))
		put("jobs/nightly/"+fmt.Sprintf("%x", int64(foreign.ID)), "overwritten")
		if _, err := se.Enqueue(t.Context(), store.Request{Name: "jobs/slots", Mode: line.Slot(3), Notify: func(store.Standing) {}}); err != nil {
			t.Fatal(err)
		}
		if err := st.Capabilities().SetLimit(t.Context(), "jobs/slots", 2); err != nil {
			t.Fatal(err)
		}
		if err := st.Capabilities().SetLimit(t.Context(), "jobs/empty", 2); err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"jobs", "jobs/", "", "jobs/n", "jobs/nightly/"} {
			_, all := followed(t, st, prefix)
			wantSameLines(t, st, prefix, all)
		}
		// The same lines have come as changes.
		lines := make(map[string]store.Line)
		want, err := store.CollectLines(st.Lines(t.Context(), "jobs"))
		if err != nil {
			t.Fatal(err)
		}
		same := func() bool {
			for _, l := range want {
				for i := range l.Entries {
					l.Entries[i].Remaining = 0
				}
				if fmt.Sprintf("%+v", lines[l.Name]) != fmt.Sprintf("%+v", l) {
					return false
				}
			}
			return true
		}
		for !same() {
			for _, l := range nextChange(t, live).Lines {
				lines[l.Name] = l
			}
		}
		// And they go as changes.
		if _, err := cli.Delete(t.Context(), storePrefix+"jobs", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		for empty := false; !empty; {
			for _, l := range nextChange(t, live).Lines {
				lines[l.Name] = l
			}
			empty = true
			for _, l := range lines {
				empty = empty && len(l.Entries)+len(l.Remarks) == 0
			}
		}
	}
}

// Keys that are not about locks cause no changes.
func TestFollow_ignoresOtherKeys(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	cli := e.Client(t)
	st := newStore(t, cli, "")
	changes, _ := followed(t, st, "")
	for _, key := range []string{"config", "registry/pods/default/web-1", "a/b/", "/", "a", ".stile/1f", "a/0x1f", "a/1f"} {
		if _, err := cli.Put(t.Context(), key, "{}"); err != nil {
			t.Fatal(err)
		}
		if _, err := cli.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	se := openSession(t, st)
	enqueue(t, se, "name")
	wantChange(t, changes, "name: "+se.ID()+" holds")
}

// A key beside the entries is mentioned while the line has entries.
func TestFollow_strays(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	cli := e.Client(t)
	st := newStore(t, cli, "")
	changes, _ := followed(t, st, "name")
	se := openSession(t, st)
	for i := range 2 { // the key comes before the entry, and after it
		held := (*testEntry)(nil)
		if i == 1 {
			held = enqueue(t, se, "name")
			wantChange(t, changes, "name: "+se.ID()+" holds")
		}
		if _, err := cli.Put(t.Context(), "name/config", "{}"); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			held = enqueue(t, se, "name")
		}
		if c := wantChange(t, changes, "name: "+se.ID()+" holds"); len(c.Lines[0].Remarks) != 1 || !strings.Contains(c.Lines[0].Remarks[0], `"name/config"`) {
			t.Fatalf("got the remarks %q, want one about name/config", c.Lines[0].Remarks)
		}
		if _, err := cli.Delete(t.Context(), "name/config"); err != nil {
			t.Fatal(err)
		}
		if c := wantChange(t, changes, "name: "+se.ID()+" holds"); len(c.Lines[0].Remarks) > 0 {
			t.Fatalf("got the remarks %q, want none", c.Lines[0].Remarks)
		}
		held.withdraw(t)
		wantChange(t, changes, "name:")
	}
}

// lossyFollow is a store whose quiet watches are replaced soon, and which compares the keys all the time.
func lossyFollow(t *testing.T, e etcd) (*etcdstore.Store, *lossyWatches) {
	t.Helper()
	st, watches := newLossyStore(t, e)
	times := noPollingTimes()
	times.ResyncInterval, times.WatchTimeout = 50*time.Millisecond, longInterval
	st.SetTimes(times)
	st.CompareAlways()
	return st, watches
}

// A watch that has stopped delivering is replaced by another one, which delivers what was missed. No state is left
// out, and nothing is read again.
// Promise: P7
func TestFollow_watchReplaced(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st, watches := newLossyStore(t, e)
	se := openSession(t, newStore(t, e.Client(t), ""))
	for _, prefix := range []string{"", "name"} {
		changes, _ := followed(t, st, prefix)
		for range 3 {
			watches.awaitReplacements(t)
			watches.lose.Store(1)
			held := enqueue(t, se, "name")
			wantChange(t, changes, "name: "+se.ID()+" holds")
			watches.awaitReplacements(t)
			held.withdraw(t)
			wantChange(t, changes, "name:")
		}
		if len(changes) > 0 {
			t.Errorf("got the change %q without a cause", describe(<-changes))
		}
	}
}

// If an event was lost for good, the comparison with etcd's keys finds that out.
// Promise: P7
func TestFollow_comparesKeys(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	limits := 0
	for _, prefix := range []string{"", "name"} {
		for _, what := range []string{"an entry", "a limit", "the end of entries"} {
			t.Run(fmt.Sprintf("%s with the prefix %q", what, prefix), func(t *testing.T) {
				st, watches := newLossyStore(t, e)
				times := noPollingTimes()
				st.SetTimes(times)
				st.CompareAlways()
				se, later := openSession(t, newStore(t, e.Client(t), "")), openSession(t, newStore(t, e.Client(t), ""))
				setLimit := func(name string) {
					t.Helper()
					limits++
					if err := st.Capabilities().SetLimit(t.Context(), name, limits); err != nil {
						t.Fatal(err)
					}
				}
				enqueue(t, se, "name/1")
				changes, _ := followed(t, st, prefix)
				watches.lose.Store(1)
				switch what {
				case "an entry":
					enqueue(t, se, "name/2")
				case "a limit":
					setLimit("name/2")
				default:
					if err := se.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				eventually(t, "the watch has lost "+what, func() bool { return watches.lose.Load() <= 0 })
				enqueue(t, later, "name/3") // so that a later revision is known
				setLimit("name/3")
				for !nextChange(t, changes).All {
				}
			})
		}
	}
}

// The comparison finds nothing wrong if nothing is, whatever keys there are, while they change.
func TestFollow_comparesWithoutCause(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	cli := e.Client(t)
	for _, prefix := range []string{"", "name"} {
		st, _ := lossyFollow(t, e)
		se := openSession(t, newStore(t, cli, ""))
		for _, key := range []string{"name/stray", "name/1f", "name", "name/a/b/c", ".stile/x", "x"} {
			if _, err := cli.Put(t.Context(), key, "{}"); err != nil {
				t.Fatal(err)
			}
		}
		changes, _ := followed(t, st, prefix)
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			p := enqueue(t, se, "name/changes")
			if err := st.Capabilities().SetLimit(t.Context(), "name", int(time.Now().UnixNano()%100_000)+1); err != nil {
				t.Fatal(err)
			}
			p.withdraw(t)
		}
		time.Sleep(200 * time.Millisecond) // the watches are quiet
		for len(changes) > 0 {
			if c := nextChange(t, changes); c.All || c.Err != nil {
				t.Fatalf("got the change %+v: the keys were read again without a cause", c)
			}
		}
	}
}

// What a follower missed is no longer in etcd: all lines are read again.
// Promise: P7
// Bug: etcd #16223
func TestFollow_survivesCompaction(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	direct := e.Client(t)
	proxy := testservers.NewProxy(t, e.Endpoint())
	other := newStore(t, direct, "")
	se := openSession(t, other)
	gone := enqueue(t, se, "name/gone")
	for _, prefix := range []string{"", "name"} {
		changes, _ := followed(t, newStore(t, connect(t, proxy.Addr()), ""), prefix)
		proxy.Hold()
		stays := enqueue(t, se, "name/stays")
		if prefix == "" {
			gone.withdraw(t)
		}
		resp, err := direct.Put(t.Context(), "other", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := direct.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
			t.Fatal(err)
		}
		proxy.Reset()
		proxy.Release()
		for {
			c := nextChange(t, changes)
			if c.All && describe(c) == "all: name/stays: "+se.ID()+" holds" {
				break
			}
		}
		stays.withdraw(t)
		for { // all may have been read once more, before this or after it
			c := nextChange(t, changes)
			if text := describe(c); c.Err == nil && (text == "name/stays:" || text == "all:") {
				break
			}
		}
	}
}

// A restart of the server, or a broken connection, is no outage: each state is reported.
// Promise: P7
func TestFollow_survivesServerRestart(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st := newStore(t, e.Client(t), "")
	se := openSession(t, st)
	held := enqueue(t, se, "name")
	changes, _ := followed(t, st, "")
	e.Restart()
	held.withdraw(t)
	// If the restart takes long, there may be an error before all lines are read again.
	for {
		c := nextChange(t, changes)
		if text := describe(c); c.Err == nil && (text == "name:" || text == "all:") {
			return
		}
	}
}

// The data are restored from a backup that lacks an entry, and may have reached the same revision again.
// Promise: P7
func TestFollow_survivesRestoreOfData(t *testing.T) {
	t.Parallel()
	for when, since := range map[string]int{"without later writes": 0, "with as many later writes": 100} {
		e := startEtcd(t)
		st, _ := lossyFollow(t, e)
		other := newStore(t, e.Client(t), "")
		se := openSession(t, other)
		enqueue(t, se, "stays")
		backup := filepath.Join(t.TempDir(), "backup")
		e.Kill()
		if err := os.CopyFS(backup, os.DirFS(e.DataDir())); err != nil {
			t.Fatal(err)
		}
		e.Start()
		e.AwaitReady()
		changes, _ := followed(t, st, "")
		enqueue(t, se, "lost")
		wantChange(t, changes, "lost: "+se.ID()+" holds")
		e.Kill()
		if err := errors.Join(os.RemoveAll(e.DataDir()), os.CopyFS(e.DataDir(), os.DirFS(backup))); err != nil {
			t.Fatal(err)
		}
		e.Start()
		e.AwaitReady()
		put(t, e.Client(t), since)
		for {
			if c := nextChange(t, changes); c.Err == nil && describe(c) == "all: stays: "+se.ID()+" holds" {
				break
			}
		}
		later := openSession(t, other)
		enqueue(t, later, "later")
		if c := nextChange(t, changes); describe(c) != "later: "+later.ID()+" holds" {
			t.Errorf("%s: got the change %q, want the later lock", when, describe(c))
		}
	}
}

// While the store does not answer, nobody knows the lines. Afterwards all of them are read again.
// Promise: P7
func TestFollow_outage(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	se, prefix := openSession(t, newStore(t, server(t).Client(t), "")), newName(t)
	st := newStore(t, connect(t, proxy.Addr()), "")
	times := noPollingTimes()
	times.ResyncInterval, times.WatchTimeout = 200*time.Millisecond, 200*time.Millisecond
	st.SetTimes(times)
	for range 2 {
		changes, _ := followed(t, st, prefix)
		proxy.Hold()
		c := nextChange(t, changes)
		if c.Err == nil {
			t.Fatalf("got the change %+v, want an error", c)
		}
		wantErrorContains(t, c.Err, "follow the lines", proxy.Addr())
		held := enqueue(t, se, prefix)
		proxy.Release()
		all := false // they may have been read before the lock was held
		for line := ""; !all || line != prefix+": "+se.ID()+" holds"; {
			c := nextChange(t, changes)
			all = c.Err == nil && (all || c.All)
			line = strings.TrimSpace(strings.TrimPrefix(describe(c), "all:"))
		}
		held.withdraw(t)
		for line := "held"; line != "" && line != prefix+":"; {
			line = "held"
			if c := nextChange(t, changes); c.Err == nil {
				line = strings.TrimSpace(strings.TrimPrefix(describe(c), "all:"))
			}
		}
	}
}

// A store that cannot be reached at first reports that, and the lines when it can.
func TestFollow_storeNotReachedAtFirst(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	proxy.Hold()
	st := newStore(t, connect(t, proxy.Addr()), "")
	times := noPollingTimes()
	times.WatchTimeout = 200 * time.Millisecond
	st.SetTimes(times)
	changes := follow(t, st, newName(t))
	if c := nextChange(t, changes); c.Err == nil {
		t.Fatalf("got the change %+v, want an error", c)
	}
	proxy.Release()
	for {
		if c := nextChange(t, changes); c.All {
			break
		}
	}
}

func TestFollow_readNotPermitted(t *testing.T) {
	t.Parallel()
	e := startEtcdWithAuth(t)
	cli := connectWith(t, clientv3.Config{
		Endpoints: []string{e.Endpoint()}, Username: "app", Password: "secret-of-app", DialTimeout: testTimeout,
	})
	for _, prefix := range []string{"", "lock"} {
		follow := newStore(t, cli, "elsewhere/").Capabilities().Follow
		err := follow(contextFor(t, testTimeout), prefix, func(store.Changes) { t.Error("called without permission to read") })
		wantErrorContains(t, err, "watch", fmt.Sprintf("%q", prefix), e.Endpoint(), "permission denied", `"elsewhere/"`)
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("got %v, want an error matching ErrPermissionDenied", err)
		}
	}
	changes, _ := followed(t, newStore(t, cli, "app/"), "lock")
	se := openSession(t, newStore(t, cli, "app/"))
	enqueue(t, se, "lock")
	wantChange(t, changes, "lock: "+se.ID()+" holds")
}

// On a cluster each watch may be on another member, which may not have the newest revisions yet.
// Promise: P7
func TestFollow_onCluster(t *testing.T) {
	t.Parallel()
	cluster := testservers.StartEtcdCluster(t, 3)
	st := newStore(t, connect(t, cluster.Endpoints()...), "")
	times := noPollingTimes()
	times.ResyncInterval, times.WatchTimeout = 10*time.Millisecond, longInterval
	st.SetTimes(times)
	st.CompareAlways()
	se, prefix := openSession(t, newStore(t, connect(t, cluster.Endpoints()...), "")), newName(t)
	changes, _ := followed(t, st, prefix)
	for i := range 50 {
		name := fmt.Sprintf("%s/%d", prefix, i%3)
		held := enqueue(t, se, name)
		held.withdraw(t)
		wantChange(t, changes, name+": "+se.ID()+" holds")
		wantChange(t, changes, name+":")
	}
}

// A loop that is too slow gets the newest states.
func TestFollow_slowReader(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	st := newStore(t, e.Client(t), "")
	se := openSession(t, st)
	blocked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	ctx, cancel := context.WithCancel(t.Context())
	lines := make(map[string]bool) // those with entries
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = st.Capabilities().Follow(ctx, "", func(c store.Changes) {
			if c.All {
				clear(lines)
			}
			for _, l := range c.Lines {
				if lines[l.Name] = len(l.Entries) > 0; !lines[l.Name] {
					delete(lines, l.Name)
				}
			}
			once.Do(func() {
				close(blocked)
				<-release
			})
			if lines["last"] {
				cancel()
			}
		})
	}()
	<-blocked
	enqueue(t, se, "stays")
	for range 3 { // 6144 changed lines
		many := openSession(t, st)
		var puts []clientv3.Op
		for i := range 1024 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("many/%04d/%s", i, many.ID()), "", clientv3.WithLease(leaseOf(t, many))))
		}
		for chunk := range slices.Chunk(puts, 100) {
			if _, err := e.Client(t).Txn(t.Context()).Then(chunk...).Commit(); err != nil {
				t.Fatal(err)
			}
		}
		if err := many.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	enqueue(t, se, "last")
	close(release)
	<-done
	if len(lines) != 2 || !lines["stays"] || !lines["last"] {
		t.Errorf("got %d lines at the end, want the two that have entries", len(lines))
	}
}
