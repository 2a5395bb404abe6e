package keeper

import (
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
)

// Instant is a time of a clock that never jumps and that counts suspends.
type Instant = bootclock.Instant

// A Schedule has the durations by which a session is kept; see [ScheduleFor].
type Schedule struct {
	// Validity is how long a confirmation is valid, counted from when its request was sent.
	Validity time.Duration
	// Interval is the time from one request to the next if it was confirmed.
	Interval time.Duration
	// AttemptTimeout is the timeout of one request.
	AttemptTimeout time.Duration
	// RetryInterval is the time from a failed request to the next.
	RetryInterval time.Duration
	// OverdueAfter is the age of the last confirmation at which the session is at risk.
	OverdueAfter time.Duration
}

// ScheduleFor returns the schedule for the terms that the store granted.
//
// A confirmation is valid for the TTL less the store's slack less a margin of a tenth of the TTL.
// The margin allows for clocks that run at different rates; real ones differ by parts in ten
// thousand. Most of it is time for the holder's code to stop between the notification of the loss
// and the admission of the next holder. Requests are sent every third of the valid time, so two in
// a row may fail before anything is lost. A store that repeats lost requests itself sets the
// timeout of an attempt.
func ScheduleFor(granted store.Terms) Schedule {
	valid := granted.TTL - granted.TTL/10 - granted.Slack
	attempt := granted.Attempt
	if attempt == 0 {
		attempt = valid / 5
	}
	return Schedule{
		Validity:       valid,
		Interval:       valid / 3,
		AttemptTimeout: attempt,
		RetryInterval:  valid / 30,
		OverdueAfter:   valid / 2,
	}
}

// State is the state of a session.
type State uint8

const (
	// Held: the session is confirmed, and renewed in time.
	Held State = iota
	// AtRisk: renewal is overdue; the holds are still valid.
	AtRisk
	// Lost: the holds are no longer valid. This state is final.
	Lost
)

// String returns "held", "at risk" or "lost".
func (s State) String() string { return [...]string{"held", "at risk", "lost"}[s] }

// A Lease is the pure core of the keeper: what is known about one session, and the rules that
// follow from it. It has no clock; the current time is a parameter of each call. It is a value that
// can be copied and compared, so the explorer in this package's tests can walk through all of its
// futures.
//
// Every method that records an event first advances the lease to the current time. A reply that is
// handled after the deadline therefore cannot undo the loss: a holder may have seen the loss
// already, and another client may have been admitted. So validity ends only once.
type Lease struct {
	schedule  Schedule
	confirmed Instant // when the last confirmed request was sent
	next      Instant // when the next request is due
	inFlight  bool    // a request was sent and has no outcome yet
	state     State
	cause     Reason
}

// NewLease returns the lease of a session that was opened by a request sent at the given time.
func NewLease(schedule Schedule, sent, now Instant) Lease {
	l := Lease{schedule: schedule, confirmed: sent, next: sent.Add(schedule.Interval)}
	l.Advance(now)
	return l
}

// Deadline returns when the lease is lost if no further request is confirmed.
func (l Lease) Deadline() Instant { return l.confirmed.Add(l.schedule.Validity) }

// ValidAt reports whether the holds of the lease are valid at the given time.
func (l Lease) ValidAt(now Instant) bool { return l.state != Lost && now.Before(l.Deadline()) }

// State returns the state after the last recorded event.
func (l Lease) State() State { return l.state }

// Reason returns why the lease was lost.
func (l Lease) Reason() Reason { return l.cause }

// Confirmed returns when the last confirmed request was sent.
func (l Lease) Confirmed() Instant { return l.confirmed }

// Due reports whether a request should be sent now.
func (l Lease) Due(now Instant) bool { return l.state != Lost && !l.inFlight && !now.Before(l.next) }

// Wake returns the next time at which the state changes or a request is due, if nothing else
// happens.
func (l Lease) Wake() Instant {
	wake := l.Deadline()
	if l.state == Held {
		wake = min(wake, l.confirmed.Add(l.schedule.OverdueAfter))
	}
	if !l.inFlight {
		wake = min(wake, l.next)
	}
	return wake
}

// Advance updates the state to the given time.
func (l *Lease) Advance(now Instant) {
	switch {
	case l.state == Lost:
	case !now.Before(l.Deadline()):
		l.lose(Deadline)
	case !now.Before(l.confirmed.Add(l.schedule.OverdueAfter)):
		l.state = AtRisk
	default:
		l.state = Held
	}
}

// RequestSent records that a request is being sent.
func (l *Lease) RequestSent(now Instant) {
	l.Advance(now)
	l.inFlight = true
}

// RequestConfirmed records that the request sent at the given time was confirmed. The new deadline
// counts from that time, because the store handled the request at an unknown later time. A late
// reply to an early request never moves the deadline back.
func (l *Lease) RequestConfirmed(sent, now Instant) {
	l.Advance(now)
	l.inFlight = false
	if l.state == Lost {
		return
	}
	l.confirmed = max(l.confirmed, sent)
	l.next = l.confirmed.Add(l.schedule.Interval)
	l.Advance(now)
}

// RequestFailed records that a request failed or timed out. The store may have handled it or not,
// so the deadline stays as it is.
func (l *Lease) RequestFailed(now Instant) {
	l.Advance(now)
	l.inFlight = false
	l.next = now.Add(l.schedule.RetryInterval)
}

// End records that the session has ended for the given reason.
func (l *Lease) End(reason Reason, now Instant) {
	l.Advance(now)
	if l.state != Lost {
		l.lose(reason)
	}
}

func (l *Lease) lose(reason Reason) {
	l.state, l.cause = Lost, reason
}

// Reason is why a session or a hold was lost.
type Reason uint8

const (
	// Deadline: no confirmation arrived in time. The store may still have the session.
	Deadline Reason = iota + 1
	// Expired: the store reported that the session has ended.
	Expired
	// Evicted: the store reported that the entry is gone, and nothing about the session. The
	// session may have ended too: on etcd the loss of the entry is reported first.
	Evicted
	// Closed: the client was closed.
	Closed
)

// String returns the reason as a clause.
func (r Reason) String() string {
	switch r {
	case Deadline:
		return "its session was not confirmed in time"
	case Expired:
		return "its session has ended in the store"
	case Evicted:
		return "its entry was removed from the store"
	case Closed:
		return "the client was closed"
	default:
		return "unknown reason"
	}
}

// ErrLost is matched by every [LostError].
var ErrLost = errors.New("lock lost")

// A LostError says why a session or a hold was lost. It matches [ErrLost] and everything that Err
// matches.
type LostError struct {
	// Reason is the kind of loss.
	Reason Reason
	// Err is the last error from the store; it may be nil.
	Err error
}

// Error returns the reason and Err.
func (e *LostError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%v: %v", ErrLost, e.Reason)
	}
	return fmt.Sprintf("%v: %v: %v", ErrLost, e.Reason, e.Err)
}

// Unwrap returns ErrLost and Err.
func (e *LostError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Err}
}
