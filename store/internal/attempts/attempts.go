// Package attempts repeats the requests of a store until its servers have answered, and says of those that were given
// up why, and what had gone wrong with them.
//
// Servers are restarted, replaced and cut off, and are back a moment later: who waits for a lock should notice nothing
// but the delay. So a request that was not answered is made again. How long that goes on is for the caller's context to
// say, and for what else bounds it: the session ([Within]) or, for calls without one, [Patience].
package attempts

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Patience is how long a call without a session goes on when nothing answers. Calls with a session go on as long as the
// session does.
const Patience = 10 * time.Second

// How long an attempt waits for its answer. A server that is being replaced, and a connection that is dead, may say
// nothing for many seconds when all is well elsewhere: therefore the first attempts are short. Where requests really take
// longer, the later ones give them time.
const (
	Shortest = 500 * time.Millisecond
	Longest  = 5 * time.Second
)

// LongestPause is the longest pause after an attempt that failed at once.
const LongestPause = 500 * time.Millisecond

// UntilAnswered makes a request until it is answered: with success, or with an error that is refused, which is the
// server's considered answer. When ctx ends first it returns why that did, joined with the error of the last attempt
// that was not cut short by it.
//
// The request is made with a context of its own each time, so it must do no harm if it is carried out more than once, or
// later than anybody waits for. After attempts that fail at once there are pauses, of firstPause to begin with.
func UntilAnswered(
	ctx context.Context, firstPause time.Duration, refused func(error) bool, request func(context.Context) error,
) error {
	patience, pause := Shortest, firstPause
	var last error
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return GaveUp(ctx, last)
		}
		try, cancel := context.WithTimeout(ctx, patience)
		start := time.Now()
		err := request(try)
		cancel()
		if err == nil || refused(err) {
			return err
		}
		if ctx.Err() != nil && last != nil {
			return GaveUp(ctx, last) // it tells more than this one's "canceled"
		}
		last = err
		// Two attempts of half a second span an election of etcd's with the default timeouts.
		if n > 0 {
			patience = min(2*patience, Longest)
		}
		if time.Since(start) < pause {
			Rest(ctx, pause)
			pause = min(2*pause, LongestPause)
		}
	}
}

// UntilDone calls f until it succeeds or ctx ends, and reports whether it did succeed. Between the calls there are pauses
// of the given length. It is for what goes on in the background: f logs what others should know of.
func UntilDone(ctx context.Context, pause time.Duration, f func() error) bool {
	for ctx.Err() == nil {
		if f() == nil {
			return true
		}
		Rest(ctx, pause)
	}
	return false
}

// KeepUp calls f, which is to last (a watch, a subscription), again whenever it returns nil, until it returns an error or
// ctx ends. After a call that did not last there is a pause, of firstPause to begin with.
func KeepUp(ctx context.Context, firstPause time.Duration, f func() error) error {
	pause := firstPause
	for ctx.Err() == nil {
		start := time.Now()
		if err := f(); err != nil {
			return err
		}
		if time.Since(start) > LongestPause {
			pause = firstPause
		}
		Rest(ctx, pause)
		pause = min(2*pause, LongestPause)
	}
	return ctx.Err()
}

// Rest waits for d, or until ctx ends. It does not wait if d is zero or negative.
func Rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Within returns a context for what is done for a session: it ends with ctx and with the session's life, and its cause
// is that of the first that did. The function that it returns frees what the context needs, and ends it.
func Within(ctx, life context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return within, func() { stop(); cancel(nil) }
}

// GaveUp returns the error of a request that was not answered before ctx ended: why ctx did, joined with what the last
// attempt failed with, if that is known (not nil) and says anything else.
func GaveUp(ctx context.Context, last error) error {
	cause := context.Cause(ctx)
	if last == nil || errors.Is(last, cause) {
		return cause
	}
	return &unansweredError{cause: cause, last: last}
}

// unansweredError says why a request was given up and what its last attempt failed with.
type unansweredError struct{ cause, last error }

func (e *unansweredError) Error() string {
	return e.cause.Error() + " (last attempt: " + e.last.Error() + ")"
}
func (e *unansweredError) Unwrap() []error { return []error{e.cause, e.last} }

// EndedBy returns the error of a call whose caller gave it ctx: err, and if ctx has ended, one that matches ctx.Err()
// too. The call may have gone wrong with a context of its own that ended at the same time, or for another reason; that
// there was no error at all counts for nothing then.
func EndedBy(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil || errors.Is(err, ctx.Err()):
		return err
	case err == nil || err == context.Canceled || err == context.DeadlineExceeded:
		return ctx.Err() // which says it all
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}
