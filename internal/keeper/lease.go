package keeper

import (
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
)

// Instant is a moment on the clock that never steps and counts suspends.
type Instant = bootclock.Instant

// Terms are the durations by which a session is kept. They follow from what the store granted; see [TermsFor].
type Terms struct {
	// Valid is how long a confirmation is good for, counted from before its request was sent.
	Valid time.Duration
	// Every is the time from one request to the next, if it was answered.
	Every time.Duration
	// Attempt is how long one request may take. A request given up proves nothing.
	Attempt time.Duration
	// Retry is the time from a failed request to the next.
	Retry time.Duration
	// Overdue is how old a confirmation is when its holds are at risk.
	Overdue time.Duration
}

// TermsFor derives the terms from what the store granted.
//
// A confirmation is good for the TTL less the store's slack less a margin of a tenth of the TTL. The margin
// covers clocks that run at different rates (real ones differ by parts in ten thousand) and, mostly, gives a
// holder's code the time to stop between being told and being replaced. Requests go out every third of the
// valid time, so that two may fail in a row before anything is lost. A store that repeats lost requests by itself says
// how long an attempt may take.
func TermsFor(granted store.Terms) Terms {
	valid := granted.TTL - granted.TTL/10 - granted.Slack
	attempt := granted.Attempt
	if attempt == 0 {
		attempt = valid / 5
	}
	return Terms{
		Valid:   valid,
		Every:   valid / 3,
		Attempt: attempt,
		Retry:   valid / 30,
		Overdue: valid / 2,
	}
}

// State is how a session stands.
type State uint8

const (
	// Held: confirmed, and renewed in time.
	Held State = iota
	// AtRisk: renewal is overdue; what is held is still valid.
	AtRisk
	// Lost: what was held can no longer be shown to be held. It is never held again.
	Lost
)

// String returns "held", "at risk" or "lost".
func (s State) String() string { return [...]string{"held", "at risk", "lost"}[s] }

// Lease is the pure core of the keeper: all that is known of one session's life, and the rules of what follows
// from it. It has no clock; the present comes with every call. It is a value that can be copied and compared,
// which is how the explorer of this package's tests walks through all its futures.
//
// Each method that is told something first looks at the time: a reply that is handled after the deadline does not
// bring back what was lost at the deadline, because a holder may have seen the loss meanwhile, and another may
// have been admitted. So validity ends once.
type Lease struct {
	terms     Terms
	confirmed Instant // before the last confirmed request was sent
	next      Instant // when the next request is due
	asking    bool    // a request is under way
	state     State
	cause     Reason
}

// Granted returns the lease of a session that was opened by a request sent at the instant sent.
func Granted(terms Terms, sent, now Instant) Lease {
	l := Lease{terms: terms, confirmed: sent, next: sent.Add(terms.Every)}
	l.Look(now)
	return l
}

// Deadline is the instant at which the lease is lost if nothing is heard until then: the sending of the last
// confirmed request plus the time it is good for.
func (l Lease) Deadline() Instant { return l.confirmed.Add(l.terms.Valid) }

// ValidAt reports whether what is held under the lease is still held at the instant now.
func (l Lease) ValidAt(now Instant) bool { return l.state != Lost && now.Before(l.Deadline()) }

// State returns how the lease stood when it was last told something.
func (l Lease) State() State { return l.state }

// Reason returns why the lease was lost.
func (l Lease) Reason() Reason { return l.cause }

// Confirmed returns when the last confirmed request was sent.
func (l Lease) Confirmed() Instant { return l.confirmed }

// Due reports whether a request should be sent now.
func (l Lease) Due(now Instant) bool { return l.state != Lost && !l.asking && !now.Before(l.next) }

// Wake returns the next instant at which time alone changes something.
func (l Lease) Wake() Instant {
	wake := l.Deadline()
	if l.state == Held {
		wake = min(wake, l.confirmed.Add(l.terms.Overdue))
	}
	if !l.asking {
		wake = min(wake, l.next)
	}
	return wake
}

// Look lets the lease see what time it is.
func (l *Lease) Look(now Instant) {
	switch {
	case l.state == Lost:
	case !now.Before(l.Deadline()):
		l.lose(Deadline)
	case !now.Before(l.confirmed.Add(l.terms.Overdue)):
		l.state = AtRisk
	default:
		l.state = Held
	}
}

// Asked tells the lease that a request is being sent.
func (l *Lease) Asked(now Instant) {
	l.Look(now)
	l.asking = true
}

// Answered tells the lease that the request sent at the instant sent was confirmed. It counts from sent: when the
// authority looked at the request is not known, only that it was later. A late answer to an early request never
// moves the deadline back.
func (l *Lease) Answered(sent, now Instant) {
	l.Look(now)
	l.asking = false
	if l.state == Lost {
		return
	}
	l.confirmed = max(l.confirmed, sent)
	l.next = l.confirmed.Add(l.terms.Every)
	l.Look(now)
}

// Unanswered tells the lease that a request failed or was given up. It may have been carried out, so it neither
// helps nor harms: nothing is lost before the deadline.
func (l *Lease) Unanswered(now Instant) {
	l.Look(now)
	l.asking = false
	l.next = now.Add(l.terms.Retry)
}

// End tells the lease that the session has ended for the given reason.
func (l *Lease) End(reason Reason, now Instant) {
	l.Look(now)
	if l.state != Lost {
		l.lose(reason)
	}
}

func (l *Lease) lose(reason Reason) {
	l.state, l.cause = Lost, reason
}

// Reason is why something was lost.
type Reason uint8

const (
	// Deadline: no confirmation arrived in time. The store may think otherwise, but nobody here can know.
	Deadline Reason = iota + 1
	// Expired: the store said that the session has ended.
	Expired
	// Evicted: the store said that the entry is gone, and has not said so of the session. It may have ended: on etcd the
	// loss of the entry is heard of first.
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
		return "its entry was taken out of the store"
	case Closed:
		return "the client was closed"
	default:
		return "unknown reason"
	}
}

// ErrLost is what the cause of every lost hold matches.
var ErrLost = errors.New("lock lost")

// LostError says why something was lost. It matches [ErrLost] and whatever Err matches.
type LostError struct {
	// Reason is which of the ways to lose it was.
	Reason Reason
	// Err is what was last heard from the store: why the requests failed, or what it said. It may be nil.
	Err error
}

// Error returns the reason and what was heard.
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
