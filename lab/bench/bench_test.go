package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

// TestMain makes the test binary a worker if it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && strings.HasPrefix(os.Args[1], workerFlag) {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// noLock does not exclude anything.
type noLock struct{}

func (noLock) Lock(context.Context, string) (func(context.Context) error, error) {
	return func(context.Context) error { return nil }, nil
}
func (noLock) Close() {}

func TestRunContest_countsViolations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := runContest(t.Context(), []client{noLock{}, noLock{}}, "x", time.Millisecond, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if o.violations == 0 {
			t.Errorf("got no violations in %v acquisitions of a lock that does not exclude", o.acquired)
		}
	})
}

// Violations are counted and appear in the report.
func TestReport_violations(t *testing.T) {
	k := contest{Clients: 2}
	b := &bench{
		setting:        setting{name: "here", subject: stileName, contests: []contest{k}, contenders: []contender{{name: stileName}}},
		contestResults: map[contest]map[string]*contestResult{k: {stileName: {violations: 3, maxAcquired: []int{1}, minAcquired: []int{1}}}},
	}
	r := &report{Settings: []settingReport{b.report()}}
	if r.violations() != 3 || !strings.Contains(r.markdown(), "**Stile, here, 2 clients, hold 0s: 3 times**") {
		t.Errorf("got %d violations, want 3; report:\n%s", r.violations(), r.markdown())
	}
}

// localLock is a channel with a buffer of one. A sync.Mutex would not do: in a synctest bubble,
// time does not advance while a goroutine waits for a mutex.
type localLock chan struct{}

func newLocalLock() localLock { return make(localLock, 1) }

func (l localLock) Lock(ctx context.Context, _ string) (func(context.Context) error, error) {
	select {
	case l <- struct{}{}:
		return func(context.Context) error { <-l; return nil }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
func (l localLock) Close() {}

func TestRunContest_counts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocalLock()
		const slice = 100 * time.Millisecond
		o, err := runContest(t.Context(), []client{l, l, l}, "x", 5*time.Millisecond, slice)
		if err != nil {
			t.Fatal(err)
		}
		acquired := 0
		for _, n := range o.acquired {
			acquired += n
		}
		switch {
		case o.violations != 0 || o.givenUp != 0:
			t.Errorf("got %d violations and %d given up, want none of a lock that excludes", o.violations, o.givenUp)
		case acquired != 20:
			t.Errorf("got %d acquisitions of 5ms each in %v, want 20", acquired, slice)
		case len(o.handOvers) == 0 || len(o.handOvers) >= acquired:
			t.Errorf("got %d hand-overs with %d acquisitions, want at least one and fewer than acquisitions", len(o.handOvers), acquired)
		}
		for _, d := range o.handOvers {
			if d != 0 {
				t.Errorf("got a hand-over of %v, want 0", d)
			}
		}
	})
}

func TestRunContest_oneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := runContest(t.Context(), []client{newLocalLock()}, "x", time.Millisecond, 5*time.Millisecond)
		if err != nil || o.acquired[0] != 5 || len(o.handOvers) > 0 {
			t.Errorf("got %d acquisitions, %d hand-overs, error %v; want 5, 0, nil", o.acquired, len(o.handOvers), err)
		}
	})
}

// failingLock returns an error.
type failingLock struct{ err error }

func (l failingLock) Lock(context.Context, string) (func(context.Context) error, error) {
	return nil, l.err
}
func (l failingLock) Close() {}

// blockedLock waits until its context ends.
type blockedLock struct{}

func (blockedLock) Lock(ctx context.Context, _ string) (func(context.Context) error, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (blockedLock) Close() {}

func TestRunContest_endsWithFirstError(t *testing.T) {
	want := errors.New("broken")
	if _, err := runContest(t.Context(), []client{blockedLock{}, failingLock{want}}, "x", 0, time.Hour); !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

func TestRunContest_givesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := runContest(t.Context(), []client{blockedLock{}}, "x", 0, time.Second)
		if err != nil || o.givenUp != 1 || o.acquired[0] != 0 {
			t.Errorf("got %+v, error %v; want one call given up and no acquisition", o, err)
		}
	})
}

// lateLock is acquired at the moment its context ends.
type lateLock struct{ released bool }

func (l *lateLock) Lock(ctx context.Context, _ string) (func(context.Context) error, error) {
	<-ctx.Done()
	return func(ctx context.Context) error { l.released = true; return ctx.Err() }, nil
}
func (*lateLock) Close() {}

func TestLockWithin_releasesLateLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lateLock
		if unlock, err := lockWithin(t.Context(), &l, "x", time.Second); unlock != nil || err != nil || !l.released {
			t.Errorf("got unlock %t, error %v, released %t; want no unlock, no error, released", unlock != nil, err, l.released)
		}
	})
}

func TestCompare_withinRounds(t *testing.T) {
	ms := func(n ...int) (d []time.Duration) {
		for _, n := range n {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	// The machine is ten times slower in the second round, and nothing was measured in the third.
	a := series{ms(1, 2, 3), ms(20, 30, 10), nil, ms(6, 6, 6)}
	b := series{ms(1, 1, 1), ms(10, 10, 10), ms(5), ms(2, 2, 2)}
	got := compare(a.medians(), b.medians())
	if want := (ratio{2, 2, 3}); got == nil || *got != want {
		t.Errorf("got ratio %v, want %+v", got, want)
	}
	if got := a.summary().P99; got != 30*time.Millisecond {
		t.Errorf("got 99th percentile %v, want 30ms", got)
	}
	if got := compare(nil, b.medians()); got != nil || got.String() != "–" {
		t.Errorf("got ratio %+v, printed as %q, want nil, printed as –", got, got)
	}
}

func TestExpectation_reached(t *testing.T) {
	for _, test := range []struct {
		got    *ratio
		limit  float64
		atMost bool
		want   bool
	}{
		{&ratio{1.10, 0, 100}, 1.10, true, true},
		{&ratio{1.11, 0, 100}, 1.10, true, false},
		{&ratio{25, 0, 100}, 25, false, true},
		{&ratio{24.9, 0, 100}, 25, false, false},
		{nil, 1, true, false},
		{nil, 1, false, false},
	} {
		e := expectation{"x", test.got, test.limit, test.atMost}
		if e.reached() != test.want || strings.Contains(e.String(), "not reached") == test.want {
			t.Errorf("%v: got reached %t, want %t", e, e.reached(), test.want)
		}
	}
}

// A pair of Stile takes 1 ms, a pair of the other contender 2 ms.
func TestMeasureSetting_slowLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(name string, d time.Duration) contender {
			held := newLocalLock()
			lock := func(ctx context.Context, key string) (func(context.Context) error, error) {
				time.Sleep(d)
				return held.Lock(ctx, key)
			}
			return contender{name: name, connect: func(context.Context, int) (client, error) { return funcClient{lock, func() {}}, nil }}
		}
		k := contest{Clients: 3, Hold: time.Millisecond}
		b, err := measureSetting(t.Context(), config{rounds: 3, slice: 100 * time.Millisecond}, setting{
			name: "here", contests: []contest{k}, handOverDelay: func(int) time.Duration { return 10 * time.Millisecond },
			contenders: []contender{slow("peer", 2*time.Millisecond), slow(stileName, time.Millisecond)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.pairRatio("peer"); got == nil || *got != (ratio{0.5, 0.5, 0.5}) {
			t.Errorf("got pair ratio %v, want 0.5", got)
		}
		r := b.report()
		if got := r.Alone[0].HandOver; got.Count == 0 || got.P99 != 0 {
			t.Errorf("got hand-over %+v to a waiter that is already in line, want no time", got)
		}
		if len(r.Contests) != 2 || r.Contests[0].PerSecond < 900 || r.violations() != 0 {
			t.Errorf("got contests %+v, want two with about 1000 acquisitions per second each and no violations", r.Contests)
		}
	})
}

func (s settingReport) violations() int { return (&report{Settings: []settingReport{s}}).violations() }

// Each store's measurements run and have results.
func TestRun(t *testing.T) {
	_, err := testservers.Java()
	testservers.Check(t, err)
	_, err = testservers.ClassPath("zookeeper")
	testservers.Check(t, err)
	for name, args := range map[string][]string{
		"etcd":  {"-etcd", testservers.Binary(t, "etcd")},
		"redis": nil,
		"zk":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			// A JVM need not be fast here, but its start may take half of the processor's time.
			// These options make it start faster.
			t.Setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dzookeeper.forceSync=no")
			var out bytes.Buffer
			args := append([]string{"-store", name, "-rounds", "1", "-slice", "10ms", "-o", "json"}, args...)
			if err := run(t.Context(), args, &out); err != nil {
				t.Fatal(err)
			}
			var r report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			for _, s := range r.Settings {
				for _, a := range s.Alone {
					gaveUp := a.GivenUp > 0 && strings.HasPrefix(a.Contender, "rueidislock") // sometimes its calls do not return in time
					if (a.Pair.Count == 0 || a.HandOver.Count == 0) && !gaveUp {
						t.Errorf("%s, %s: got %d pairs and %d hand-overs, want some", s.Name, a.Contender, a.Pair.Count, a.HandOver.Count)
					}
				}
			}
			for _, c := range r.Crowds {
				if c.Requests == 0 { // even if none was obtained in so short a slice
					t.Errorf("%s, %v, %s: got no requests", c.Store, c.Crowd, c.Contender)
				}
			}
			for _, m := range r.Timed {
				if m.Took.Count == 0 {
					t.Errorf("%s, %s: got no times", m.What, m.Contender)
				}
			}
			if name != "zk" && (len(r.Crowds) == 0 || len(r.Timed) == 0) {
				t.Errorf("got %d rows of crowds and %d of times, want some", len(r.Crowds), len(r.Timed))
			}
			if len(r.Settings) == 0 || len(r.Expected) == 0 || !strings.Contains(r.markdown(), stileName) {
				t.Errorf("got an incomplete report:\n%s", out.String())
			}
		})
	}
}

// Each contest can be measured alone, and only on the stores that have it.
func TestRun_contest(t *testing.T) {
	var out bytes.Buffer
	args := []string{"-store", "redis", "-contest", "rwmutex", "-rounds", "1", "-slice", "10ms"}
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{"`bench -store redis -contest rwmutex`", stileRWMutex, "requests of a reader beside a reader of the same client ≤ 0:"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not contain %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "redsync, defaults") || strings.Contains(text, "LockAll") {
		t.Errorf("the report contains another contest:\n%s", text)
	}
	for _, args := range [][]string{{"-contest", "x"}, {"-store", "zk", "-contest", "election"}, {"-store", "startup", "-contest", "mutex"}} {
		if err := run(t.Context(), args, &bytes.Buffer{}); err == nil {
			t.Errorf("run with %q succeeded", args)
		}
	}
}

func TestCountViolations(t *testing.T) {
	read := func(from, to int64) turn { return turn{From: from, To: to} }
	write := func(from, to int64) turn { return turn{From: from, To: to, Write: true} }
	for _, test := range []struct {
		name  string
		turns []turn
		slots int
		want  int
	}{
		{"readers together", []turn{read(0, 9), read(1, 5), read(2, 7)}, 0, 0},
		{"writers one after another", []turn{write(0, 3), write(3, 5), read(5, 6)}, 0, 0},
		{"a reader beside a writer", []turn{write(0, 3), read(2, 4)}, 0, 1},
		{"a writer beside a reader", []turn{read(0, 3), write(2, 4)}, 0, 1},
		{"two writers", []turn{write(2, 4), write(0, 3)}, 0, 1},
		{"slots taken in turn", []turn{read(0, 3), read(0, 5), read(3, 6)}, 2, 0},
		{"more than the slots", []turn{read(0, 3), read(0, 5), read(2, 6)}, 2, 1},
	} {
		if got := countViolations(test.turns, test.slots); got != test.want {
			t.Errorf("%s: got %d violations, want %d", test.name, got, test.want)
		}
	}
}

// Turns that begin after the slice count for the requests and for violations only. Violations of a
// crowd appear in the report.
func TestCrowd_rows(t *testing.T) {
	ms := time.Millisecond.Nanoseconds()
	m := &crowds{crowd: crowd{Processes: 2, Goroutines: 1, WriteEvery: 2}, contenders: []string{"a", "b"}, store: "here", results: map[string]*crowdResult{"a": {}, "b": {}}}
	for name, turns := range map[string][][]turn{
		"a": {{{From: 1 * ms, To: 2 * ms, Write: true}, {Asked: 2 * ms, From: 3 * ms, To: 4 * ms}, {From: 12 * ms, To: 13 * ms}}, {{From: 3 * ms, To: 5 * ms}}},
		"b": {{{From: 1 * ms, To: 5 * ms, Write: true}}, {{From: 2 * ms, To: 3 * ms, Write: true}}},
	} {
		m.results[name].add(turns, []int64{10 * ms, 10 * ms}, 10*time.Millisecond, 8, m.crowd)
	}
	rows := m.rows()
	a, b := rows[0], rows[1]
	if a.PerSecond != 300 || a.Requests != 2 || a.Read.Count != 2 || a.Write.Count != 1 || a.Most != 2 || a.Least != 1 || a.Violations != 0 || fmt.Sprintf("%.2f", a.Share) != "0.67" {
		t.Errorf("got %+v", a)
	}
	if b.Violations != 1 || b.Rate.String() != "1.50 (1.50–1.50)" {
		t.Errorf("got %d violations and a ratio of rates of %v, want 1 and 1.50", b.Violations, b.Rate)
	}
	r := &report{Crowds: rows}
	if want := "**b, here, 2 processes × 1 goroutines, 50 % readers, hold 0s: 1 times**"; r.violations() != 1 || !strings.Contains(r.markdown(), want) {
		t.Errorf("got %d violations, want 1; report:\n%s", r.violations(), r.markdown())
	}
}

// countingLocks counts its locks, and how many of the same name are held at once.
type countingLocks struct {
	mu      sync.Mutex
	held    map[string]int
	locked  int
	twice   int
	failure error
}

func (c *countingLocks) Lock(_ context.Context, name string) (func(context.Context) error, error) {
	c.mu.Lock()
	c.held[name]++
	c.locked++
	if c.held[name] > 1 {
		c.twice++
	}
	c.mu.Unlock()
	time.Sleep(time.Millisecond)
	return func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.held[name]--
		return c.failure
	}, nil
}
func (*countingLocks) Close() {}

// Each goroutine locks a name of its own. What they cost is divided among the pairs.
func TestDistinct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := map[string]*countingLocks{rawEtcd: {}, stockMutex: {}, stileName: {}}
		requests := 0
		d := newDistinct("here", 256, []contender{{name: rawEtcd}, {name: stockMutex}, {name: stileName}}, usage{
			func(context.Context) (int, error) { return requests, nil },
			func(context.Context) (time.Duration, error) { return time.Duration(requests) * time.Millisecond, nil },
		})
		for name, c := range locks {
			c.held = make(map[string]int)
			slice := 10 * time.Millisecond
			if name == stileName {
				slice *= 2
			}
			requests = 0
			if err := d.measure(t.Context(), name, c, 0, slice); err != nil {
				t.Fatal(err)
			}
			if c.twice > 0 || len(c.held) != 256 || c.locked < 9*256 {
				t.Errorf("%s: got %d locks of %d names, %d while held; want 256 names, each at least 9 times", name, c.locked, len(c.held), c.twice)
			}
		}
		rows := d.rows()
		if len(rows) != 3 || rows[2].Rate != nil || rows[0].Rate == nil || rows[0].Pair.P50 != time.Millisecond || rows[0].PerSecond < 200_000 {
			t.Errorf("got rows %+v", rows)
		}
		if got := d.expectations(); len(got) != 2 || got[0].Got.Median > 1.1 || got[0].Limit != 1.5 || got[1].Limit != 2 {
			t.Errorf("got expectations %v", got)
		}
		var text strings.Builder
		distinctTable(&text, rows)
		if !strings.Contains(text.String(), "| here: 256 ") {
			t.Errorf("got table\n%s", text.String())
		}
		broken := &countingLocks{held: make(map[string]int), failure: errors.New("broken")}
		if err := d.measure(t.Context(), stileName, broken, 1, time.Hour); !errors.Is(err, broken.failure) {
			t.Errorf("got error %v, want %v", err, broken.failure)
		}
	})
}

// What pairs have cost is the difference, divided by their number.
func TestSpent_perPair(t *testing.T) {
	before, after := spent{10, 5 * time.Second, time.Second}, spent{30, 7 * time.Second, 2 * time.Second}
	if got, want := after.perPair(before, 10), (spent{2, 200 * time.Millisecond, 100 * time.Millisecond}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := after.perPair(before, 0); got.requests != 20 {
		t.Errorf("without a pair: got %+v, want all of it", got)
	}
}

// A worker's goroutines acquire for the duration of the slice, readers and writers in the same sequence
// for all contenders.
func TestRunGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocalLock()
		take := func(ctx context.Context, _ int, _ bool) (func(context.Context) error, error) { return l.Lock(ctx, "") }
		j := job{Epoch: time.Now().UnixNano(), Crowd: crowd{Goroutines: 3, WriteEvery: 3, Hold: time.Millisecond}, Slice: 60 * time.Millisecond}
		var kinds [2]string
		for i := range kinds {
			o, err := j.runGoroutines(t.Context(), take)
			if err != nil {
				t.Fatal(err)
			}
			turns := slices.Concat(o.Turns...)
			if n := len(turns); n < 60 || n > 63 || countViolations(turns, 1) != 0 {
				t.Errorf("got %d turns of 1ms in 60ms with %d violations, want 60 and the calls under way, no violations", n, countViolations(turns, 1))
			}
			for _, t := range o.Turns[0][:15] {
				kinds[i] += fmt.Sprint(t.Write)
			}
		}
		if kinds[0] != kinds[1] || !strings.Contains(kinds[0], "true") || !strings.Contains(kinds[0], "false") {
			t.Errorf("got %q and then %q, want the same mixture", kinds[0], kinds[1])
		}
	})
}

func TestRunGoroutines_endsWithFirstError(t *testing.T) {
	want := errors.New("broken")
	take := func(ctx context.Context, i int, _ bool) (func(context.Context) error, error) {
		if i > 0 {
			return nil, want
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if _, err := (job{Crowd: crowd{Goroutines: 2}, Slice: time.Hour}).runGoroutines(t.Context(), take); !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// recorder records the names that are locked and unlocked. Locking the name in bad fails.
type recorder struct {
	calls []string
	bad   string
}

func (r *recorder) Lock(_ context.Context, name string) (func(context.Context) error, error) {
	r.calls = append(r.calls, "lock "+name)
	if name == r.bad {
		return nil, errors.New("bad name")
	}
	return func(context.Context) error { r.calls = append(r.calls, "unlock "+name); return nil }, nil
}
func (*recorder) Close() {}

func TestSequence(t *testing.T) {
	var r recorder
	unlock, err := sequence{&r, 2}.Lock(t.Context(), "x")
	if err == nil {
		err = unlock(t.Context())
	}
	if want := []string{"lock x-00", "lock x-01", "unlock x-01", "unlock x-00"}; err != nil || !slices.Equal(r.calls, want) {
		t.Errorf("got calls %q, error %v; want %q", r.calls, err, want)
	}
	r = recorder{bad: "x-01"}
	if _, err := (sequence{&r, 3}).Lock(t.Context(), "x"); err == nil || !slices.Equal(r.calls, []string{"lock x-00", "lock x-01", "unlock x-00"}) {
		t.Errorf("got calls %q, error %v; want the first lock to be released when the second fails", r.calls, err)
	}
}

// Each contender's holders are killed, and what becomes of each of their waiters is in the report.
func TestRun_crash(t *testing.T) {
	_, err := testservers.Java()
	testservers.Check(t, err)
	_, err = testservers.ClassPath("zookeeper")
	testservers.Check(t, err)
	etcd := testservers.Binary(t, "etcd")
	t.Setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dzookeeper.forceSync=no")
	program := filepath.Join(t.TempDir(), "stile")
	if out, err := exec.Command("go", "build", "-C", "../../cmd/stile", "-buildvcs=false", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var out bytes.Buffer
	// A TTL of 8 s: the stock mutex loses its lease before it is ready if the machine stands still for as long.
	args := []string{"-store", "crash", "-rounds", "1", "-slice", "800ms", "-etcd", etcd, "-stile", program, "-o", "json"}
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if want := len(crashContenders(nil)); len(r.Crashes) != want {
		t.Fatalf("got %d contenders, want %d", len(r.Crashes), want)
	}
	for _, row := range r.Crashes {
		// How long it took is not checked: that depends on how busy the machine is.
		if row.Crashes+row.Early+row.Never != crashes {
			t.Errorf("%s, %s: got %+v, want %d crashes", row.Store, row.Contender, row, crashes)
		}
	}
}

// If a process ends before all are ready, its contender is measured again.
func TestMeasureWhenReady(t *testing.T) {
	starts := 0
	ends := func(ctx context.Context, _ string, _ time.Duration) (*workerProcess, error) {
		starts++
		return startProcess(exec.CommandContext(ctx, "true"))
	}
	var m crashMeasurement
	err := m.measureWhenReady(t.Context(), crashContender{start: ends, apart: true}, new(crashResult))
	if !errors.Is(err, errNotReady) || starts != 5*crashes {
		t.Errorf("got %d processes, error %v; want %d processes, error %v", starts, err, 5*crashes, errNotReady)
	}
	starts = 0
	broken := errors.New("broken")
	fails := func(context.Context, string, time.Duration) (*workerProcess, error) { starts++; return nil, broken }
	err = m.measureWhenReady(t.Context(), crashContender{start: fails, apart: true}, new(crashResult))
	if !errors.Is(err, broken) || starts != 1 {
		t.Errorf("got %d processes, error %v; want one and error %v", starts, err, broken)
	}
}

// A waiter that had the lock before its holder was killed, or that never got it, is counted apart.
func TestCrashResult_add(t *testing.T) {
	var r crashResult
	r.add([]int64{100, 100, 100, 200}, []int64{150, 90, 0, 200})
	r.add([]int64{10}, []int64{13})
	if !slices.Equal(r.took, []time.Duration{50, 0, 3}) || r.early != 1 || r.never != 1 {
		t.Errorf("got %+v, want the times 50, 0 and 3, one lock before the crash and one never", r)
	}
}

func TestReport_crashes(t *testing.T) {
	var r report
	took := []time.Duration{9 * time.Second, 10 * time.Second, 12 * time.Second}
	r.addCrashes(crashContender{store: crashZK, name: stockZK}, 10*time.Second, crashResult{took: took, never: 1})
	r.addCrashes(crashContender{store: crashRedis, name: stileName}, 10*time.Second, crashResult{took: took[:2]})
	r.addCrashes(crashContender{store: crashLocal, name: stileRun, apart: true}, 10*time.Second, crashResult{took: []time.Duration{51 * time.Millisecond}, early: 1})
	text := r.markdown()
	for _, want := range []string{
		"| ZooKeeper    | go-zookeeper's Lock | 3       | 10.00 s | 9.00 s | 12.00 s | 12.00 s | 0                | 1     |",
		"| local server | `stile run`         | 1       | 51 ms   |",
		"Redis, Stile: longest / 11s ≤ 1: 0.91 (0.91–0.91): reached", "Redis, Stile: before the crash or never ≤ 0: 0.00 (0.00–0.00): reached",
		"local server, `stile run`: before the crash or never ≤ 0: 1.00 (1.00–1.00): **not reached**",
		"local server, `stile run`: median / 50ms ≤ 1: 1.02 (1.02–1.02): **not reached**",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not contain %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "go-zookeeper's Lock: ") {
		t.Errorf("something is expected of a peer:\n%s", text)
	}
}

// stuckLock never returns, as some contenders do not although their context has ended.
type stuckLock struct{ release chan struct{} }

func (l stuckLock) Lock(context.Context, string) (func(context.Context) error, error) {
	<-l.release
	return nil, errors.New("released")
}
func (stuckLock) Close() {}

func TestWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := job{Epoch: time.Now().UnixNano(), TTL: time.Second}
		stuck := stuckLock{make(chan struct{})}
		if at, err := j.waitFor(t.Context(), stuck, "x"); at != 0 || err != nil || j.now() != int64(crashPatience(j.TTL)) {
			t.Errorf("got %d, error %v after %v; want that it gives up after %v", at, err, time.Duration(j.now()), crashPatience(j.TTL))
		}
		close(stuck.release)
		began := j.now()
		if at, err := j.waitFor(t.Context(), newLocalLock(), "x"); at != began || err != nil {
			t.Errorf("got %d, error %v; want %d", at, err, began)
		}
		want := errors.New("broken")
		if _, err := j.waitFor(t.Context(), failingLock{want}, "x"); !errors.Is(err, want) {
			t.Errorf("got error %v, want %v", err, want)
		}
	})
}

// A lock is extended three times in each TTL, until that fails.
func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, n := time.Now(), 0
		extend(t.Context(), 3*time.Second, func() error {
			if n++; n == 4 {
				return errors.New("lost")
			}
			return nil
		})
		if took := time.Since(began); n != 4 || took != 4*time.Second {
			t.Errorf("extended %d times in %v, want 4 times in 4s", n, took)
		}
	})
}
