//go:build linux

package nemesis

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

func steps(s Schedule, faults, n int) []step {
	var all []step
	for plan := s.plan(faults); len(all) < n; {
		all = append(all, plan.next())
	}
	return all
}

func TestSchedule_seed(t *testing.T) {
	one, two := steps(Schedule{Seed: 7}, 5, 200), steps(Schedule{Seed: 7}, 5, 200)
	if !reflect.DeepEqual(one, two) {
		t.Error("the same seed gives different schedules")
	}
	if reflect.DeepEqual(one, steps(Schedule{Seed: 8}, 5, 200)) {
		t.Error("different seeds give the same schedule")
	}
}

// In three of ten steps two faults strike.
func TestSchedule_pairs(t *testing.T) {
	const n = 5000
	uses, pairs, id := map[int]int{}, 0, 0
	for _, st := range steps(Schedule{Seed: 1, MeanPause: time.Minute}, 4, n) {
		if st.pause < 30*time.Second || st.pause >= 90*time.Second {
			t.Fatalf("got a pause of %v, want about a minute", st.pause)
		}
		for _, b := range st.strikes {
			uses[b.fault]++
			if id++; b.id != id {
				t.Fatalf("got id %d, want %d", b.id, id)
			}
		}
		if len(st.strikes) == 2 {
			pairs++
			if st.strikes[0].fault == st.strikes[1].fault {
				t.Fatal("a fault is paired with itself")
			}
		}
	}
	if pairs < n*27/100 || pairs > n*33/100 {
		t.Errorf("got %d pairs in %d steps, want three in ten", pairs, n)
	}
	for f, times := range uses {
		if want := (n + pairs) / 4; times < want*95/100 || times > want*105/100 {
			t.Errorf("fault %d is used %d times, want about %d", f, times, want)
		}
	}
}

func TestSchedule_usesAllFaults(t *testing.T) {
	seen := map[int]bool{}
	for _, st := range steps(Schedule{Seed: 3}, 9, 9) {
		for _, b := range st.strikes {
			seen[b.fault] = true
		}
	}
	if len(seen) != 9 {
		t.Errorf("got %d faults in nine steps, want nine", len(seen))
	}
}

func TestSchedule_singleFault(t *testing.T) {
	for _, st := range steps(Schedule{Seed: 1}, 1, 100) {
		if len(st.strikes) != 1 {
			t.Fatalf("got a step of %d strikes, want 1", len(st.strikes))
		}
	}
}

// A fakeWorld is a world without servers and workers. Its faults only count how often they strike
// and are healed.
type fakeWorld struct {
	World
	mu          sync.Mutex
	events      []history.Event
	granted     atomic.Int64
	unhealed    atomic.Int64 // faults that are not healed
	strikeTimes []time.Time
}

func newFakeWorld() *fakeWorld {
	s := &fakeWorld{}
	s.World.TTL = 2 * time.Second
	s.World.Progress = s.granted.Load
	s.World.Record = func(e history.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
	}
	return s
}

// fault returns a fault with this duration, whose victim has its name, and whose strike and heal
// return these errors.
func (s *fakeWorld) fault(name string, lasts time.Duration, fails, healFails error) Fault {
	return s.faultOn(name, name, lasts, fails, healFails)
}

func (s *fakeWorld) faultOn(victim, name string, lasts time.Duration, fails, healFails error) Fault {
	return Fault{Name: name, strike: func(_ context.Context, st *striker) error {
		if fails != nil {
			return fails
		}
		if !st.claim(victim, name) {
			return errClaimed
		}
		s.mu.Lock()
		s.strikeTimes = append(s.strikeTimes, time.Now())
		s.mu.Unlock()
		s.unhealed.Add(1)
		st.Role, st.What, st.Duration = "holder", "hurt", lasts
		st.heal = func() error {
			s.unhealed.Add(-1)
			return healFails
		}
		return nil
	}}
}

// grantContinuously increases the number of grants until ctx ends.
func (s *fakeWorld) grantContinuously(ctx context.Context) {
	for sleep(ctx, 10*time.Millisecond) {
		s.granted.Add(1)
	}
}

func TestRun_recordsAndHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := newFakeWorld()
		go s.grantContinuously(ctx)
		Run(ctx, &s.World, []Fault{s.fault("a", time.Second, nil, nil), s.fault("b", time.Second, nil, nil)}, Schedule{Seed: 1})
		if s.unhealed.Load() != 0 {
			t.Errorf("%d faults are not healed", s.unhealed.Load())
		}
		if len(s.claimed) != 0 {
			t.Errorf("victims are still claimed: %v", s.claimed)
		}
		struck, healed := map[int]bool{}, map[int]bool{}
		for _, e := range s.events {
			switch {
			case e.Fault != nil:
				struck[e.Fault.ID] = true
				if e.Fault.On != e.Fault.Name || e.Fault.Role != "holder" || e.Fault.What != "hurt" || e.At == 0 {
					t.Errorf("got fault %+v", *e.Fault)
				}
			case e.Heal != nil:
				if !struck[e.Heal.ID] || healed[e.Heal.ID] || e.Heal.Err != "" {
					t.Errorf("got heal %+v", *e.Heal)
				}
				healed[e.Heal.ID] = true
			}
		}
		if len(struck) < 20 || len(struck) != len(healed) {
			t.Errorf("got %d faults and %d heals in a minute, want the same number, at least 20", len(struck), len(healed))
		}
	})
}

func TestRun_pairWithSameVictim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		s := newFakeWorld()
		go s.grantContinuously(ctx)
		Run(ctx, &s.World, []Fault{
			s.faultOn("w1", "a", 10*time.Second, nil, nil), s.faultOn("w1", "b", 10*time.Second, nil, nil),
		}, Schedule{Seed: 1})
		open, turns := 0, 0
		for _, e := range s.events {
			if e.Fault != nil {
				turns, open = turns+1, open+1
			} else {
				open--
				if e.Heal.Err != "" {
					t.Errorf("fault %d: %s", e.Heal.ID, e.Heal.Err)
				}
			}
			if open > 1 {
				t.Fatal("both faults are active at once")
			}
		}
		if turns < 20 {
			t.Errorf("got %d faults of ten seconds in five minutes, want at least 20", turns)
		}
	})
}

func TestRun_canceledDuringFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newFakeWorld()
		began := time.Now()
		time.AfterFunc(10*time.Second, cancel)
		Run(ctx, &s.World, []Fault{s.fault("a", time.Hour, nil, nil)}, Schedule{})
		if s.unhealed.Load() != 0 || len(s.strikeTimes) != 1 {
			t.Errorf("got %d faults, %d of them not healed, want 1 and 0", len(s.strikeTimes), s.unhealed.Load())
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("Run returned after %v, want 10s", took)
		}
		if last := s.events[len(s.events)-1]; last.Heal == nil || last.Heal.Err != "" {
			t.Errorf("got last event %+v, want a heal", last)
		}
	})
}

func TestRun_waitsForGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := newFakeWorld()
		// One grant during the first fault, which does not count, and one three seconds after it.
		began := time.Now()
		go func() {
			sleep(ctx, 5*time.Second)
			s.granted.Add(1)
			sleep(ctx, 10*time.Second)
			s.granted.Add(1)
			sleep(ctx, time.Hour)
		}()
		Run(ctx, &s.World, []Fault{s.fault("a", 10*time.Second, nil, nil)}, Schedule{MeanPause: time.Second})
		second, third := s.strikeTimes[1].Sub(began), s.strikeTimes[2].Sub(began)
		if second < 15*time.Second || second > 17*time.Second {
			t.Errorf("the second fault struck after %v, want a second after the grant at 15s", second)
		}
		// From then on nothing is granted. Run waits for two TTLs and six seconds.
		if pause := third - second - 10*time.Second; pause < 10*time.Second || pause > 12*time.Second {
			t.Errorf("without a grant the next fault struck %v after the heal, want 2 TTL + 6s + 1s", pause)
		}
	})
}

func TestRun_waitsForGrantAfterLastFault(t *testing.T) {
	for name, c := range map[string]struct {
		granted, want time.Duration // after the heal
	}{
		"granted":     {granted: 3 * time.Second, want: 3 * time.Second},
		"not granted": {granted: time.Hour, want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				s, began := newFakeWorld(), time.Now()
				late := time.AfterFunc(10*time.Second+c.granted, func() { s.granted.Add(1) })
				defer late.Stop()
				Run(ctx, &s.World, []Fault{s.fault("a", time.Hour, nil, nil)}, Schedule{})
				if waited := time.Since(began) - 10*time.Second; waited < c.want || waited > c.want+time.Second {
					t.Errorf("Run waited for %v, want %v", waited, c.want)
				}
			})
		})
	}
}

func TestRun_recordsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := newFakeWorld()
		go s.grantContinuously(ctx)
		Run(ctx, &s.World, []Fault{
			s.fault("failing", 0, errors.New("strike failed"), nil),
			s.fault("unhealed", 0, nil, errors.New("heal failed")),
		}, Schedule{Seed: 1})
		names, errs := map[int]string{}, map[string][]string{}
		for _, e := range s.events {
			if e.Fault != nil {
				names[e.Fault.ID] = e.Fault.Name
			} else if !slices.Contains(errs[names[e.Heal.ID]], e.Heal.Err) {
				errs[names[e.Heal.ID]] = append(errs[names[e.Heal.ID]], e.Heal.Err)
			}
		}
		want := map[string][]string{"failing": {"strike failed"}, "unhealed": {"heal failed"}}
		if !reflect.DeepEqual(errs, want) {
			t.Errorf("got errors %v, want %v", errs, want)
		}
		if len(s.claimed) != 0 {
			t.Errorf("victims are still claimed: %v", s.claimed)
		}
	})
}

func TestRun_noFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, began := newFakeWorld(), time.Now()
		Run(ctx, &s.World, nil, Schedule{})
		if time.Since(began) != time.Minute || len(s.events) > 0 {
			t.Errorf("after %v: got events %v, want none after a minute", time.Since(began), s.events)
		}
	})
}
