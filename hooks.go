package stile

import (
	"context"
	"errors"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
)

// Hooks are functions that a client calls when something happens, for metrics and tracing. Any of
// them may be nil. [JoinHooks] combines several Hooks.
//
// AttemptStart, AttemptEnd, HoldStart, and the HoldEnd of a release or Yield are called by the goroutine
// that locks, releases or yields, which waits for them. After Join, AttemptEnd and HoldStart are called by
// a goroutine of the client, which waits for the lock. All other hooks, and the HoldEnd of a loss, are
// called one after another by a goroutine of the client: a hook that blocks delays the next ones but
// nothing else.
//
// Starts and ends are paired. For each start hook that returns, the end hook is called exactly
// once, with the context that the start returned. If the start hook is nil, the end hook gets the
// context that the start would have got. If a start hook panics, its end is not called.
//
// A hook may use the client and its locks, and may close the client. But a hook that is called
// during a call must not wait for that call's lock: the lock is not free before the hook returns. A
// panic in such a hook propagates through the call; the attempt is given up, and so is the lock if
// it had been acquired. A panic in another hook, or in any hook after Join has returned, ends the
// process, because it happens in a goroutine of the client.
type Hooks struct {
	// AttemptStart is called when a locking method or Yield begins, even if the name is invalid or
	// the client is closed. ctx is the call's context. The attempt continues with the returned
	// context, which must be ctx or derived from it; nil means ctx.
	AttemptStart func(ctx context.Context, e AttemptStartEvent) context.Context
	// AttemptEnd is called when the attempt has an outcome, before the caller gets it. ctx may have
	// ended.
	//
	// If a lock is lost before HoldStart has returned, the caller does not get the hold, and
	// another attempt starts in the same call.
	AttemptEnd func(ctx context.Context, e AttemptEndEvent)

	// HoldStart is called when a lock has been acquired, after AttemptEnd and before the caller
	// gets the hold. ctx does not end; it has the values of the context that AttemptStart returned.
	// The returned context must be ctx or derived from it; nil means ctx. [Hold.Context], and the
	// context of a function run by Do, have its values.
	HoldStart func(ctx context.Context, e HoldStartEvent) context.Context
	// HoldEnd is called after the hold was released, yielded or lost.
	HoldEnd func(ctx context.Context, e HoldEndEvent)

	// Contended is called when another client or goroutine waits for a lock that this client holds.
	// It is called once for each entry in the store, with the context of its first hold, however
	// many shared holds use the entry. The hold may have ended by then.
	//
	// If this hook is set, the store is asked to look for waiters, as with [Hold.Contended]; that
	// can cost a request for each entry. Waiters of the same client are known without a request.
	Contended func(ctx context.Context, e ContentionEvent)

	// SessionOpened is called when the client has opened a session.
	SessionOpened func(SessionEvent)
	// SessionRenewed is called after each attempt to renew the session.
	SessionRenewed func(RenewalEvent)
	// SessionAtRisk is called when renewal becomes overdue.
	SessionAtRisk func(RiskEvent)
	// SessionRecovered is called when a session at risk is confirmed again.
	SessionRecovered func(SessionEvent)
	// SessionLost is called when a session is lost with all its holds. It is not called for a
	// session that [Client.Close] ends.
	SessionLost func(SessionLossEvent)

	_ struct{}
}

// An AttemptStartEvent describes an attempt to take a lock.
type AttemptStartEvent struct {
	// Name is the lock's name, Mode the requested mode.
	Name string
	Mode line.Mode
	// Try is true for TryLock and the other Try methods, which do not wait for the lock.
	Try bool
}

// An AttemptEndEvent describes the end of an attempt.
type AttemptEndEvent struct {
	AttemptStartEvent
	Outcome Outcome
	// Err is the error that the caller gets; nil if the lock was acquired.
	Err error
	// Waited is the time since the attempt started.
	Waited time.Duration
}

// Outcome is how an attempt ended.
type Outcome int

// The outcomes.
const (
	// Acquired: the lock is held.
	Acquired Outcome = iota + 1
	// Refused: TryLock found the lock held or closed. The error is a [*HeldError].
	Refused
	// TimedOut: the deadline of the call's context passed.
	TimedOut
	// Canceled: the call's context was canceled, or the place was left.
	Canceled
	// Failed: the attempt ended with another error or a panic.
	Failed
)

var outcomes = [...]string{Acquired: "acquired", Refused: "refused", TimedOut: "timeout", Canceled: "canceled", Failed: "error"}

// String returns the outcome as a label: acquired, refused, timeout, canceled or error.
func (o Outcome) String() string {
	if o < Acquired || o > Failed {
		return "unknown"
	}
	return outcomes[o]
}

// A HoldStartEvent describes a new hold.
type HoldStartEvent struct {
	// Name is the lock's name, Mode the mode of the hold when it was acquired.
	Name string
	Mode line.Mode
	// Token is the hold's fencing token. See [Hold.Token].
	Token uint64
}

// A HoldEndEvent describes the end of a hold.
type HoldEndEvent struct {
	HoldStartEvent
	Reason EndReason
	// Err is a [*LostError] if the hold was lost, and otherwise what the release returned.
	Err error
	// Held is the time since the lock was acquired.
	Held time.Duration
}

// EndReason is why a hold ended.
type EndReason int

// The reasons for the end of a hold.
const (
	// EndReleased: the hold was released with [Hold.Release] or [Place.Leave].
	EndReleased EndReason = iota + 1
	// EndReleasedAfter: the hold was released with [Hold.ReleaseAfter]; the lock stays closed for
	// that time.
	EndReleasedAfter
	// EndLost: the hold was lost. A release may be what finds this out.
	EndLost
	// EndYielded: the hold was given up with [Hold.Yield], which waits for another one.
	EndYielded
)

var endReasons = [...]string{EndReleased: "released", EndReleasedAfter: "released-after", EndLost: "lost", EndYielded: "yielded"}

// String returns the reason as a label: released, released-after, lost or yielded.
func (r EndReason) String() string {
	if r < EndReleased || r > EndYielded {
		return "unknown"
	}
	return endReasons[r]
}

// A ContentionEvent describes a hold whose lock others wait for.
type ContentionEvent struct {
	// Name is the lock's name, Token the hold's token.
	Name  string
	Token uint64
}

// A SessionEvent describes a session.
type SessionEvent struct {
	// Session is the session's ID in the store.
	Session string
}

// A RenewalEvent describes an attempt to renew a session.
type RenewalEvent struct {
	// Session is the session's ID in the store.
	Session string
	// RoundTrip is the time from request to reply; zero if there was no reply.
	RoundTrip time.Duration
	// Left is the time until the session is lost if it is not confirmed again.
	Left time.Duration
	// Err is nil if the session was confirmed.
	Err error
}

// A RiskEvent describes a session whose renewal is overdue.
type RiskEvent struct {
	// Session is the session's ID in the store.
	Session string
	// Left is the time until the session is lost if it is not confirmed.
	Left time.Duration
	// Err is the error of the last renewal; nil if none has failed yet.
	Err error
}

// A SessionLossEvent describes the loss of a session.
type SessionLossEvent struct {
	// Session is the session's ID in the store.
	Session string
	// Reason is why the session was lost.
	Reason Reason
	// Err is the last error from the store; nil if it adds nothing to Reason.
	Err error
}

// errUnfinished is the error of an attempt that a hook or the logger ended by a panic or
// runtime.Goexit.
var errUnfinished = errors.New("stile: a hook or the logger panicked, or called runtime.Goexit, while the lock was being acquired")

// An attempt calls the attempt hooks of one call.
type attempt struct {
	hooks  *Hooks
	event  AttemptStartEvent
	caller context.Context   // of the call
	ctx    context.Context   // returned by AttemptStart
	began  bootclock.Instant // set if there is an AttemptEnd
	open   bool              // started and not ended
}

func (a *attempt) start() {
	a.ctx = a.caller
	if a.hooks.AttemptEnd != nil {
		a.began = bootclock.Now() // a reading takes 3 % of the time to lock and release a kept lock
	}
	if f := a.hooks.AttemptStart; f != nil {
		a.ctx = derived(a.caller, f(a.caller, a.event))
	}
	a.open = true
}

// end ends the attempt if it is open.
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
	case ctx.Err() == nil || !errors.Is(err, ctx.Err()): // the store's own timeout is not the caller's
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
