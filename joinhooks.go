package stile

import "context"

// JoinHooks returns Hooks that call all of the given Hooks. Starts are called in the given order,
// each with the context that the previous one returned. Ends are called in reverse order, each with
// the context that its own start returned. If a start panics, the ends of the earlier ones are
// called.
func JoinHooks(hooks ...Hooks) Hooks {
	var all Hooks
	for _, h := range hooks {
		all = joinTwo(all, h)
	}
	return all
}

func joinTwo(a, b Hooks) Hooks {
	attempts := spans[AttemptStartEvent, AttemptEndEvent]{
		startA: a.AttemptStart, startB: b.AttemptStart, endA: a.AttemptEnd, endB: b.AttemptEnd,
		abandoned: func(e AttemptStartEvent) AttemptEndEvent {
			return AttemptEndEvent{AttemptStartEvent: e, Outcome: Failed, Err: errUnfinished}
		},
	}
	holds := spans[HoldStartEvent, HoldEndEvent]{
		startA: a.HoldStart, startB: b.HoldStart, endA: a.HoldEnd, endB: b.HoldEnd,
		abandoned: func(e HoldStartEvent) HoldEndEvent {
			return HoldEndEvent{HoldStartEvent: e, Reason: EndReleased, Err: errUnfinished}
		},
	}
	var j Hooks
	j.AttemptStart, j.AttemptEnd = attempts.join()
	j.HoldStart, j.HoldEnd = holds.join()
	if j.Contended = b.Contended; a.Contended != nil {
		j.Contended = func(ctx context.Context, e ContentionEvent) {
			a.Contended(holds.contextOfA(ctx), e)
			if b.Contended != nil {
				b.Contended(ctx, e)
			}
		}
	}
	j.SessionOpened = joinFuncs(a.SessionOpened, b.SessionOpened)
	j.SessionRenewed = joinFuncs(a.SessionRenewed, b.SessionRenewed)
	j.SessionAtRisk = joinFuncs(a.SessionAtRisk, b.SessionAtRisk)
	j.SessionRecovered = joinFuncs(a.SessionRecovered, b.SessionRecovered)
	j.SessionLost = joinFuncs(a.SessionLost, b.SessionLost)
	return j
}

// spans joins two pairs of start and end. The joined start returns B's context, which carries A's
// context as a value; the key is the address of the spans.
type spans[S, E any] struct {
	startA, startB func(context.Context, S) context.Context
	endA, endB     func(context.Context, E)
	abandoned      func(S) E // makes the event for A's end if B's start panics
}

func (s *spans[S, E]) join() (start func(context.Context, S) context.Context, end func(context.Context, E)) {
	if s.startA == nil && s.endA == nil {
		return s.startB, s.endB
	}
	return s.start, s.end
}

func (s *spans[S, E]) start(ctx context.Context, e S) context.Context {
	if s.startA != nil {
		ctx = derived(ctx, s.startA(ctx, e))
	}
	ctxB, started := ctx, false
	defer func() {
		if !started && s.endA != nil {
			s.endA(ctx, s.abandoned(e))
		}
	}()
	if s.startB != nil {
		ctxB = derived(ctx, s.startB(ctx, e))
	}
	started = true
	return context.WithValue(ctxB, s, ctx)
}

// end calls A's end even if B's panics.
func (s *spans[S, E]) end(ctx context.Context, e E) {
	if s.endA != nil {
		defer s.endA(s.contextOfA(ctx), e)
	}
	if s.endB != nil {
		s.endB(ctx, e)
	}
}

func (s *spans[S, E]) contextOfA(ctx context.Context) context.Context {
	if a, ok := ctx.Value(s).(context.Context); ok {
		return a
	}
	return ctx
}

func joinFuncs[E any](a, b func(E)) func(E) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(e E) {
		a(e)
		b(e)
	}
}
