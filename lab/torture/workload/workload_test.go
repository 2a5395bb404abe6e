package workload_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/workload"
	"github.com/stilelock/stile/lab/torture/workload/workloadtest"
)

// startWorker starts a worker, and returns a function that ends it.
func startWorker(t *testing.T, c workload.Config) (end func()) {
	t.Helper()
	c.SettleTimeout = time.Millisecond // the workers share this process, so waiting is useless
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- workload.Run(ctx, c) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: got error %v, want none", c.Worker, err)
		}
	}
}

func acquired(e history.Event) bool { return e.Acquire != nil && e.Acquire.Outcome == history.OK }
func released(e history.Event) bool { return e.End != nil && e.End.Outcome == history.OK }

// counted returns a function that is true from the nth matching event on.
func counted(n int, matches func(history.Event) bool) func(history.Event) bool {
	return func(e history.Event) bool {
		if matches(e) {
			n--
		}
		return n <= 0
	}
}

// longTTL is the TTL of sessions that must not be lost, on a busy machine too.
const longTTL = time.Minute

func stileOn(server *testservers.Redis, ttl time.Duration) locker.Config {
	return locker.Config{Kind: "stile", URL: "redis://" + server.Addr(), TTL: ttl}
}

// The rules that every history of several workers on a healthy store has to keep.
func TestWorkloads(t *testing.T) {
	for load, minReleases := range map[string]int{workload.Hot: 20, workload.Many: 40, workload.Long: 6, workload.Storm: 20, workload.Churn: 20} {
		t.Run(load, func(t *testing.T) {
			t.Parallel()
			server := testservers.StartRedis(t)
			harness := workloadtest.New(t)
			var ends []func()
			for i := range 3 {
				c := harness.Config(fmt.Sprintf("w%d", i+1), load, stileOn(server, longTTL))
				c.HoldUnit = 300 * time.Millisecond
				ends = append(ends, startWorker(t, c))
			}
			harness.Await("number of releases", counted(minReleases, released))
			for _, end := range ends {
				end()
			}
			h := harness.History()
			checkCalls(t, h, load)
			checkEnds(t, h, load)
			checkWrites(t, h)
			checkCensus(t, h)
			for _, lock := range slices.Compact(locks(h)) {
				if !slices.Contains(workload.Locks(load, "t/"), lock) {
					t.Errorf("got lock %s, want one of the workload", lock)
				}
			}
		})
	}
}

func locks(h *history.History) []string {
	var all []string
	for _, e := range h.Events {
		if e.Acquire != nil {
			all = append(all, e.Acquire.Lock)
		}
	}
	slices.Sort(all)
	return all
}

// checkCalls checks that every call returns, that Asked is recorded before every wait, and that
// grant names are unique.
func checkCalls(t *testing.T, h *history.History, load string) {
	t.Helper()
	asked, seen := map[string]int64{}, map[string]bool{}
	tries := 0
	for _, e := range h.Events {
		switch {
		case e.Asked != nil:
			asked[e.Asked.Grant] = e.At
		case e.Acquire != nil:
			a := e.Acquire
			if seen[a.Grant] || !strings.HasPrefix(a.Grant, e.Worker+".") {
				t.Errorf("got grant %q of %s, want a new name with the worker's as its prefix", a.Grant, e.Worker)
			}
			seen[a.Grant] = true
			if asked[a.Grant] == 0 {
				tries++
			}
			if a.Call < asked[a.Grant] || a.Return < a.Call || e.At != a.Return {
				t.Errorf("inconsistent times: event at %d, asked at %d: %+v", e.At, asked[a.Grant], *a)
			}
			if a.Outcome == history.OK && (a.Token == 0 || a.Until <= a.Call) {
				t.Errorf("got %+v, want a token and a deadline", *a)
			}
			if a.Outcome == history.Unknown || a.Outcome == history.Failed && !a.GaveUp {
				t.Errorf("a call failed on a healthy store: %s", a.Err)
			}
			delete(asked, a.Grant)
		}
	}
	if len(asked) != 0 {
		t.Errorf("got no return for %v", asked)
	}
	if (tries > 0) != (load == workload.Storm) {
		t.Errorf("got %d tries in the workload %s", tries, load)
	}
}

// checkEnds checks that two End events are recorded for every hold, one before its release and one
// after it, and that no other hold of the lock is granted before the first.
func checkEnds(t *testing.T, h *history.History, load string) {
	t.Helper()
	unreleased := 0 // holds that ended with their session
	holder := map[string]string{}
	lockOf := map[string]string{}
	for _, e := range h.Events {
		switch {
		case acquired(e):
			lock := e.Acquire.Lock
			if other := holder[lock]; other != "" {
				t.Errorf("%s acquired %s while %s held it", e.Acquire.Grant, lock, other)
			}
			holder[lock], lockOf[e.Acquire.Grant] = e.Acquire.Grant, lock
		case e.End != nil && e.End.Return == 0:
			if lock := lockOf[e.End.Grant]; holder[lock] == e.End.Grant {
				holder[lock] = ""
			}
			if e.At != e.End.Call {
				t.Errorf("end of %s: got time %d, want %d", e.End.Grant, e.At, e.End.Call)
			}
		case e.End != nil:
			if lockOf[e.End.Grant] == "" {
				t.Errorf("%s ended without a grant, or twice", e.End.Grant)
			}
			delete(lockOf, e.End.Grant)
			if e.End.Outcome == history.Unknown {
				unreleased++
			}
			if e.End.LostAt != 0 || e.End.Until == 0 || e.At != e.End.Return {
				t.Errorf("got end %+v at %d, want one with a deadline and without a loss, at its return", *e.End, e.At)
			}
		}
	}
	if len(lockOf) != 0 {
		t.Errorf("got no end for %v", lockOf)
	}
	if (unreleased > 0) != (load == workload.Churn) {
		t.Errorf("got %d unreleased holds in the workload %s", unreleased, load)
	}
}

// checkWrites checks that no update is lost and no write is stale, as under a correct lock, and
// that the first write of a hold shows its token.
func checkWrites(t *testing.T, h *history.History) {
	t.Helper()
	modes, writers := map[string]int{}, map[string]bool{}
	for _, e := range h.Events {
		w := e.Write
		if w == nil {
			continue
		}
		modes[w.Mode]++
		if !writers[w.Grant] && w.Mode != "fenced" {
			t.Errorf("first write of %s: got mode %s, want fenced", w.Grant, w.Mode)
		}
		writers[w.Grant] = true
		if w.Refused || w.Mode == "unfenced" && w.Version != w.Read {
			t.Errorf("got stale write %+v", *w)
		}
	}
	for _, mode := range []string{"unfenced", "fenced", "audit"} {
		if modes[mode] == 0 {
			t.Errorf("got no %s writes", mode)
		}
	}
}

// checkCensus checks that every worker records its start and both censuses.
func checkCensus(t *testing.T, h *history.History) {
	t.Helper()
	started, phasesOf := 0, map[string][]string{}
	for _, e := range h.Events {
		switch {
		case e.Started != nil:
			started++
		case e.Census != nil:
			phasesOf[e.Worker] = append(phasesOf[e.Worker], e.Census.Phase)
		}
	}
	for worker, phases := range phasesOf {
		if !slices.Equal(phases, []string{"begin", "end"}) {
			t.Errorf("%s: got censuses %v, want begin and end", worker, phases)
		}
	}
	if started != 3 || len(phasesOf) != 3 {
		t.Errorf("got %d started workers and %d with a census, want 3", started, len(phasesOf))
	}
}

// On a busy machine some holds may be lost. The test is about the first one that is not.
func TestLong_recordsExtensions(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	end := startWorker(t, harness.Config("w1", workload.Long, stileOn(server, ttl)))
	e := harness.Await("release of a hold that was not lost", released).End
	end()
	var a history.Acquire
	extended, until := 0, int64(0)
	for _, ev := range harness.History().Events {
		switch {
		case ev.Acquire != nil && ev.Acquire.Grant == e.Grant:
			a, until = *ev.Acquire, ev.Acquire.Until
		case ev.Extend != nil && ev.Extend.Grant == e.Grant:
			extended++
			if x := ev.Extend; x.Until <= until || x.Until > ev.At+int64(ttl) {
				t.Errorf("got an extension from %d, at %d, to %d, want a later end, at most a TTL ahead", until, ev.At, x.Until)
			}
			until = ev.Extend.Until
		}
	}
	if held := time.Duration(e.Call - a.Return); held < 3*ttl || until < e.Call || extended < 2 {
		t.Errorf("held for %v: got %d extensions to a validity of %v, want at least 2 and a validity until the end", held, extended, time.Duration(until-a.Return))
	}
}

func TestLong_keyDeleted(t *testing.T) {
	t.Parallel()
	etcd, harness := testservers.StartEtcd(t), workloadtest.New(t)
	end := startWorker(t, harness.Config("w1", workload.Long, locker.Config{Kind: "stile", URL: "etcd://" + etcd.Endpoint(), TTL: longTTL}))
	defer end()
	hold := harness.Await("acquisition", acquired).Acquire
	before := history.Now()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	if _, err := cli.Delete(t.Context(), "t/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	e := harness.Await("end", func(e history.Event) bool { return e.End != nil && e.End.Grant == hold.Grant && e.End.Return != 0 }).End
	if e.LostAt < before || e.LostAt > e.Call || e.Why == "" || e.Outcome != history.Failed {
		t.Errorf("deleted at %d: got end %+v, want a loss after that", before, *e)
	}
}

// rueidislock has neither tokens nor deadlines: its holder is only notified of the loss.
func TestLong_rueidislock(t *testing.T) {
	t.Parallel()
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	end := startWorker(t, harness.Config("w1", workload.Long, locker.Config{Kind: "rueidislock", Addresses: []string{server.Addr()}, TTL: longTTL, Patient: true}))
	a := harness.Await("acquisition", acquired).Acquire
	if a.Token != 0 || a.Until != 0 {
		t.Errorf("got %+v, want neither token nor deadline", *a)
	}
	server.Do("DEL", "rueidislock:0:"+a.Lock)
	e := harness.Await("end", func(e history.Event) bool { return e.End != nil && e.End.Return != 0 }).End
	if e.LostAt == 0 || e.Until != 0 || e.Outcome != history.Failed {
		t.Errorf("got end %+v, want a loss without a deadline", *e)
	}
	end()
	for _, e := range harness.History().Events {
		if e.Write != nil && e.Write.Mode == "fenced" {
			t.Errorf("got fenced write %+v without a token", *e.Write)
		}
	}
}

// A failing store does not end the worker. The TTL is short, because a call fails only after it. It
// is harmless if the session is lost before the server is killed.
func TestRun_serverDown(t *testing.T) {
	t.Parallel()
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	end := startWorker(t, harness.Config("w1", workload.Hot, stileOn(server, time.Second)))
	defer end()
	harness.Await("release", released)
	server.Kill()
	e := harness.AwaitNext("failure", func(e history.Event) bool { return e.Acquire != nil && e.Acquire.Outcome != history.OK })
	if e.Acquire.Outcome != history.Failed || e.Acquire.GaveUp || e.Acquire.Err == "" {
		t.Errorf("got %+v, want a failure with an error", *e.Acquire)
	}
	server.Start()
	harness.AwaitNext("acquisition", acquired)
}

func TestRun_serverStartsLate(t *testing.T) {
	t.Parallel()
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	server.Kill()
	end := startWorker(t, harness.Config("w1", workload.Hot, stileOn(server, longTTL)))
	defer end()
	harness.Await("start", func(e history.Event) bool { return e.Started != nil })
	// The first census precedes the connection, so that leaks of the connection are found.
	harness.Await("census before connecting", func(e history.Event) bool { return e.Census != nil })
	server.Start()
	harness.Await("acquisition", acquired)
}

func TestFinal(t *testing.T) {
	t.Parallel()
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	l := stileOn(server, longTTL)
	server.Do("SET", "t/stuck", "forever")
	c := harness.Config("final", workload.Final, l)
	c.Resource, c.Locks, c.FinalTimeout = "", []string{"t/free", "t/stuck", "t/other"}, 10*time.Second
	if err := workload.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]history.Outcome{}
	for _, e := range harness.History().Events {
		if f := e.Final; f != nil {
			outcomes[f.Lock] = f.Outcome
			if (f.Err == "") != (f.Outcome == history.OK) {
				t.Errorf("got %+v, want an error only with a failure", *f)
			}
		}
	}
	if outcomes["t/free"] != history.OK || outcomes["t/other"] != history.OK || outcomes["t/stuck"] != history.Failed {
		t.Errorf("got outcomes %v, want a failure for t/stuck only", outcomes)
	}
	if n, err := server.Do("EXISTS", "t/free", "t/other").AsInt64(); err != nil || n != 0 {
		t.Errorf("got %d unreleased locks and error %v, want none", n, err)
	}
}

func TestRun_sameSeed(t *testing.T) {
	t.Parallel()
	asked := func() []string {
		server, harness := testservers.StartRedis(t), workloadtest.New(t)
		c := harness.Config("w1", workload.Churn, stileOn(server, longTTL))
		end := startWorker(t, c)
		harness.Await("number of releases", counted(10, released))
		end()
		var all []string
		for _, e := range harness.History().Events {
			if e.Asked != nil {
				all = append(all, e.Asked.Lock)
			}
		}
		return all[:10]
	}
	if a, b := asked(), asked(); !slices.Equal(a, b) {
		t.Errorf("got locks %v and %v, want the same", a, b)
	}
}

func TestRun_unknownWorkload(t *testing.T) {
	err := workload.Run(t.Context(), workload.Config{Workload: "idle"})
	if err == nil || !strings.Contains(err.Error(), "churn") {
		t.Errorf("got error %v, want one that names the workloads", err)
	}
}

func TestOffers(t *testing.T) {
	all := history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, Fair: true}
	if got := workload.Offers(workload.Command, all); got != (history.Offers{Tokens: true, Fair: true}) {
		t.Errorf("command: got %+v, want tokens and fairness only", got)
	}
	if got := workload.Offers(workload.Hot, all); got != all {
		t.Errorf("hot: got %+v, want %+v", got, all)
	}
}
