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

// play starts a worker, and returns how to end it.
func play(t *testing.T, c workload.Config) (end func()) {
	t.Helper()
	c.SettleTimeout = time.Millisecond // workers share this process: what one counts is not its own
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- workload.Run(ctx, c) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s ended with: %v", c.Worker, err)
		}
	}
}

func acquired(e history.Event) bool { return e.Acquire != nil && e.Acquire.Outcome == history.OK }
func released(e history.Event) bool { return e.End != nil && e.End.Outcome == history.OK }

// counted matches the nth event that matches.
func counted(n int, matches func(history.Event) bool) func(history.Event) bool {
	return func(e history.Event) bool {
		if matches(e) {
			n--
		}
		return n <= 0
	}
}

// long is the TTL of sessions that are not to be lost, on however busy a machine.
const long = time.Minute

func stileOn(server *testservers.Redis, ttl time.Duration) locker.Config {
	return locker.Config{Kind: "stile", URL: "redis://" + server.Addr(), TTL: ttl}
}

// A run of several workers on a store that works, and what must be so in every history of such a
// run.
func TestWorkloads(t *testing.T) {
	for load, enough := range map[string]int{workload.Hot: 20, workload.Many: 40, workload.Long: 6, workload.Storm: 20, workload.Churn: 20} {
		t.Run(load, func(t *testing.T) {
			t.Parallel()
			server := testservers.StartRedis(t)
			stage := workloadtest.New(t)
			var ends []func()
			for i := range 3 {
				c := stage.Config(fmt.Sprintf("w%d", i+1), load, stileOn(server, long))
				c.HoldUnit = 300 * time.Millisecond
				ends = append(ends, play(t, c))
			}
			stage.Await("number of releases", counted(enough, released))
			for _, end := range ends {
				end()
			}
			h := stage.History()
			checkCalls(t, h, load)
			checkEnds(t, h, load)
			checkWrites(t, h)
			checkCensus(t, h)
			for _, lock := range slices.Compact(locks(h)) {
				if !slices.Contains(workload.Locks(load, "t/"), lock) {
					t.Errorf("%s is not one of this workload's locks", lock)
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

// Every call returns, who waits has said so, and grants are called differently.
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
				t.Errorf("%s asks as %q, which has been or is another's", e.Worker, a.Grant)
			}
			seen[a.Grant] = true
			if asked[a.Grant] == 0 {
				tries++
			}
			if a.Call < asked[a.Grant] || a.Return < a.Call || e.At != a.Return {
				t.Errorf("at %d, asked at %d: %+v", e.At, asked[a.Grant], *a)
			}
			if a.Outcome == history.OK && (a.Token == 0 || a.Until <= a.Call) {
				t.Errorf("%+v tells less than Stile does", *a)
			}
			if a.Outcome == history.Unknown || a.Outcome == history.Failed && !a.GaveUp {
				t.Errorf("a call came to nothing, on a store that works: %s", a.Err)
			}
			delete(asked, a.Grant)
		}
	}
	if len(asked) != 0 {
		t.Errorf("these asked and got no answer: %v", asked)
	}
	if (tries > 0) != (load == workload.Storm) {
		t.Errorf("there were %d tries", tries)
	}
}

// Every hold ends, once before its release and once after, and while it lasts nobody else has the
// lock.
func checkEnds(t *testing.T, h *history.History, load string) {
	t.Helper()
	left := 0 // to the end of the session
	holder := map[string]string{}
	lockOf := map[string]string{}
	for _, e := range h.Events {
		switch {
		case acquired(e):
			lock := e.Acquire.Lock
			if other := holder[lock]; other != "" {
				t.Errorf("%s got %s while %s had it", e.Acquire.Grant, lock, other)
			}
			holder[lock], lockOf[e.Acquire.Grant] = e.Acquire.Grant, lock
		case e.End != nil && e.End.Return == 0:
			if lock := lockOf[e.End.Grant]; holder[lock] == e.End.Grant {
				holder[lock] = ""
			}
			if e.At != e.End.Call {
				t.Errorf("the end of %s at %d is recorded as of %d", e.End.Grant, e.End.Call, e.At)
			}
		case e.End != nil:
			if lockOf[e.End.Grant] == "" {
				t.Errorf("%s ends and had not begun, or ends twice", e.End.Grant)
			}
			delete(lockOf, e.End.Grant)
			if e.End.Outcome == history.Unknown {
				left++
			}
			if e.End.Told != 0 || e.End.Until == 0 || e.At != e.End.Return {
				t.Errorf("at %d: %+v", e.At, *e.End)
			}
		}
	}
	if len(lockOf) != 0 {
		t.Errorf("these never end: %v", lockOf)
	}
	if (left > 0) != (load == workload.Churn) {
		t.Errorf("%d were not released", left)
	}
}

// Under a lock that works nothing is lost and nothing stale, and the first write of a hold shows
// its token.
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
			t.Errorf("%s begins with writing %s", w.Grant, w.Mode)
		}
		writers[w.Grant] = true
		if w.Refused || w.Mode == "unfenced" && w.Version != w.Read {
			t.Errorf("a stale write: %+v", *w)
		}
	}
	for _, mode := range []string{"unfenced", "fenced", "audit"} {
		if modes[mode] == 0 {
			t.Errorf("nothing was written %s", mode)
		}
	}
}

// Every worker says that it has begun, and counts what it has open.
func checkCensus(t *testing.T, h *history.History) {
	t.Helper()
	begun, counts := 0, map[string][]string{}
	for _, e := range h.Events {
		switch {
		case e.Started != nil:
			begun++
		case e.Census != nil:
			counts[e.Worker] = append(counts[e.Worker], e.Census.Phase)
		}
	}
	for worker, phases := range counts {
		if !slices.Equal(phases, []string{"begin", "end"}) {
			t.Errorf("%s counts: %v", worker, phases)
		}
	}
	if begun != 3 || len(counts) != 3 {
		t.Errorf("%d begin and %d count, of 3", begun, len(counts))
	}
}

// On a busy machine some holds may be lost before that: it is of one that is not.
func TestALongHoldIsSeenToGoOn(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	server, stage := testservers.StartRedis(t), workloadtest.New(t)
	end := play(t, stage.Config("w1", workload.Long, stileOn(server, ttl)))
	e := stage.Await("release of a hold that has not been lost", released).End
	end()
	var a history.Acquire
	extended, until := 0, int64(0)
	for _, ev := range stage.History().Events {
		switch {
		case ev.Acquire != nil && ev.Acquire.Grant == e.Grant:
			a, until = *ev.Acquire, ev.Acquire.Until
		case ev.Extend != nil && ev.Extend.Grant == e.Grant:
			extended++
			if x := ev.Extend; x.Until <= until || x.Until > ev.At+int64(ttl) {
				t.Errorf("valid until %d is extended, at %d, to %d", until, ev.At, x.Until)
			}
			until = ev.Extend.Until
		}
	}
	if held := time.Duration(e.Call - a.Return); held < 3*ttl || until < e.Call || extended < 2 {
		t.Errorf("it was held for %v, and until then valid for %v, extended %d times", held, time.Duration(until-a.Return), extended)
	}
}

func TestAHolderWhoseKeyIsDeletedIsTold(t *testing.T) {
	t.Parallel()
	etcd, stage := testservers.StartEtcd(t), workloadtest.New(t)
	end := play(t, stage.Config("w1", workload.Long, locker.Config{Kind: "stile", URL: "etcd://" + etcd.Endpoint(), TTL: long}))
	defer end()
	hold := stage.Await("acquisition", acquired).Acquire
	before := history.Now()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	if _, err := cli.Delete(t.Context(), "t/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	e := stage.Await("end", func(e history.Event) bool { return e.End != nil && e.End.Grant == hold.Grant && e.End.Return != 0 }).End
	if e.Told < before || e.Told > e.Call || e.Why == "" || e.Outcome != history.Failed {
		t.Errorf("deleted at %d, it ends so: %+v", before, *e)
	}
}

// What the holder of a lock without a deadline knows is what it is told.
func TestAPeerWithoutTokensAndDeadlines(t *testing.T) {
	t.Parallel()
	server, stage := testservers.StartRedis(t), workloadtest.New(t)
	end := play(t, stage.Config("w1", workload.Long, locker.Config{Kind: "rueidislock", Addresses: []string{server.Addr()}, TTL: long, Patient: true}))
	a := stage.Await("acquisition", acquired).Acquire
	if a.Token != 0 || a.Until != 0 {
		t.Errorf("it is said to be told: %+v", *a)
	}
	server.Do("DEL", "rueidislock:0:"+a.Lock)
	e := stage.Await("end", func(e history.Event) bool { return e.End != nil && e.End.Return != 0 }).End
	if e.Told == 0 || e.Until != 0 || e.Outcome != history.Failed {
		t.Errorf("it ends so: %+v", *e)
	}
	end()
	for _, e := range stage.History().Events {
		if e.Write != nil && e.Write.Mode == "fenced" {
			t.Errorf("it has no token, and yet: %+v", *e.Write)
		}
	}
}

// The TTL is short, because it is what a call waits for. That a session is lost before the server
// is killed does no harm.
func TestAStoreThatDoesNotAnswerIsNoReasonToStop(t *testing.T) {
	t.Parallel()
	server, stage := testservers.StartRedis(t), workloadtest.New(t)
	end := play(t, stage.Config("w1", workload.Hot, stileOn(server, time.Second)))
	defer end()
	stage.Await("release", released)
	server.Kill()
	e := stage.AwaitNext("failure", func(e history.Event) bool { return e.Acquire != nil && e.Acquire.Outcome != history.OK })
	if e.Acquire.Outcome != history.Failed || e.Acquire.GaveUp || e.Acquire.Err == "" {
		t.Errorf("it is recorded as %+v", *e.Acquire)
	}
	server.Start()
	stage.AwaitNext("acquisition", acquired)
}

func TestAWorkerWaitsForItsServersToStart(t *testing.T) {
	t.Parallel()
	server, stage := testservers.StartRedis(t), workloadtest.New(t)
	server.Kill()
	end := play(t, stage.Config("w1", workload.Hot, stileOn(server, long)))
	defer end()
	stage.Await("beginning", func(e history.Event) bool { return e.Started != nil })
	// What the connection leaves open is to be found.
	stage.Await("count of what is open before it connects", func(e history.Event) bool { return e.Census != nil })
	server.Start()
	stage.Await("acquisition", acquired)
}

func TestTheLastAttempts(t *testing.T) {
	t.Parallel()
	server, stage := testservers.StartRedis(t), workloadtest.New(t)
	l := stileOn(server, long)
	server.Do("SET", "t/stuck", "forever")
	c := stage.Config("final", workload.Final, l)
	c.Resource, c.Locks, c.FinalTimeout = "", []string{"t/free", "t/stuck", "t/other"}, 10*time.Second
	if err := workload.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]history.Outcome{}
	for _, e := range stage.History().Events {
		if f := e.Final; f != nil {
			outcomes[f.Lock] = f.Outcome
			if (f.Err == "") != (f.Outcome == history.OK) {
				t.Errorf("%+v", *f)
			}
		}
	}
	if outcomes["t/free"] != history.OK || outcomes["t/other"] != history.OK || outcomes["t/stuck"] != history.Failed {
		t.Errorf("the outcomes are %v", outcomes)
	}
	if n, err := server.Do("EXISTS", "t/free", "t/other").AsInt64(); err != nil || n != 0 {
		t.Errorf("%d of the locks are not released, %v", n, err)
	}
}

func TestTheSameSeedAsksForTheSame(t *testing.T) {
	t.Parallel()
	asked := func() []string {
		server, stage := testservers.StartRedis(t), workloadtest.New(t)
		c := stage.Config("w1", workload.Churn, stileOn(server, long))
		end := play(t, c)
		stage.Await("number of releases", counted(10, released))
		end()
		var all []string
		for _, e := range stage.History().Events {
			if e.Asked != nil {
				all = append(all, e.Asked.Lock)
			}
		}
		return all[:10]
	}
	if a, b := asked(), asked(); !slices.Equal(a, b) {
		t.Errorf("once %v, and once %v", a, b)
	}
}

func TestAnErrorNamesTheWorkloadsThereAre(t *testing.T) {
	err := workload.Run(t.Context(), workload.Config{Workload: "idle"})
	if err == nil || !strings.Contains(err.Error(), "churn") {
		t.Errorf("it says: %v", err)
	}
}

func TestCommandsAreToldNothingButTheirTokens(t *testing.T) {
	all := history.Offers{Tokens: true, Deadlines: true, Loss: true, Proof: true, Fair: true}
	if got := workload.Offers(workload.Command, all); got != (history.Offers{Tokens: true, Fair: true}) {
		t.Errorf("commands are offered %+v", got)
	}
	if got := workload.Offers(workload.Hot, all); got != all {
		t.Errorf("others are offered %+v", got)
	}
}
