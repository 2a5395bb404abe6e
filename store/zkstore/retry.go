package zkstore

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
)

// ask makes a request, and stops waiting for the reply when ctx ends. The request itself cannot be
// canceled: it continues, and its reply is discarded.
func ask[T any](ctx context.Context, request func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	if ctx.Err() == nil {
		go func() {
			value, err := request()
			answers <- answer{value, err}
		}()
	}
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// attempt makes a request until it is answered. It returns the reply, the refusal or, when ctx
// ends, ctx's error joined with that of the last attempt. The request gets the number of attempts
// before it, and must do no harm if it is carried out more than once. An attempt may continue after
// attempt has returned, so it must not write to variables outside.
func attempt[T any](ctx context.Context, c *client, request func(before int) (T, error)) (T, error) {
	var none T
	var last error
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return none, attempts.GaveUp(ctx, last)
		}
		value, err := ask(ctx, func() (T, error) { return request(n) })
		switch {
		case ctx.Err() != nil && err != nil:
			if last == nil || errors.Is(last, zk.ErrNoServer) {
				last = c.transport.lastErr() // more specific
			}
			return none, attempts.GaveUp(ctx, last)
		case err == nil || c.final(err):
			return value, err
		}
		last = err
		if n > 0 { // the first repetition may reach another server
			attempts.Sleep(ctx, firstPause)
		}
	}
}

// noAnswerError is why a call without a session stops although its own ctx has not ended.
type noAnswerError time.Duration

func (e noAnswerError) Error() string {
	return "no answer for " + time.Duration(e).String() + ": check that the addresses are correct and reachable"
}

// withReader makes requests on the store's own connection. They must do no harm if they are made
// more than once.
func (s *Store) withReader(ctx context.Context, op string, requests func(context.Context, *client) error) error {
	return s.withReaderTimeout(ctx, s.callTimeout, op, requests)
}

func (s *Store) withReaderTimeout(
	ctx context.Context, timeout time.Duration, op string, requests func(context.Context, *client) error,
) error {
	return s.withReaderWhileAnswered(ctx, timeout, op, func(ctx context.Context, c *client, _ func()) error {
		return requests(ctx, c)
	})
}

// withReaderWhileAnswered is withReader for any number of requests. The timeout begins anew with each
// call of answered, so many requests may take long in all.
func (s *Store) withReaderWhileAnswered(
	ctx context.Context, timeout time.Duration, op string, requests func(ctx context.Context, c *client, answered func()) error,
) error {
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(timeout, func() { cancel(noAnswerError(timeout)) })
	defer timer.Stop()
	c, err := s.reader()
	if err == nil {
		err = c.await(bounded)
	}
	if err == nil {
		err = requests(bounded, c, func() { timer.Reset(timeout) })
	}
	if err != nil && !errors.Is(err, store.ErrGone) {
		return s.wrapErr(op, attempts.WithContextErr(ctx, err))
	}
	return err
}

// refused reports whether an error is a server's final answer: the request was not carried out, and
// would fail again. Other errors leave both open.
func refused(err error) bool {
	for _, answer := range []error{
		zk.ErrNoNode, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals, zk.ErrNodeExists, zk.ErrNotEmpty,
		zk.ErrInvalidACL, zk.ErrInvalidPath, zk.ErrInvalidFlags, zk.ErrAuthFailed, zk.ErrBadArguments, zk.ErrAPIError,
		zk.ErrSessionExpired,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return unnamedErrors[err.Error()] != ""
}

// unnamedErrors maps the library's texts for errors that it has no names for to what they mean.
var unnamedErrors = map[string]string{
	"unknown error: -6":   "the servers do not support the request: ZooKeeper 3.5.3 or later is required",
	"unknown error: -120": "sessions here are local to their servers and can have no entries: set localSessionsUpgradingEnabled",
	"unknown error: -124": "the servers require an authentication that the client does not have",
	"unknown error: -125": "a quota is used up: zkCli.sh shows it with listquota",
}
