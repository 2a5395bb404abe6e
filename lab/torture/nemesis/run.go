//go:build linux

package nemesis

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

// Schedule determines when which faults strike.
type Schedule struct {
	// Seed determines all random choices.
	Seed uint64
	// MeanPause is the average pause before a step, which begins when the last fault has been
	// healed and a lock has been granted again. Zero or less means a second.
	MeanPause time.Duration
	// PriorStrikes is the number of strikes that the history already has. The choices depend on it too, so that
	// another schedule of the same run makes other choices.
	PriorStrikes int
	// Severe makes every fault with a duration of about the TTL last for longer, and every eviction
	// one of a whole line.
	Severe bool
}

// A step of a schedule is one strike, or two at once.
type step struct {
	pause   time.Duration // before it
	strikes []plannedStrike
}

// A plannedStrike is one strike of a step.
type plannedStrike struct {
	id     int           // in the history
	fault  int           // the index of the fault
	after  time.Duration // from the beginning of the step
	seed   uint64        // of the strike
	severe bool
}

// A plan generates the steps of a schedule, without end.
type plan struct {
	random    *rand.Rand
	meanPause time.Duration
	faults    int   // the number of faults
	remaining []int // the faults of this round that have not been used
	lastID    int
	severe    bool
}

func (s Schedule) plan(faults int) *plan {
	pause := s.MeanPause
	if pause <= 0 {
		pause = time.Second
	}
	return &plan{random: rand.New(rand.NewPCG(s.Seed, uint64(s.PriorStrikes))), meanPause: pause, faults: faults, lastID: s.PriorStrikes, severe: s.Severe}
}

// next returns the next step: one fault with a probability of 70 %, otherwise a pair.
func (p *plan) next() step {
	st := step{pause: p.meanPause/2 + time.Duration(p.random.Int64N(int64(p.meanPause)))}
	pair := p.random.IntN(100) >= 70 && p.faults > 1
	first := p.nextFault()
	st.strikes = append(st.strikes, p.newStrike(first, 0))
	if pair {
		second := p.nextFault()
		for second == first {
			second = p.nextFault()
		}
		st.strikes = append(st.strikes, p.newStrike(second, time.Duration(p.random.Int64N(int64(time.Second)))))
	}
	return st
}

// nextFault returns the index of the next fault. Each round uses every fault once, in random order,
// so even a short run has all of them.
func (p *plan) nextFault() int {
	if len(p.remaining) == 0 {
		p.remaining = p.random.Perm(p.faults)
	}
	fault := p.remaining[0]
	p.remaining = p.remaining[1:]
	return fault
}

func (p *plan) newStrike(fault int, after time.Duration) plannedStrike {
	p.lastID++
	return plannedStrike{id: p.lastID, fault: fault, after: after, seed: p.random.Uint64(), severe: p.severe}
}

// Run strikes the world with the faults, one or two at a time, until ctx ends, and returns when all
// of them have been healed. After each step it waits until a lock has been granted, for up to two
// TTLs and six seconds, before it continues or returns. That is longer than a waiter may have to
// wait.
//
// Each strike is recorded as a [history.Fault] and its end as a [history.Heal]. Errors are recorded
// in the Heal, and nowhere else. Without faults, Run waits for the end of ctx.
func Run(ctx context.Context, w *World, faults []Fault, schedule Schedule) {
	if len(faults) == 0 {
		<-ctx.Done()
		return
	}
	for plan := schedule.plan(len(faults)); ; {
		next := plan.next()
		if !sleep(ctx, next.pause) {
			return
		}
		var all sync.WaitGroup
		for _, planned := range next.strikes {
			all.Go(func() {
				if sleep(ctx, planned.after) {
					w.runStrike(ctx, faults[planned.fault], planned)
				}
			})
		}
		all.Wait()
		w.awaitGrant(ctx)
	}
}

// runStrike strikes, waits for the duration of the strike, heals it, and records both.
func (w *World) runStrike(ctx context.Context, f Fault, planned plannedStrike) {
	s, err := w.strikeWhenFree(ctx, f, planned)
	if errors.Is(err, errClaimed) || s.On == "" && ctx.Err() != nil {
		return // the run ended before the fault could strike
	}
	w.Record(history.Event{At: s.At, Fault: &history.Fault{
		ID: planned.id, Name: f.Name, On: s.On, Role: s.Role, What: s.What, Lock: s.Lock, Took: s.Took,
	}})
	if err == nil {
		sleep(ctx, s.Duration)
		err = s.Heal()
	}
	heal := &history.Heal{ID: planned.id}
	if err != nil {
		heal.Err = err.Error()
	}
	w.Record(history.Event{At: history.Now(), Heal: heal})
}

// strikeWhenFree strikes. If the other fault of the pair has all possible victims, it waits until
// that fault has been healed.
func (w *World) strikeWhenFree(ctx context.Context, f Fault, planned plannedStrike) (*Strike, error) {
	for {
		s, err := f.strikeWith(ctx, w, rand.New(rand.NewPCG(planned.seed, 0)), planned.severe)
		if !errors.Is(err, errClaimed) || !sleep(ctx, 20*time.Millisecond) {
			return s, err
		}
	}
}

// awaitGrant waits until a lock has been granted, or until package verdict judges the wait as too
// long. It also waits after the time for faults is over (the deadline of ctx), but not after the
// run was canceled.
func (w *World) awaitGrant(ctx context.Context) {
	timeout := time.After(2*w.TTL + 6*time.Second)
	for before := w.Progress(); w.Progress() <= before && !errors.Is(ctx.Err(), context.Canceled); {
		select {
		case <-timeout:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sleep waits for d, and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return ctx.Err() == nil
	}
}
