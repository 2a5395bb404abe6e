// Package attempts repeats the requests of a store until its servers have answered, and builds the
// errors of requests that were given up.
//
// Servers are restarted, replaced and disconnected, and return a moment later. A waiter should
// notice nothing but the delay, so a request without a reply is sent again. The repetition ends
// with the caller's context and with what else bounds the call: the session ([Within]) or, for
// calls without one, [MaxDuration].
package attempts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// MaxDuration bounds a call without a session when no server answers. Calls with a session are
// bounded by the session's life.
const MaxDuration = 10 * time.Second

// MinTimeout and MaxTimeout bound the timeout of one attempt. A server that is being replaced, or a
// dead connection, may be silent for many seconds while everything else works; so the first
// attempts are short. Where requests do take longer the later attempts give them time.
const (
	MinTimeout = 500 * time.Millisecond
	MaxTimeout = 5 * time.Second
)

// MaxPause bounds the pause after an attempt that failed at once.
const MaxPause = 500 * time.Millisecond

// Pace is how fast a server answers, as the requests of a store have found. A repetition helps if
// the server, or the connection to it, has stopped working. It does harm if the server is merely
// slow, because the server carries out both requests. So the first timeout is four times what a
// request usually takes, within [MinTimeout] and [MaxTimeout].
//
// A Pace may also limit how many attempts are under way at the same time; see [NewPace]. The zero Pace has the
// timeout MinTimeout and no limit. The methods of a Pace may be called concurrently.
type Pace struct {
	places *Places // nil if there is no limit

	mu    sync.Mutex
	usual time.Duration
}

// NewPace returns a Pace with a number of places, which must be positive. Each attempt needs a place, and waits until
// one is free; then its timeout begins. So requests that come at the same time are spread out, and none is repeated
// because it waited for others. An attempt keeps its place for its timeout at most, so one silent member of a cluster
// slows the requests to the others down, and does not stop them.
func NewPace(places int) *Pace { return &Pace{places: NewPlaces(places)} }

// Timeout returns the timeout for the first attempt of a request.
func (p *Pace) Timeout() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(MinTimeout, 4*p.usual), MaxTimeout)
}

// note records how long a request took. A slow one counts at once, so that the requests after it
// are not repeated; a fast one counts for an eighth. A request that took longer than its timeout is
// recorded as half of that, which doubles the timeout.
func (p *Pace) note(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took = min(took, MaxTimeout); took > p.usual {
		p.usual = took
	} else {
		p.usual -= (p.usual - took) / 8
	}
}

// UntilAnswered sends a request until it is answered: with success, or with an error for which
// refused returns true because it is the server's final answer. If ctx ends first, the error is the
// cause of ctx, joined with the error of an attempt: of the last one that was not ended by a timeout or
// a context, or else of the last one.
//
// Each attempt has a context of its own. The request must therefore do no harm if it is carried out
// more than once, or after UntilAnswered has returned. After attempts that fail at once there are
// pauses, which start at firstPause and double up to [MaxPause].
func UntilAnswered(
	ctx context.Context, firstPause time.Duration, refused func(error) bool, request func(context.Context) error,
) error {
	return new(Pace).UntilAnswered(ctx, firstPause, refused, request)
}

// UntilAnswered is the function UntilAnswered, with a timeout for the first attempts that suits the
// pace of the server. Each attempt waits for a place. So request must not call UntilAnswered of the same Pace. If all
// requests did, each would have a place and wait for a second one.
func (p *Pace) UntilAnswered(
	ctx context.Context, firstPause time.Duration, refused func(error) bool, request func(context.Context) error,
) error {
	return p.untilAnswered(ctx, terms{}, firstPause, refused, request)
}

// UntilAnsweredWithin is UntilAnswered with a time limit. It stops when longest has passed since the first attempt began,
// as if ctx had ended with that cause; zero and less are no limit. The wait for the first place does not count: it says
// nothing about the server.
func (p *Pace) UntilAnsweredWithin(
	ctx context.Context, longest time.Duration, cause error,
	firstPause time.Duration, refused func(error) bool, request func(context.Context) error,
) error {
	return p.untilAnswered(ctx, terms{longest: longest, cause: cause}, firstPause, refused, request)
}

// UntilAnsweredUrgent is UntilAnswered for a request that must not wait for others. Its attempts need no places.
func (p *Pace) UntilAnsweredUrgent(
	ctx context.Context, firstPause time.Duration, refused func(error) bool, request func(context.Context) error,
) error {
	return p.untilAnswered(ctx, terms{urgent: true}, firstPause, refused, request)
}

// terms say how a request differs from others.
type terms struct {
	urgent  bool          // its attempts need no places
	longest time.Duration // from its first attempt on; zero if that is not limited
	cause   error         // why it ends then
}

func (p *Pace) untilAnswered(
	ctx context.Context, of terms, firstPause time.Duration, refused func(error) bool, request func(context.Context) error,
) error {
	leave, err := p.enter(ctx, of)
	if err != nil {
		return GaveUp(ctx, err)
	}
	timeout := p.Timeout() // after the wait: earlier attempts may have changed it
	if of.longest > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, of.longest, of.cause)
		defer cancel()
	}
	pause := firstPause
	var last error
	lastCutShort := false
	for n := 0; ; n++ {
		a := p.once(ctx, timeout, refused, request, leave)
		if a.answered {
			return a.err
		}
		// The error of an attempt that was cut short says only that. An earlier one may say why.
		if last == nil || lastCutShort || !a.cutShort {
			last, lastCutShort = a.err, a.cutShort
		}
		// Two attempts of half a second outlast an etcd election with the default timeouts.
		if n > 0 {
			timeout = min(2*timeout, MaxTimeout)
		}
		if a.took < pause {
			Sleep(ctx, pause)
			pause = min(2*pause, MaxPause)
		}
		if leave, err = p.enter(ctx, of); err != nil {
			return GaveUp(ctx, last)
		}
	}
}

// enter waits for a place, and returns a function that gives it back.
func (p *Pace) enter(ctx context.Context, of terms) (leave func(), err error) {
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case p.places == nil || of.urgent:
		return func() {}, nil
	}
	return p.places.Enter(ctx)
}

// outcome is what came of an attempt.
type outcome struct {
	err      error
	answered bool
	cutShort bool // its context or a timeout ended it
	took     time.Duration
}

// once makes one attempt, records how long it took, and gives its place back, even if request panics.
func (p *Pace) once(
	ctx context.Context, timeout time.Duration, refused func(error) bool, request func(context.Context) error, leave func(),
) outcome {
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	err := request(ctx)
	a := outcome{err: err, answered: err == nil || refused(err), cutShort: ctx.Err() != nil || isTimeout(err), took: time.Since(start)}
	switch {
	case a.answered:
		p.note(a.took)
	case a.took >= timeout:
		p.note(a.took / 2)
	}
	return a
}

// UntilDone calls f until it succeeds or ctx ends, with pauses in between, and reports whether f
// succeeded. It is for background work; f logs its own errors.
func UntilDone(ctx context.Context, pause time.Duration, f func() error) bool {
	for ctx.Err() == nil {
		if f() == nil {
			return true
		}
		Sleep(ctx, pause)
	}
	return false
}

// KeepUp calls f, which is long-running (a watch, a subscription), again whenever it returns nil.
// It returns when f returns an error or ctx ends. Before each new call there is a pause, of
// firstPause after a call that lasted longer than [MaxPause], and otherwise doubling up to
// that.
func KeepUp(ctx context.Context, firstPause time.Duration, f func() error) error {
	pause := firstPause
	for ctx.Err() == nil {
		start := time.Now()
		if err := f(); err != nil {
			return err
		}
		if time.Since(start) > MaxPause {
			pause = firstPause
		}
		Sleep(ctx, pause)
		pause = min(2*pause, MaxPause)
	}
	return ctx.Err()
}

// Sleep waits for d, or until ctx ends. It does not wait if d is zero or negative.
func Sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		// A timer of no duration would do the same. But in a bubble of synctest, with the race detector, two
		// goroutines with such timers can crash the program (seen with Go 1.26.8).
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Within returns a context that ends with ctx or with life, a session's life, and has the cause of
// the one that ended first. The returned function ends it and releases its resources.
func Within(ctx, life context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return within, func() { stop(); cancel(nil) }
}

// GaveUp returns the error of a request that was not answered before ctx ended: the cause of ctx,
// joined with last, the last error of an attempt, unless that is nil or says the same.
func GaveUp(ctx context.Context, last error) error {
	cause := context.Cause(ctx)
	if last == nil || errors.Is(last, cause) {
		return cause
	}
	return &unansweredError{cause: cause, last: last}
}

// unansweredError is why a request was given up, and the last error of its attempts.
type unansweredError struct{ cause, last error }

func (e *unansweredError) Error() string {
	return e.cause.Error() + " (last error: " + e.last.Error() + ")"
}
func (e *unansweredError) Unwrap() []error { return []error{e.cause, e.last} }

// WithContextErr returns err unless ctx has ended. Then it returns an error that matches both err
// and ctx.Err(), even if err is nil: the call may have failed because of a context of its own that
// ended at the same time, or for another reason.
func WithContextErr(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil || errors.Is(err, ctx.Err()):
		return err
	case err == nil || err == context.Canceled || err == context.DeadlineExceeded:
		return ctx.Err() // err adds nothing
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// isTimeout reports whether an error says that a context has ended, or that a connection's deadline has passed. A
// request may have such an error although its own context has not ended. If the connection has the same deadline, it
// may time out a moment earlier. And when one request times out, the client of Redis fails all that wait for replies
// on the same connection.
func isTimeout(err error) bool {
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && timeout.Timeout() || errors.Is(err, context.Canceled)
}
