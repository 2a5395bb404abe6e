package etcdstore

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stilelock/stile/store/internal/attempts"
)

// firstPause is the first pause after an attempt that failed at once.
const firstPause = 20 * time.Millisecond

// maxAttempts is how many attempts of a store may be under way at the same time; see [attempts.NewPace]. Renewals and
// watches do not count. A server that gets thousands of requests at once answers none in time,
// and all are sent again. A server that has 5000 requests committed and not applied refuses new ones ("too many
// requests": maxGapBetweenApplyAndCommitIndex in etcd's server/etcdserver/v3_server.go). Ten processes opened a thousand
// sessions each: without a limit they sent twice to four times as many requests as with it, and some calls gave up after
// [attempts.MaxDuration].
//
// A lower limit would make batches smaller, because each request in a batch counts as an attempt: see maxBatch.
const maxAttempts = 256

// maxFarReads is how many reads of a waiter far back in its line may be under way at the same time; see
// sizes.farLimit. For each, the servers sort all keys of the line: a few such reads of a line of thousands keep them
// busy. Ten processes with 200 waiters each joined a line at once. With maxAttempts as the only limit, three of four of
// these reads were not answered in time and sent again, and the waiters had joined and read the line after 21 to 27 s;
// with this limit after 10 to 12 s. While one of three members is silent, they are about ten a second.
const maxFarReads = 16

// maxRemovals is how many removals of a store may be sent or repeated at the same time. They have places of their own, so
// that a release does not wait for joins. Those in a batch do not count: each session has few batches under way.
//
// Without this limit, 10 000 waiters of ten processes were admitted at once, and left at once, each with a session of its
// own. The server fell far behind, because it forces each end of a session to its disk. It refused requests, and
// sessions expired. A session ends after its entry is removed, so the limit spaces the ends too.
const maxRemovals = 64

// attempt repeats a request until it is answered; see [attempts.Pace.UntilAnswered]. A request that is
// in flight when the leader dies hangs in the server for seven seconds, although a new leader is
// elected after little more than one.
func (s *Store) attempt(ctx context.Context, request func(context.Context) error) error {
	return s.pace.UntilAnswered(ctx, firstPause, refused, request)
}

// attemptFar is attempt for a read of a waiter far back in its line. Its attempts count towards maxFarReads instead
// of maxAttempts.
func (s *Store) attemptFar(ctx context.Context, request func(context.Context) error) error {
	return s.farPace.UntilAnswered(ctx, firstPause, refused, request)
}

// attemptUrgent is attempt for a request that a session needs to stay alive, or a holder to learn that its entry is
// gone. Its attempts do not count towards maxAttempts, and do not wait.
func (s *Store) attemptUrgent(ctx context.Context, request func(context.Context) error) error {
	return s.pace.UntilAnsweredUrgent(ctx, firstPause, refused, request)
}

// errNoAnswer is the cause with which a call without a session times out.
var errNoAnswer = errors.New("no answer for " + attempts.MaxDuration.String() + ": check that the endpoints are correct and reachable")

// attemptWithTimeout is attempt for calls that are not bounded by a session's life. It gives up
// [attempts.MaxDuration] after the first attempt has begun.
func (s *Store) attemptWithTimeout(ctx context.Context, request func(context.Context) error) error {
	return s.pace.UntilAnsweredWithin(ctx, attempts.MaxDuration, errNoAnswer, firstPause, refused, request)
}

// endedBy is [attempts.WithContextErr], with the gRPC errors for the end of a context replaced by
// ctx.Err().
func endedBy(ctx context.Context, err error) error {
	if c := code(err); ctx.Err() != nil && !errors.Is(err, ctx.Err()) && (c == codes.Canceled || c == codes.DeadlineExceeded) {
		return ctx.Err()
	}
	return attempts.WithContextErr(ctx, err)
}

// refused reports whether err is a definite reply: the request was not carried out, and repeating
// it would not help. After any other error the request may have been carried out, and another
// attempt may succeed.
//
// There is one exception: the request that uses up the last space is carried out, and refused with
// ErrNoSpace like those after it (quotaApplierV3 in etcd's server).
func refused(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.OutOfRange, codes.Unimplemented,
		codes.Unauthenticated, codes.DataLoss: // the last one for as long as there is a CORRUPT alarm
		return true
	case codes.FailedPrecondition:
		// A member that is about to step down, or is not ready yet, replies with this code.
		return !errors.Is(err, rpctypes.ErrNotLeader)
	case codes.ResourceExhausted:
		return errors.Is(err, rpctypes.ErrNoSpace)
	default:
		return false
	}
}

// outcomeUnknown reports whether a request that failed with err may still be carried out, or may have been.
func outcomeUnknown(err error) bool {
	_, notSent := errors.AsType[notSentError](err)
	return !notSent && !refused(err)
}

// code returns the gRPC code of err, in either of the forms in which the etcd client returns
// errors.
func code(err error) codes.Code {
	if etcd, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return etcd.Code()
	}
	return status.Code(err)
}
