package main

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// noLock lets everybody in.
type noLock struct{}

func (noLock) Lock(context.Context) error   { return nil }
func (noLock) Unlock(context.Context) error { return nil }

func TestFightFindsALockThatDoesNotExclude(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := fight(t.Context(), []lock{noLock{}, noLock{}}, time.Millisecond, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if o.violations == 0 {
			t.Errorf("two clients took no lock at all %d times, and no violation was found", o.acquired)
		}
		b := &bench{contests: []*contestResult{{violations: [variants]int{ours: o.violations}}}}
		if b.violations() != o.violations || !strings.Contains(b.exclusion(), "with Stile") {
			t.Errorf("the violations do not reach the report: %d, %q", b.violations(), b.exclusion())
		}
	})
}

// localLock is a channel with room for one. A mutex would not do: time in a bubble stands still while somebody waits for one.
type localLock chan struct{}

func newLocalLock() localLock { return make(localLock, 1) }

func (l localLock) Lock(context.Context) error   { l <- struct{}{}; return nil }
func (l localLock) Unlock(context.Context) error { <-l; return nil }

func TestFightCountsWhatALockDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocalLock()
		const slice = 100 * time.Millisecond
		o, err := fight(t.Context(), []lock{l, l, l}, 5*time.Millisecond, slice)
		switch {
		case err != nil:
			t.Fatal(err)
		case o.violations != 0:
			t.Errorf("%d violations of a lock that excludes", o.violations)
		case o.acquired != 20:
			t.Errorf("%d acquisitions, each held for 5 ms, in %v", o.acquired, slice)
		case len(o.handOvers) == 0 || len(o.handOvers) >= o.acquired:
			t.Errorf("%d hand-overs with %d acquisitions: the first one is none", len(o.handOvers), o.acquired)
		}
		for _, d := range o.handOvers {
			if d != 0 {
				t.Errorf("a hand-over that needs no time took %v", d)
			}
		}
	})
}

func TestOneClientAloneHandsNothingOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := fight(t.Context(), []lock{newLocalLock()}, time.Millisecond, 5*time.Millisecond)
		if err != nil || o.acquired != 5 || len(o.handOvers) > 0 {
			t.Errorf("%d acquisitions, %d hand-overs, error %v; want five, none, none", o.acquired, len(o.handOvers), err)
		}
	})
}

// brokenLock fails.
type brokenLock struct{ err error }

func (l brokenLock) Lock(context.Context) error   { return l.err }
func (l brokenLock) Unlock(context.Context) error { return nil }

// patientLock waits until it is called off.
type patientLock struct{}

func (patientLock) Lock(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (patientLock) Unlock(context.Context) error   { return nil }

func TestFightEndsWithTheFirstError(t *testing.T) {
	want := errors.New("broken")
	if _, err := fight(t.Context(), []lock{patientLock{}, brokenLock{want}}, 0, time.Hour); !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

func TestRatiosAreThoseWithinTheRounds(t *testing.T) {
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
	if want := (ratio{2, 2, 3}); got != want {
		t.Errorf("ratio %+v, want %+v", got, want)
	}
	if got := a.quantile(0.99); got != 30*time.Millisecond {
		t.Errorf("99th percentile %v, want 30ms", got)
	}
	if got := compare(nil, b.medians()); !math.IsNaN(got.median) || got.String() != "–" {
		t.Errorf("ratio of nothing: %+v, printed as %q", got, got)
	}
}

func TestExpectationsAreJudgedByTheMedian(t *testing.T) {
	for _, test := range []struct {
		median, limit float64
		atMost        bool
		want          bool
	}{
		{1.10, 1.10, true, true},
		{1.11, 1.10, true, false},
		{25, 25, false, true},
		{24.9, 25, false, false},
		{math.NaN(), 1, true, false},
		{math.NaN(), 1, false, false},
	} {
		e := expectation{"x", ratio{test.median, 0, 100}, test.limit, test.atMost}
		if e.reached() != test.want || strings.Contains(e.String(), "not reached") == test.want {
			t.Errorf("%v: reached: %t, want %t", e, e.reached(), test.want)
		}
	}
}
