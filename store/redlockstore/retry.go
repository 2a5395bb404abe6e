package redlockstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store/internal/attempts"
)

var errNoMajority = fmt.Errorf("no majority of the masters has answered within %v", attempts.MaxDuration)

// retry calls ask until it succeeds or a majority of the masters refuses. It returns when the last
// call was begun. If ctx ends first, the error is that of the last call that ctx did not cut short.
func (s *Store) retry(ctx context.Context, ask func() error) (begun bootclock.Instant, err error) {
	var last error
	for {
		begun = bootclock.Now()
		err := ask()
		switch {
		case err == nil:
			return begun, nil
		case ctx.Err() != nil:
			return begun, attempts.WithContextErr(ctx, cmp.Or(last, err))
		case s.life.Err() != nil:
			return begun, errClosed
		case s.refused(err):
			return begun, err
		}
		last = err
		attempts.Sleep(ctx, firstRedial)
	}
}

// refused reports whether a majority of the masters has refused a request for a reason that needs
// an operator, so that a repetition is useless.
func (s *Store) refused(err error) bool {
	q, ok := errors.AsType[*quorumError](err)
	if !ok {
		return false
	}
	n := 0
	for _, err := range q.errs {
		if _, ok := errors.AsType[*rueidis.RedisError](err); ok && !temporary(err) {
			n++
		}
	}
	return n >= s.quorum
}

// temporary reports whether a master has refused for a reason that passes by itself.
func temporary(err error) bool {
	reply, ok := errors.AsType[*rueidis.RedisError](err)
	return ok && (reply.IsLoading() || strings.HasPrefix(reply.Error(), "BUSY"))
}
