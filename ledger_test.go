package stile_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stilelock/stile"
)

// A ledger checks that the hooks of a client are called in pairs: each start that has returned has one end, which gets the
// context of its start, and each hold comes from an attempt that has acquired.
type ledger struct {
	t *testing.T

	mu    sync.Mutex
	spans []*span
}

// A span is one attempt, or one hold.
type span struct {
	attempt *stile.AttemptStartEvent // nil if it is a hold
	hold    *stile.HoldStartEvent    // nil if it is an attempt
	parent  *span                    // the hold's attempt
	ends    int
	outcome stile.Outcome   // of an attempt
	err     error           // what the end was called with
	reason  stile.EndReason // of a hold
}

type spanKey struct{ hold bool }

func newLedger(t *testing.T) *ledger { return &ledger{t: t} }

func (l *ledger) hooks() stile.Hooks {
	return stile.Hooks{
		AttemptStart: func(ctx context.Context, e stile.AttemptStartEvent) context.Context {
			if ctx.Value(spanKey{}) != nil {
				l.t.Error("an attempt starts with the context of another")
			}
			return context.WithValue(ctx, spanKey{}, l.open(&span{attempt: &e}))
		},
		AttemptEnd: func(ctx context.Context, e stile.AttemptEndEvent) {
			l.mu.Lock()
			defer l.mu.Unlock()
			s, _ := ctx.Value(spanKey{}).(*span)
			if s == nil || *s.attempt != e.AttemptStartEvent {
				l.t.Errorf("an attempt ended that has not started: %+v", e)
				return
			}
			if (e.Err == nil) != (e.Outcome == stile.Acquired) || e.Waited < 0 || e.Outcome.String() == "unknown" {
				l.t.Errorf("an attempt ended as %+v", e)
			}
			s.ends++
			s.outcome, s.err = e.Outcome, e.Err
		},
		HoldStart: func(ctx context.Context, e stile.HoldStartEvent) context.Context {
			s := &span{hold: &e}
			s.parent, _ = ctx.Value(spanKey{}).(*span)
			if s.parent == nil || s.parent.attempt.Name != e.Name || s.parent.attempt.Mode != e.Mode {
				l.t.Errorf("a hold started without an attempt: %+v", e)
			}
			if ctx.Done() != nil {
				l.t.Error("the context of a hold's start can end")
			}
			return context.WithValue(ctx, spanKey{hold: true}, l.open(s))
		},
		HoldEnd: func(ctx context.Context, e stile.HoldEndEvent) {
			l.mu.Lock()
			defer l.mu.Unlock()
			s, _ := ctx.Value(spanKey{hold: true}).(*span)
			if s == nil || *s.hold != e.HoldStartEvent {
				l.t.Errorf("a hold ended that has not started: %+v", e)
				return
			}
			if e.Held < 0 || e.Reason.String() == "unknown" || e.Reason == stile.EndLost && e.Err == nil {
				l.t.Errorf("a hold ended as %+v", e)
			}
			s.ends++
			s.reason, s.err = e.Reason, e.Err
		},
	}
}

func (l *ledger) open(s *span) *span {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spans = append(l.spans, s)
	return s
}

// settled checks, when all is over, that each start has had its end.
func (l *ledger) settled() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	holds := make(map[*span]int)
	for _, s := range l.spans {
		switch {
		case s.ends == 1:
		case s.attempt != nil:
			l.t.Errorf("the attempt %+v has ended %d times", *s.attempt, s.ends)
		default:
			l.t.Errorf("the hold %+v has ended %d times", *s.hold, s.ends)
		}
		if s.hold != nil {
			holds[s.parent]++
			if s.parent != nil && s.parent.outcome != stile.Acquired || holds[s.parent] > 1 {
				l.t.Errorf("the hold %+v is number %d of an attempt that ended as %v", *s.hold, holds[s.parent], s.parent.outcome)
			}
		}
	}
}

func (l *ledger) attempts() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spans {
		if s.attempt != nil {
			n++
		}
	}
	return n
}

// last returns the last attempt and the last hold that have started; nil if there is none.
func (l *ledger) last() (attempt, hold *span) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spans {
		if s.attempt != nil {
			attempt, hold = s, nil
		} else {
			hold = s
		}
	}
	return attempt, hold
}
