package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

// noLock lets everybody in.
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
			t.Errorf("two clients took no lock at all %v times, and no violation was found", o.acquired)
		}
	})
}

// A violation reaches the report and the exit code.
func TestReport_violations(t *testing.T) {
	k := contest{Clients: 2}
	b := &bench{
		setting:        setting{name: "here", contests: []contest{k}, contenders: []contender{{name: stileName}}},
		contestResults: map[contest]map[string]*contestResult{k: {stileName: {violations: 3, maxAcquired: []int{1}, minAcquired: []int{1}}}},
	}
	r := &report{Settings: []settingReport{b.report()}}
	if r.violations() != 3 || !strings.Contains(r.markdown(), "**Stile, here, 2 clients, hold 0s: 3 times**") {
		t.Errorf("%d violations in\n%s", r.violations(), r.markdown())
	}
}

// localLock is a channel with room for one. A mutex would not do: time in a bubble stands still while somebody waits for one.
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
			t.Errorf("%d violations of a lock that excludes, %d given up", o.violations, o.givenUp)
		case acquired != 20:
			t.Errorf("%d acquisitions, each held for 5 ms, in %v", acquired, slice)
		case len(o.handOvers) == 0 || len(o.handOvers) >= acquired:
			t.Errorf("%d hand-overs with %d acquisitions: the first one is none", len(o.handOvers), acquired)
		}
		for _, d := range o.handOvers {
			if d != 0 {
				t.Errorf("a hand-over that needs no time took %v", d)
			}
		}
	})
}

func TestRunContest_oneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := runContest(t.Context(), []client{newLocalLock()}, "x", time.Millisecond, 5*time.Millisecond)
		if err != nil || o.acquired[0] != 5 || len(o.handOvers) > 0 {
			t.Errorf("%d acquisitions, %d hand-overs, error %v; want five, none, none", o.acquired, len(o.handOvers), err)
		}
	})
}

// failingLock fails.
type failingLock struct{ err error }

func (l failingLock) Lock(context.Context, string) (func(context.Context) error, error) {
	return nil, l.err
}
func (l failingLock) Close() {}

// blockedLock waits until it is called off.
type blockedLock struct{}

func (blockedLock) Lock(ctx context.Context, _ string) (func(context.Context) error, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (blockedLock) Close() {}

func TestRunContest_endsWithFirstError(t *testing.T) {
	want := errors.New("broken")
	if _, err := runContest(t.Context(), []client{blockedLock{}, failingLock{want}}, "x", 0, time.Hour); !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

func TestRunContest_givesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := runContest(t.Context(), []client{blockedLock{}}, "x", 0, time.Second)
		if err != nil || o.givenUp != 1 || o.acquired[0] != 0 {
			t.Errorf("%+v, %v, want one call that was given up", o, err)
		}
	})
}

// lateLock is obtained at the moment at which it is given up.
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
			t.Errorf("unlock: %t, error %v, released: %t, want it released and given up", unlock != nil, err, l.released)
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
		t.Errorf("ratio %v, want %+v", got, want)
	}
	if got := a.summary().P99; got != 30*time.Millisecond {
		t.Errorf("99th percentile %v, want 30ms", got)
	}
	if got := compare(nil, b.medians()); got != nil || got.String() != "–" {
		t.Errorf("ratio of nothing: %+v, printed as %q", got, got)
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
			t.Errorf("%v: reached: %t, want %t", e, e.reached(), test.want)
		}
	}
}

// A contender whose lock takes 2 ms, beside Stile, whose takes 1 ms.
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
			t.Errorf("Stile's pair / the peer's: %v, want 0.5", got)
		}
		r := b.report()
		if got := r.Alone[0].HandOver; got.Count == 0 || got.P99 != 0 {
			t.Errorf("hand-over of a waiter that has long been in line: %+v, want no time", got)
		}
		if len(r.Contests) != 2 || r.Contests[0].PerSecond < 900 || r.violations() != 0 {
			t.Errorf("contests: %+v, want two, each with 1000 acquisitions a second", r.Contests)
		}
	})
}

func (s settingReport) violations() int { return (&report{Settings: []settingReport{s}}).violations() }

// What the program measures is worth nothing if it does not run.
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
			// Here a JVM need not be fast once it runs: so a start may take half of the processor's time.
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
					if a.Pair.Count == 0 || a.HandOver.Count == 0 {
						t.Errorf("%s, %s: %d pairs, %d hand-overs were measured", s.Name, a.Contender, a.Pair.Count, a.HandOver.Count)
					}
				}
			}
			if len(r.Settings) == 0 || len(r.Expected) == 0 || !strings.Contains(r.markdown(), stileName) {
				t.Errorf("the report is\n%s", out.String())
			}
		})
	}
}
