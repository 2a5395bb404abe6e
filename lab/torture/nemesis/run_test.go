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

func TestAScheduleIsDecidedByItsSeed(t *testing.T) {
	one, two := steps(Schedule{Seed: 7}, 5, 200), steps(Schedule{Seed: 7}, 5, 200)
	if !reflect.DeepEqual(one, two) {
		t.Error("the same seed makes different schedules")
	}
	if reflect.DeepEqual(one, steps(Schedule{Seed: 8}, 5, 200)) {
		t.Error("different seeds make the same schedule")
	}
}

func TestThreeStepsInTenArePairs(t *testing.T) {
	const n = 5000
	turns, pairs, id := map[int]int{}, 0, 0
	for _, st := range steps(Schedule{Seed: 1, MeanPause: time.Minute}, 4, n) {
		if st.calm < 30*time.Second || st.calm >= 90*time.Second {
			t.Fatalf("%v of calm, want about a minute", st.calm)
		}
		for _, b := range st.blows {
			turns[b.fault]++
			if id++; b.id != id {
				t.Fatalf("strike %d has the number %d", id, b.id)
			}
		}
		if len(st.blows) == 2 {
			pairs++
			if st.blows[0].fault == st.blows[1].fault {
				t.Fatal("a fault is paired with itself")
			}
		}
	}
	if pairs < n*27/100 || pairs > n*33/100 {
		t.Errorf("%d of %d steps are pairs, want three in ten", pairs, n)
	}
	for f, times := range turns {
		if want := (n + pairs) / 4; times < want*95/100 || times > want*105/100 {
			t.Errorf("fault %d has had %d turns, want about %d", f, times, want)
		}
	}
}

func TestAShortScheduleHasEveryFault(t *testing.T) {
	seen := map[int]bool{}
	for _, st := range steps(Schedule{Seed: 3}, 9, 9) {
		for _, b := range st.blows {
			seen[b.fault] = true
		}
	}
	if len(seen) != 9 {
		t.Errorf("nine steps have %d of nine faults", len(seen))
	}
}

func TestOneFaultIsNeverPaired(t *testing.T) {
	for _, st := range steps(Schedule{Seed: 1}, 1, 100) {
		if len(st.blows) != 1 {
			t.Fatalf("a step has %d strikes", len(st.blows))
		}
	}
}

// A stage is a world without servers and workers, in which faults only say that they were there.
type stage struct {
	World
	mu      sync.Mutex
	events  []history.Event
	granted atomic.Int64
	open    atomic.Int64 // faults that are not healed
	beganAt []time.Time
}

func newStage() *stage {
	s := &stage{}
	s.World.TTL = 2 * time.Second
	s.World.Progress = s.granted.Load
	s.World.Record = func(e history.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
	}
	return s
}

// fault returns one that lasts so long, on the victim, and fails or not.
func (s *stage) fault(name string, lasts time.Duration, fails, healFails error) Fault {
	return s.faultAt(name, name, lasts, fails, healFails)
}

func (s *stage) faultAt(place, name string, lasts time.Duration, fails, healFails error) Fault {
	return Fault{Name: name, strike: func(_ context.Context, h *hand) error {
		if fails != nil {
			return fails
		}
		if !h.take(place, name) {
			return errTaken
		}
		s.mu.Lock()
		s.beganAt = append(s.beganAt, time.Now())
		s.mu.Unlock()
		s.open.Add(1)
		h.Role, h.What, h.For = "holder", "hurt", lasts
		h.heal = func() error {
			s.open.Add(-1)
			return healFails
		}
		return nil
	}}
}

// grantsForEver lets locks be granted all the time, until ctx ends.
func (s *stage) grantsForEver(ctx context.Context) {
	for pause(ctx, 10*time.Millisecond) {
		s.granted.Add(1)
	}
}

func TestEveryFaultIsRecordedAndHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := newStage()
		go s.grantsForEver(ctx)
		Run(ctx, &s.World, []Fault{s.fault("a", time.Second, nil, nil), s.fault("b", time.Second, nil, nil)}, Schedule{Seed: 1})
		if s.open.Load() != 0 {
			t.Errorf("%d faults are not healed", s.open.Load())
		}
		if len(s.taken) != 0 {
			t.Errorf("these places are still taken: %v", s.taken)
		}
		struck, healed := map[int]bool{}, map[int]bool{}
		for _, e := range s.events {
			switch {
			case e.Fault != nil:
				struck[e.Fault.ID] = true
				if e.Fault.On != e.Fault.Name || e.Fault.Role != "holder" || e.Fault.What != "hurt" || e.At == 0 {
					t.Errorf("this is recorded of a fault: %+v", *e.Fault)
				}
			case e.Heal != nil:
				if !struck[e.Heal.ID] || healed[e.Heal.ID] || e.Heal.Err != "" {
					t.Errorf("this is recorded of a healing: %+v", *e.Heal)
				}
				healed[e.Heal.ID] = true
			}
		}
		if len(struck) < 20 || len(struck) != len(healed) {
			t.Errorf("in a minute there were %d faults and %d healings", len(struck), len(healed))
		}
	})
}

func TestAPairThatWantsTheSameVictimTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		s := newStage()
		go s.grantsForEver(ctx)
		Run(ctx, &s.World, []Fault{
			s.faultAt("here", "a", 10*time.Second, nil, nil), s.faultAt("here", "b", 10*time.Second, nil, nil),
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
				t.Fatal("both are there at once")
			}
		}
		if turns < 20 {
			t.Errorf("in five minutes there were %d faults of ten seconds", turns)
		}
	})
}

func TestFaultsAreHealedWhenTheRunEndsInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newStage()
		began := time.Now()
		time.AfterFunc(10*time.Second, cancel)
		Run(ctx, &s.World, []Fault{s.fault("a", time.Hour, nil, nil)}, Schedule{})
		if s.open.Load() != 0 || len(s.beganAt) != 1 {
			t.Errorf("of %d faults %d are not healed", len(s.beganAt), s.open.Load())
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it ended after %v, want the 10 s that there were", took)
		}
		if last := s.events[len(s.events)-1]; last.Heal == nil || last.Heal.Err != "" {
			t.Errorf("the last event is %+v, want the healing", last)
		}
	})
}

func TestTheNextFaultWaitsForAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := newStage()
		// One grant in the middle of the first fault, which does not count, and one three seconds after.
		began := time.Now()
		go func() {
			pause(ctx, 5*time.Second)
			s.granted.Add(1)
			pause(ctx, 10*time.Second)
			s.granted.Add(1)
			pause(ctx, time.Hour)
		}()
		Run(ctx, &s.World, []Fault{s.fault("a", 10*time.Second, nil, nil)}, Schedule{MeanPause: time.Second})
		second, third := s.beganAt[1].Sub(began), s.beganAt[2].Sub(began)
		if second < 15*time.Second || second > 17*time.Second {
			t.Errorf("the second fault came after %v, want it a calm second after the grant at 15 s", second)
		}
		// From then on nothing is granted, and it waits for two TTLs and six seconds.
		if pause := third - second - 10*time.Second; pause < 10*time.Second || pause > 12*time.Second {
			t.Errorf("without a grant the next fault came %v after the healing, want 2 TTL + 6 s and a calm second", pause)
		}
	})
}

func TestAGrantIsAwaitedAfterTheLastFaultToo(t *testing.T) {
	for name, c := range map[string]struct {
		granted, want time.Duration // after the healing
	}{
		"soon":  {granted: 3 * time.Second, want: 3 * time.Second},
		"never": {granted: time.Hour, want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				s, began := newStage(), time.Now()
				late := time.AfterFunc(10*time.Second+c.granted, func() { s.granted.Add(1) })
				defer late.Stop()
				Run(ctx, &s.World, []Fault{s.fault("a", time.Hour, nil, nil)}, Schedule{})
				if waited := time.Since(began) - 10*time.Second; waited < c.want || waited > c.want+time.Second {
					t.Errorf("it waited for %v, want %v", waited, c.want)
				}
			})
		})
	}
}

func TestWhatGoesWrongIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := newStage()
		go s.grantsForEver(ctx)
		Run(ctx, &s.World, []Fault{
			s.fault("unstruck", 0, errors.New("nobody is there"), nil),
			s.fault("unhealed", 0, nil, errors.New("it is incurable")),
		}, Schedule{Seed: 1})
		names, wrong := map[int]string{}, map[string][]string{}
		for _, e := range s.events {
			if e.Fault != nil {
				names[e.Fault.ID] = e.Fault.Name
			} else if !slices.Contains(wrong[names[e.Heal.ID]], e.Heal.Err) {
				wrong[names[e.Heal.ID]] = append(wrong[names[e.Heal.ID]], e.Heal.Err)
			}
		}
		want := map[string][]string{"unstruck": {"nobody is there"}, "unhealed": {"it is incurable"}}
		if !reflect.DeepEqual(wrong, want) {
			t.Errorf("recorded are %v, want %v", wrong, want)
		}
		if len(s.taken) != 0 {
			t.Errorf("these places are still taken: %v", s.taken)
		}
	})
}

func TestWithoutFaultsARunOnlyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, began := newStage(), time.Now()
		Run(ctx, &s.World, nil, Schedule{})
		if time.Since(began) != time.Minute || len(s.events) > 0 {
			t.Errorf("after %v there are the events %v", time.Since(began), s.events)
		}
	})
}
