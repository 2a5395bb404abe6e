package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// election observes the election in the second of a worker's sequences, and campaigns in the first.
func (s *sequence) election(ctx context.Context) error {
	client, _ := locker.ClientOf(s.locker)
	e := client.Election(s.pickLock())
	if s.number > 0 {
		s.observe(ctx, e)
		return nil
	}
	return s.campaign(ctx, e)
}

// observe records what an observer is told, until ctx ends or the observer cannot continue.
func (s *sequence) observe(ctx context.Context, e *stile.Election) {
	for leader, err := range e.Observe(ctx) {
		switch {
		case err != nil:
			s.pause(ctx)
		case leader == nil:
			s.say(history.Event{Observed: &history.Observed{Lock: e.Name()}})
		default:
			s.say(history.Event{Observed: &history.Observed{Lock: e.Name(), Token: leader.Token, Value: leader.Value}})
		}
	}
}

// maxTerm is the longest time for which a leader works. Observers read a line ten times a second at
// the most, and should see most leaders.
const maxTerm = 200 * time.Millisecond

// campaign waits until it leads, works, and resigns or yields. Values begin with the worker's name.
func (s *sequence) campaign(ctx context.Context, e *stile.Election) error {
	a := &history.Acquire{Lock: e.Name()}
	var l *stile.Leadership
	t := s.waitWith(ctx, a, func(ctx context.Context, _ string) (_ locker.Hold, err error) {
		if l, err = e.Campaign(ctx, s.value()); err != nil {
			return nil, err
		}
		return locker.HoldOf(l.Hold), nil
	})
	for t != nil {
		err := t.work(ctx, 1, s.randomUpTo(maxTerm))
		if s.rng.IntN(3) == 0 {
			s.proclaim(ctx, l)
		}
		if err != nil || s.rng.IntN(4) > 0 {
			t.endWith(func(ctx context.Context) (history.Outcome, error) {
				err := l.Resign(ctx)
				return endOutcome(err), err
			})
			sleep(ctx, s.randomUpTo(maxThinkTime))
			return err
		}
		t = s.yield(ctx, t, l.Hold, *a, func(_ *stile.Hold, ctx context.Context) (*stile.Hold, error) {
			next, err := l.Yield(ctx)
			if err != nil {
				return nil, err
			}
			l = next
			return next.Hold, nil
		})
	}
	s.pause(ctx)
	return nil
}

// proclaim publishes another value. Whether that succeeds does not matter.
func (s *sequence) proclaim(ctx context.Context, l *stile.Leadership) {
	limited, cancel := context.WithTimeout(ctx, s.config.Locker.TTL/4)
	defer cancel()
	_ = l.Proclaim(limited, s.value())
}

// value returns a new value of a leader.
func (s *sequence) value() string { return fmt.Sprintf("%s#%d", s.config.Worker, s.calls.Add(1)) }
