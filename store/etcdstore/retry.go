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

// attempt makes a request until it is answered: see [attempts.UntilAnswered]. A request that is under way when the
// leader dies hangs in the server for seven seconds, though the cluster is back after little more than one.
func attempt(ctx context.Context, request func(context.Context) error) error {
	return attempts.UntilAnswered(ctx, firstPause, refused, request)
}

// errPatience is why a call without a session gives up when its own ctx would let it go on.
var errPatience = errors.New("no answer for " + attempts.Patience.String() + ": check that the endpoints are right and within reach")

// patiently is attempt for calls that no session bounds.
func patiently(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	defer cancel()
	return attempt(ctx, request)
}

// endedBy is [attempts.EndedBy]. The connection has words of its own for the end of a context, which tell no more.
func endedBy(ctx context.Context, err error) error {
	if c := code(err); ctx.Err() != nil && !errors.Is(err, ctx.Err()) && (c == codes.Canceled || c == codes.DeadlineExceeded) {
		return ctx.Err()
	}
	return attempts.EndedBy(ctx, err)
}

// refused reports whether an error is the cluster's considered answer, the request not having been carried out. Other
// errors tell nothing: neither whether it was, nor that another attempt would fail.
func refused(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.OutOfRange, codes.Unimplemented,
		codes.Unauthenticated, codes.DataLoss: // the last one for as long as there is a CORRUPT alarm
		return true
	case codes.FailedPrecondition:
		// Members that are about to step down, or not ready yet, answer with this code.
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
