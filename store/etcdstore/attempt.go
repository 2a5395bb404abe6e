package etcdstore

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The patience of one attempt. A request that is under way when the leader dies hangs in the server for seven
// seconds, though the cluster is back after little more than one: hence the short first attempts. Where requests
// really take longer, the later attempts give them time.
const (
	firstAttempt = 500 * time.Millisecond
	lastAttempt  = 5 * time.Second
)

// The pause after an attempt that failed at once.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// attempt makes a request until it is answered, and returns nil, the refusal, or, when ctx ends, ctx's error joined
// with that of the last attempt. The request must do no harm if it is carried out more than once.
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
		// Two attempts of half a second span an election with the default timeouts.
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

// refused reports whether an error is the cluster's considered answer, the request not having been carried out. Other
// errors tell nothing: neither whether it was, nor that another attempt would fail.
func refused(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.OutOfRange, codes.Unimplemented,
		codes.Unauthenticated:
		return true
	case codes.FailedPrecondition:
		// Members that are about to step down, or not ready yet, say so with this code.
		return !errors.Is(err, rpctypes.ErrNotLeader)
	case codes.ResourceExhausted:
		return errors.Is(err, rpctypes.ErrNoSpace)
	default:
		return false
	}
}

// code returns the gRPC code of an error, in either of the forms in which the etcd client returns them.
func code(err error) codes.Code {
	if etcd, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return etcd.Code()
	}
	return status.Code(err)
}

// errPatience is why a call without a session gives up when its own ctx would let it go on.
var errPatience = errors.New("no answer for " + patience.String() + ": check that the endpoints are right and within reach")

// patiently is attempt for calls that no session bounds.
func (s *Store) patiently(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errPatience)
	defer cancel()
	return attempt(ctx, request)
}
