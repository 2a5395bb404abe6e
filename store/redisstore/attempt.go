package redisstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// The patience of one attempt. A server that is being replaced, or a connection that is dead, answers nothing: the first
// attempts are short, so that there is soon another, on another connection or with another server. Where requests really
// take longer, the later attempts give them time.
const (
	firstAttempt = 500 * time.Millisecond
	lastAttempt  = 5 * time.Second
)

// The pause after an attempt that failed at once.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// attempt makes a request until it is answered, and returns nil, the refusal, or, when ctx ends, why it did, joined with
// the error of the last attempt. The request must do no harm if it is carried out more than once.
func attempt(ctx context.Context, request func(context.Context) error) error {
	patience, pause := firstAttempt, firstPause
	var last error
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return gaveUp(ctx, last)
		}
		try, cancel := context.WithTimeout(ctx, patience)
		start := time.Now()
		err := request(try)
		cancel()
		if err == nil || refused(err) {
			return err
		}
		if ctx.Err() != nil && last != nil {
			return gaveUp(ctx, last) // it tells more than this one's "canceled"
		}
		last = err
		if n > 0 {
			patience = min(2*patience, lastAttempt)
		}
		if time.Since(start) < pause {
			rest(ctx, pause)
			pause = min(2*pause, lastPause)
		}
	}
}

// gaveUp is the error of a request that ctx ended before it was answered.
func gaveUp(ctx context.Context, last error) error {
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

// rest waits for d or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// passing are the first words of errors that say: not now, or not here. The request has not been carried out, and another
// attempt may well be.
var passing = []string{
	"LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "NOREPLICAS", "MOVED", "ASK", "NOSCRIPT",
}

// refused reports whether an error is the server's considered answer. Other errors tell nothing: neither whether the
// request was carried out, nor that another attempt would fail.
func refused(err error) bool {
	if errors.Is(err, ErrNotReplicated) {
		return true
	}
	said, ok := rueidis.IsRedisErr(err)
	if !ok {
		return false
	}
	for _, word := range passing {
		if strings.HasPrefix(said.Error(), word) {
			return false
		}
	}
	return true
}

// patience is how long a call without a session goes on when nothing answers. Calls with a session go on as long as the
// session does.
const patience = 10 * time.Second

// errPatience is why a call without a session gives up when its own ctx would let it go on.
var errPatience = errors.New("no answer for " + patience.String() + ": check that the address is right and within reach")

// patiently is attempt for calls that no session bounds.
func patiently(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errPatience)
	defer cancel()
	return attempt(ctx, request)
}

// endedBy makes sure that the error of a call that ctx has ended matches ctx.Err().
func endedBy(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil || errors.Is(err, ctx.Err()):
		return err
	case err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return ctx.Err()
	}
	return joined{ctx.Err(), err}
}

// joined is two errors in one line.
type joined struct{ first, second error }

func (e joined) Error() string   { return e.first.Error() + ": " + e.second.Error() }
func (e joined) Unwrap() []error { return []error{e.first, e.second} }
