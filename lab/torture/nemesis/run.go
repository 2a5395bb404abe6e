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

// Schedule is when which faults strike.
type Schedule struct {
	// Seed decides all that is random.
	Seed uint64
	// MeanPause is how long nothing is done, on average, when the last fault is healed and locks are granted again. Zero or less
	// means a second.
	MeanPause time.Duration
	// PriorStrikes is how many strikes the history has already.
	PriorStrikes int
}

// A step of a schedule is one fault, or two at once.
type step struct {
	calm  time.Duration // before it
	blows []blow
}

// A blow is one strike of a step.
type blow struct {
	id    int           // in the history
	fault int           // which of the faults
	after time.Duration // since the step's beginning
	seed  uint64        // of the strike
}

// A plan makes the steps of a schedule, without an end.
type plan struct {
	random *rand.Rand
	calm   time.Duration
	faults int   // how many there are
	deck   []int // those that have not had their turn since all had
	ids    int
}

func (s Schedule) plan(faults int) *plan {
	calm := s.MeanPause
	if calm <= 0 {
		calm = time.Second
	}
	return &plan{random: rand.New(rand.NewPCG(s.Seed, 0)), calm: calm, faults: faults, ids: s.PriorStrikes}
}

// next returns the next step: a single fault in 70 of 100, else a pair.
func (p *plan) next() step {
	st := step{calm: p.calm/2 + time.Duration(p.random.Int64N(int64(p.calm)))}
	pair := p.random.IntN(100) >= 70 && p.faults > 1
	first := p.draw()
	st.blows = append(st.blows, p.blow(first, 0))
	if pair {
		second := p.draw()
		for second == first {
			second = p.draw()
		}
		st.blows = append(st.blows, p.blow(second, time.Duration(p.random.Int64N(int64(time.Second)))))
	}
	return st
}

// draw returns which fault is next. All have their turns equally often, so that also a short run has all of them.
func (p *plan) draw() int {
	if len(p.deck) == 0 {
		p.deck = p.random.Perm(p.faults)
	}
	fault := p.deck[0]
	p.deck = p.deck[1:]
	return fault
}

func (p *plan) blow(fault int, after time.Duration) blow {
	p.ids++
	return blow{id: p.ids, fault: fault, after: after, seed: p.random.Uint64()}
}

// Run strikes the world with the faults, one or two at a time, until ctx ends, and returns when all are healed. After each
// healing it waits until a lock has been granted, for two TTLs and six seconds at most, before it goes on or returns: longer
// than anybody may have to wait.
//
// Everything that is done is recorded as a [history.Fault], and its end as a [history.Heal]. What went wrong with it is said
// there, and only there. With no faults Run waits for ctx.
func Run(ctx context.Context, w *World, faults []Fault, schedule Schedule) {
	if len(faults) == 0 {
		<-ctx.Done()
		return
	}
	for plan := schedule.plan(len(faults)); ; {
		next := plan.next()
		if !pause(ctx, next.calm) {
			return
		}
		var all sync.WaitGroup
		for _, b := range next.blows {
			all.Go(func() {
				if pause(ctx, b.after) {
					w.endure(ctx, faults[b.fault], b)
				}
			})
		}
		all.Wait()
		w.awaitProgress(ctx)
	}
}

// endure does one fault, waits as long as it is to last and heals it, and records both.
func (w *World) endure(ctx context.Context, f Fault, b blow) {
	s, err := w.hit(ctx, f, b)
	if errors.Is(err, errTaken) || s.On == "" && ctx.Err() != nil {
		return // the run has ended before it could do anything
	}
	w.Record(history.Event{At: s.At, Fault: &history.Fault{
		ID: b.id, Name: f.Name, On: s.On, Role: s.Role, What: s.What, Lock: s.Lock, Took: s.Took,
	}})
	if err == nil {
		pause(ctx, s.For)
		err = s.Heal()
	}
	healed := &history.Heal{ID: b.id}
	if err != nil {
		healed.Err = err.Error()
	}
	w.Record(history.Event{At: history.Now(), Heal: healed})
}

// hit strikes or, if the other fault of the pair is where it would strike, waits until that is healed.
func (w *World) hit(ctx context.Context, f Fault, b blow) (*Strike, error) {
	for {
		s, err := f.Strike(ctx, w, rand.New(rand.NewPCG(b.seed, 0)))
		if !errors.Is(err, errTaken) || !pause(ctx, 20*time.Millisecond) {
			return s, err
		}
	}
}

// awaitProgress waits until a lock has been granted, or it has waited so long that package verdict says that it took too long.
// It does so too when the time for faults is over, but not when the run is broken off.
func (w *World) awaitProgress(ctx context.Context) {
	enough := time.After(2*w.TTL + 6*time.Second)
	for before := w.Progress(); w.Progress() <= before && !errors.Is(ctx.Err(), context.Canceled); {
		select {
		case <-enough:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pause waits for d and reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return ctx.Err() == nil
	}
}
