package stile

import (
	"context"
	"errors"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
)

// Hooks are functions that a client calls as things happen, for metrics and traces; any may be nil. [JoinHooks] combines
// several Hooks.
//
// The hooks of a call are AttemptStart, AttemptEnd, HoldStart, and the HoldEnd of a release. They are called by the goroutine
// that locks or releases, which waits for them; the goroutine that goes for the lock after Join calls AttemptEnd and
// HoldStart. The other hooks, and the HoldEnd of a loss, are called one after another by a goroutine of the client's own: one
// that blocks delays those, and nothing else.
//
// Every attempt that has started ends, and so does every hold: for each return of a start there is exactly one call of the
// end, with the context that the start has returned. For a start that is nil, the end gets the context that the start would
// have got. A start that panics has not started anything.
//
// A hook may use the client and its locks, and may close the client. But a hook of a call must not wait for the lock that it
// is called about, which is not free before the hook has returned. A panic in a hook of a call goes on in the call; the
// attempt is given up, and so is the lock if the attempt had acquired it. A panic in another hook, or after Join has
// returned, ends the process, because it is in a goroutine of the client's own.
type Hooks struct {
	// AttemptStart is called when an attempt at taking a lock begins: in each call of Lock, TryLock, Join and Do, also with a
	// bad name or when the client is closed. ctx is that of the call. The attempt goes on with the context returned, which
	// must be ctx or derived from it. Nil means ctx.
	AttemptStart func(ctx context.Context, e AttemptStartEvent) context.Context
	// AttemptEnd is called when the attempt has an outcome, before the caller has it. ctx may have ended.
	//
	// If a lock is lost before HoldStart has returned, the caller does not get the hold. Then another attempt starts in the
	// same call.
	AttemptEnd func(ctx context.Context, e AttemptEndEvent)

	// HoldStart is called when a lock has been acquired, after AttemptEnd and before the caller has the hold. ctx has the
	// values of the context that AttemptStart has returned, and does not end. [Hold.Context], and the context of a function
	// that Do runs, have the values of the context returned, which must be ctx or derived from it. Nil means ctx.
	HoldStart func(ctx context.Context, e HoldStartEvent) context.Context
	// HoldEnd is called when the hold has been released, or after it was lost.
	HoldEnd func(ctx context.Context, e HoldEndEvent)

	// Contended is called when somebody waits for a lock that is held here: once for each entry in the store, however many
	// shared holds use it, with the context of the first of them. The hold may have ended meanwhile.
	//
	// Those who wait in this process are known without asking. For the others the store is asked to look, as with
	// [Hold.Contended], and that can cost it a request for each entry. It is asked only if this hook is set.
	Contended func(ctx context.Context, e ContentionEvent)

	// SessionOpened is called when the client has opened a session.
	SessionOpened func(SessionEvent)
	// SessionRenewed is called after each attempt at renewing the session.
	SessionRenewed func(RenewalEvent)
	// SessionAtRisk is called when renewal becomes overdue.
	SessionAtRisk func(RiskEvent)
	// SessionRecovered is called when a session that was at risk has been confirmed.
	SessionRecovered func(SessionEvent)
	// SessionLost is called when a session is lost, and all that is held under it. It is not called for a session that
	// [Client.Close] ends.
	SessionLost func(SessionLossEvent)

	_ struct{}
}

// AttemptStartEvent describes an attempt at taking a lock.
type AttemptStartEvent struct {
	// Name is the lock's name, and Mode how it is to be held.
	Name string
	Mode line.Mode
	// Try is set if the attempt does not wait: it is one of TryLock.
	Try bool
}

// AttemptEndEvent describes how an attempt has ended.
type AttemptEndEvent struct {
	AttemptStartEvent
	Outcome Outcome
	// Err is the error that the caller gets; nil if the lock was acquired.
	Err error
	// Waited is the time since the attempt began.
	Waited time.Duration
}

// Outcome is how an attempt at taking a lock has ended.
type Outcome int

// The outcomes.
const (
	// Acquired: the lock is held.
	Acquired Outcome = iota + 1
	// Refused: TryLock has found the lock held or closed. The error is a [*HeldError].
	Refused
	// TimedOut: the deadline of the call's context has passed.
	TimedOut
	// Canceled: the call's context was canceled, or the place was left.
	Canceled
	// Failed: there was another error, or a panic.
	Failed
)

var outcomes = [...]string{Acquired: "acquired", Refused: "refused", TimedOut: "timeout", Canceled: "canceled", Failed: "error"}

// String returns the outcome in one word, for labels: acquired, refused, timeout, canceled or error.
func (o Outcome) String() string {
	if o < Acquired || o > Failed {
		return "unknown"
	}
	return outcomes[o]
}

// HoldStartEvent describes a hold.
type HoldStartEvent struct {
	// Name is the lock's name, and Mode how it is held.
	Name string
	Mode line.Mode
	// Token is the hold's fencing token. See [Hold.Token].
	Token uint64
}

// HoldEndEvent describes how a hold has ended.
type HoldEndEvent struct {
	HoldStartEvent
	Reason EndReason
	// Err is a [*LostError] if the hold was lost. Otherwise it is the error of the release; nil if the store has confirmed it.
	Err error
	// Held is the time from acquiring to the end.
	Held time.Duration
}

// EndReason is why a hold has ended.
type EndReason int

// The reasons why a hold ends.
const (
	// EndReleased: it was released with [Hold.Release] or [Place.Leave].
	EndReleased EndReason = iota + 1
	// EndReleasedAfter: it was released with [Hold.ReleaseAfter], and the lock stays closed for a while.
	EndReleasedAfter
	// EndLost: it was lost, or its release has found that it had been lost.
	EndLost
)

var endReasons = [...]string{EndReleased: "released", EndReleasedAfter: "released-after", EndLost: "lost"}

// String returns the reason in one word, for labels: released, released-after or lost.
func (r EndReason) String() string {
	if r < EndReleased || r > EndLost {
		return "unknown"
	}
	return endReasons[r]
}

// ContentionEvent describes a lock that somebody waits for while it is held here.
type ContentionEvent struct {
	// Name is the lock's name, Token that of the hold.
	Name  string
	Token uint64
}

// SessionEvent describes a session.
type SessionEvent struct {
	// Session is the session's ID in the store.
	Session string
}

// RenewalEvent describes an attempt at renewing a session.
type RenewalEvent struct {
	// Session is the session's ID in the store.
	Session string
	// RoundTrip is the time from request to reply; zero if there was none.
	RoundTrip time.Duration
	// Left is the time until everything held under the session is lost if it is not confirmed again.
	Left time.Duration
	// Err is nil if the session was confirmed.
	Err error
}

// RiskEvent describes a session whose renewal is overdue.
type RiskEvent struct {
	// Session is the session's ID in the store.
	Session string
	// Left is the time until everything held under the session is lost if it is not confirmed.
	Left time.Duration
	// Err is that of the last renewal; nil if no attempt has failed yet.
	Err error
}

// SessionLossEvent describes the loss of a session.
type SessionLossEvent struct {
	// Session is the session's ID in the store.
	Session string
	// Reason is why it was lost.
	Reason Reason
	// Err is what was last heard from the store; nil if that says no more than Reason.
	Err error
}

// errUnfinished is the error of an attempt whose goroutine was ended by a callback.
var errUnfinished = errors.New("stile: a hook or the logger has ended the goroutine that was to take the lock")

// An attempt is what the hooks see of a call that goes for a lock.
type attempt struct {
	hooks  *Hooks
	event  AttemptStartEvent
	caller context.Context // that of the call
	ctx    context.Context // what AttemptStart has made of it
	began  bootclock.Instant
	open   bool // started and not ended
}

func (a *attempt) start() {
	a.began, a.ctx = bootclock.Now(), a.caller
	if f := a.hooks.AttemptStart; f != nil {
		a.ctx = derived(a.caller, f(a.caller, a.event))
	}
	a.open = true
}

// end ends the attempt, unless it has ended.
func (a *attempt) end(err error) {
	if !a.open {
		return
	}
	a.open = false
	if f := a.hooks.AttemptEnd; f != nil {
		f(a.ctx, AttemptEndEvent{a.event, outcomeOf(a.ctx, err), err, bootclock.Now().Sub(a.began)})
	}
}

func outcomeOf(ctx context.Context, err error) Outcome {
	switch {
	case err == nil:
		return Acquired
	case errors.Is(err, ErrHeld):
		return Refused
	case errors.Is(err, ErrLeft):
		return Canceled
	case ctx.Err() == nil || !errors.Is(err, ctx.Err()): // a timeout of the store's is not the caller's
		return Failed
	case ctx.Err() == context.DeadlineExceeded:
		return TimedOut
	default:
		return Canceled
	}
}

func derived(ctx, returned context.Context) context.Context {
	if returned == nil {
		return ctx
	}
	return returned
}
