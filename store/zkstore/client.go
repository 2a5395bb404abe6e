package zkstore

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store/internal/attempts"
)

// client is a go-zookeeper client with its transport to the servers.
type client struct {
	*zk.Conn

	transport *transport
	ready     chan struct{} // closed when there has been a session
}

// connect starts a client that requests sessions with the TTL timeout; see [transport] for once.
// handle is called with each event by goroutines of the client, which wait for it.
func (s *Store) connect(timeout time.Duration, singleSession bool, handle func(zk.Event)) (*client, error) {
	c := &client{transport: newTransport(s, timeout, singleSession), ready: make(chan struct{})}
	ready := false
	conn, _, err := zk.Connect(c.transport.servers, timeout,
		zk.WithDialer(c.transport.dial),
		zk.WithHostProvider(c.transport),
		zk.WithLogger(libraryLogger{s.logger}),
		zk.WithLogInfo(false),
		zk.WithEventCallback(func(ev zk.Event) {
			if ev.Type == zk.EventSession && ev.State == zk.StateHasSession && !ready {
				ready = true
				close(c.ready)
			}
			handle(ev)
		}),
	)
	if err != nil {
		c.transport.stop()
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
	case <-c.transport.rejected:
		return c.transport.lastErr()
	case <-ctx.Done():
		return attempts.GaveUp(ctx, c.transport.lastErr())
	}
}

// shut ends the session, if that is possible within a second, and all goroutines that work for it.
// stopped has ended when shutWithin would wait for the reply, so shut does not wait for it.
func (c *client) shut() { c.shutWithin(c.transport.stopped) }

// shutWithin is shut, but waits until ctx ends for the server's reply; the library waits a second
// for it.
func (c *client) shutWithin(ctx context.Context) {
	c.transport.stop()
	c.Close()
	for ctx.Err() == nil && c.State() == zk.StateHasSession && !c.transport.closeConfirmed() && !c.transport.hasEnded() {
		attempts.Sleep(ctx, firstPause)
	}
	c.transport.drop()
}

// sync ensures that later reads are at least as new as the call of sync.
func (c *client) sync(ctx context.Context, path string) error {
	_, err := attempt(ctx, c, func(int) (string, error) { return c.Sync(path) })
	return err
}

// commitEmpty makes a transaction that changes nothing. If the client may not check the top node
// the result is as good, because the refusal is a transaction too.
func (c *client) commitEmpty() error {
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

// remove deletes a node, and its claim if that is not empty, and reports whether the node existed. An
// attempt whose outcome is unknown, followed by one that finds no node, counts as deleted: some request
// has deleted it.
func (c *client) remove(ctx context.Context, path, claim string) (bool, error) {
	return attempt(ctx, c, func(before int) (bool, error) {
		err := c.deleteBoth(path, claim)
		if errors.Is(err, zk.ErrNoNode) {
			return before > 0, nil
		}
		return err == nil, err
	})
}

// final reports whether another attempt would be useless.
func (c *client) final(err error) bool {
	if errors.Is(err, zk.ErrSessionExpired) && !c.transport.once {
		return false // the library opens another
	}
	return refused(err) || c.transport.stopped.Err() != nil
}
