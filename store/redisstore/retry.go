package redisstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/internal/attempts"
)

// firstPause is the pause after the first attempt that failed at once.
const firstPause = 10 * time.Millisecond

// retry sends a request until it is answered: see [attempts.UntilAnswered]. The next attempt may
// use another connection or reach another server.
func retry(ctx context.Context, request func(context.Context) error) error {
	return attempts.UntilAnswered(ctx, firstPause, refused, request)
}

// errNoSuccess is why a call without a session stops although its own ctx has not ended.
var errNoSuccess = errors.New("no success within " + attempts.MaxDuration.String() + ": check that the address is right and reachable")

// retryBounded is retry for calls that no session bounds. It stops after attempts.MaxDuration.
func retryBounded(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.MaxDuration, errNoSuccess)
	defer cancel()
	return retry(ctx, request)
}

// temporary are the prefixes of errors that mean: not now, or not here. The request was not carried
// out, and a repetition may succeed.
var temporary = []string{
	"LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "NOREPLICAS", "MOVED", "ASK", "NOSCRIPT",
}

// unblocked is the prefix of the error of a WAIT that ends because the master has become a replica.
// The changes that it waited for have been made.
const unblocked = "UNBLOCKED"

// hasPrefix reports whether an error is the server's and begins with one of the prefixes.
func hasPrefix(err error, words ...string) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(reply.Error(), word) })
}

// notMaster reports whether the server replied that it is not the master, or is still loading and
// may become a replica.
func notMaster(err error) bool { return hasPrefix(err, "READONLY", "MASTERDOWN", "LOADING") }

// notExecuted reports whether an error implies that the request was not carried out.
func notExecuted(err error) bool { return hasPrefix(err, temporary...) }

// refused reports whether an error is the server's final answer. Other errors leave open whether
// the request was carried out, and whether a repetition would fail.
func refused(err error) bool {
	if errors.Is(err, ErrNotReplicated) || errors.Is(err, errTooOld) {
		return true
	}
	_, ok := rueidis.IsRedisErr(err)
	return ok && !hasPrefix(err, temporary...) && !hasPrefix(err, unblocked)
}
