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

// firstPause is the first pause after an attempt that failed at once.
const firstPause = 10 * time.Millisecond

// attempt makes a request until it is answered: see [attempts.UntilAnswered]. Another attempt may well go over another
// connection, or to another server.
func attempt(ctx context.Context, request func(context.Context) error) error {
	return attempts.UntilAnswered(ctx, firstPause, refused, request)
}

// errPatience is why a call without a session gives up when its own ctx would let it go on.
var errPatience = errors.New("no success for " + attempts.Patience.String() + ": check that the address is right and within reach")

// patiently is attempt for calls that no session bounds.
func patiently(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, attempts.Patience, errPatience)
	defer cancel()
	return attempt(ctx, request)
}

// notNow are the first words of errors that say: not now, or not here. The request has not been carried out, and another
// attempt may well be.
var notNow = []string{
	"LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "NOREPLICAS", "MOVED", "ASK", "NOSCRIPT",
}

// unblocked is the first word of the error of a WAIT that ends because the master has become a replica. What was to be waited
// for has been carried out.
const unblocked = "UNBLOCKED"

// beginsWith reports whether an error is the server's and begins with one of the words.
func beginsWith(err error, words ...string) bool {
	said, ok := rueidis.IsRedisErr(err)
	return ok && slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(said.Error(), word) })
}

// notCarriedOut reports whether an error tells that the request was not carried out.
func notCarriedOut(err error) bool { return beginsWith(err, notNow...) }

// refused reports whether an error is the server's considered answer. Other errors tell nothing: neither whether the
// request was carried out, nor that another attempt would fail.
func refused(err error) bool {
	if errors.Is(err, ErrNotReplicated) || errors.Is(err, errTooOld) {
		return true
	}
	_, ok := rueidis.IsRedisErr(err)
	return ok && !beginsWith(err, notNow...) && !beginsWith(err, unblocked)
}
