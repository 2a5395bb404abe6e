package zkstore

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store/internal/attempts"
)

// client is a go-zookeeper client and what stands between it and its servers.
type client struct {
	*zk.Conn

	link  *link
	ready chan struct{} // closed when there has been a session
}

// connect starts a client. Sessions are asked to last for timeout; see [link] for once. heard is told of what happens, by
// goroutines of the client that wait for it.
func (s *Store) connect(timeout time.Duration, once bool, heard func(zk.Event)) (*client, error) {
	c := &client{link: newLink(s, timeout, once), ready: make(chan struct{})}
	ready := false
	conn, _, err := zk.Connect(c.link.servers, timeout,
		zk.WithDialer(c.link.dial),
		zk.WithHostProvider(c.link),
		zk.WithLogger(libraryLogger{s.logger}),
		zk.WithLogInfo(false),
		zk.WithEventCallback(func(ev zk.Event) {
			if ev.Type == zk.EventSession && ev.State == zk.StateHasSession && !ready {
				ready = true
				close(c.ready)
			}
			heard(ev)
		}),
	)
	if err != nil {
		c.link.stop()
		return nil, err
	}
	c.Conn = conn
	return c, nil
}

// await waits until there is a session, or a server has refused one.
func (c *client) await(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case <-c.link.rejected:
		return c.link.trouble()
	case <-ctx.Done():
		return attempts.GaveUp(ctx, c.link.trouble())
	}
}

// shut ends the session, as far as that can be done within a second, and everything that works for it.
func (c *client) shut() { c.shutWithin(c.link.over) } // which ends at once

// shutWithin is shut, but waits for the server's answer, for which the client waits a second, until ctx ends.
func (c *client) shutWithin(ctx context.Context) {
	c.link.stop()
	c.Close()
	for ctx.Err() == nil && c.State() == zk.StateHasSession && !c.link.hadFarewell() && !c.link.hasEnded() {
		attempts.Rest(ctx, firstPause)
	}
	c.link.drop()
}

// ask makes a request, and gives up waiting for the answer when ctx ends. The request itself cannot be taken back: it
// goes on, and its answer is lost.
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

// attempt makes a request until it is answered, and returns the answer, the refusal or, when ctx ends, ctx's error joined
// with that of the last attempt. The request is told how many attempts there were before, and must do no harm if it is
// carried out more than once. As one may go on when attempt has returned, it must not write to anything outside.
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
				last = c.link.trouble() // tells more
			}
			return none, attempts.GaveUp(ctx, last)
		case err == nil || c.final(err):
			return value, err
		}
		last = err
		if n > 0 { // the first repetition may well find another server
			attempts.Rest(ctx, firstPause)
		}
	}
}

// sync makes sure that what is read from here on is as new as when sync was called.
func (c *client) sync(ctx context.Context, path string) error {
	_, err := attempt(ctx, c, func(int) (string, error) { return c.Sync(path) })
	return err
}

// vote makes a transaction that changes nothing. That it is refused to look at the top is as much of an answer: the
// refusal is a transaction too.
func (c *client) vote() error {
	_, err := c.Multi(&zk.CheckVersionRequest{Path: "/", Version: -1})
	if errors.Is(err, zk.ErrNoAuth) {
		return nil
	}
	return err
}

// list lists a directory.
func (c *client) list(ctx context.Context, dir string) ([]string, error) {
	return attempt(ctx, c, func(int) ([]string, error) {
		children, _, err := c.Children(dir)
		return children, err
	})
}

// remove deletes a node, and reports whether it was there to be deleted. An attempt whose outcome is unknown, followed by
// one that finds nothing, counts as deleted: somebody's was.
func (c *client) remove(ctx context.Context, path string) (bool, error) {
	return attempt(ctx, c, func(before int) (bool, error) {
		err := c.Delete(path, -1)
		if errors.Is(err, zk.ErrNoNode) {
			return before > 0, nil
		}
		return err == nil, err
	})
}

// final reports whether there is no use in another attempt.
func (c *client) final(err error) bool {
	if errors.Is(err, zk.ErrSessionExpired) && !c.link.once {
		return false // there will be another
	}
	return refused(err) || c.link.over.Err() != nil
}

// refused reports whether an error is a server's considered answer, the request not having been carried out. Other errors
// tell nothing: neither whether it was, nor that another attempt would fail.
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
	return unnamed[err.Error()] != ""
}

// unnamed are answers that the library has no names for: what it says of them, and what they mean.
var unnamed = map[string]string{
	"unknown error: -6":   "the servers do not know the request: they must be 3.5.3 or later",
	"unknown error: -120": "sessions here are local to their servers and can have no entries: set localSessionsUpgradingEnabled",
	"unknown error: -124": "the servers want clients to authenticate, in a way that this one did not",
	"unknown error: -125": "a quota is used up: zkCli.sh shows it with listquota",
}
