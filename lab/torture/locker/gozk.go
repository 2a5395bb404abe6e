package locker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/lab/torture/history"
)

// zkLocker is go-zookeeper's own Lock, on the path /torture/NAME. The Lock tells its holder
// nothing, not even the node that it has created. Only the events of the session are available.
// ZooKeeper's documentation demands that a holder stops relying on its lock when the connection is
// broken, and this holder does. The client notices a lost connection after two thirds of the TTL.
//
// Lock cannot be canceled. A waiter that gives up leaves a goroutine in the background, which waits
// for the lock and then unlocks it.
type zkLocker struct {
	conn       *zk.Conn
	closed     chan struct{}
	background sync.WaitGroup // the calls of the library in progress

	mu         sync.Mutex
	connection *zkConnection // the current connection of the session
	ready      chan struct{}
}

// zkConnection is one unbroken connection of a session.
type zkConnection struct {
	broken chan struct{}
	why    string // written before broken is closed
}

func openGozk(ctx context.Context, c Config, _ string) (Locker, error) {
	l := &zkLocker{
		connection: &zkConnection{broken: make(chan struct{})},
		ready:      make(chan struct{}),
		closed:     make(chan struct{}),
	}
	logger := log.New(io.Discard, "", 0)
	conn, _, err := zk.Connect(c.Addresses, c.TTL, zk.WithEventCallback(l.onEvent), zk.WithLogger(logger), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	l.conn = conn
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	select {
	case <-l.ready:
		return l, nil
	case <-ctx.Done():
		conn.Close()
		return nil, fmt.Errorf("no session: %w", ctx.Err())
	}
}

// onEvent is called with the session's events, one at a time.
func (l *zkLocker) onEvent(e zk.Event) {
	if e.Type != zk.EventSession {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.connection
	switch e.State {
	case zk.StateHasSession:
		if isClosed(s.broken) {
			l.connection = &zkConnection{broken: make(chan struct{})}
		}
		if !isClosed(l.ready) {
			close(l.ready)
		}
	case zk.StateDisconnected, zk.StateExpired, zk.StateAuthFailed:
		if !isClosed(s.broken) {
			s.why = "session event: " + e.State.String()
			close(s.broken)
		}
	default:
	}
}

func (l *zkLocker) Offers() history.Offers {
	return history.Offers{Loss: true, Proof: true, Fair: true}
}

func (l *zkLocker) Lock(ctx context.Context, name string) (Hold, error) {
	l.mu.Lock()
	connection := l.connection // from before Lock: if it breaks meanwhile, the hold is lost from the start
	l.mu.Unlock()
	lock := zk.NewLock(l.conn, "/"+name, zk.WorldACL(zk.PermAll))
	done := make(chan error, 1)
	l.background.Go(func() { done <- lock.Lock() })
	select {
	case err := <-done:
		if err != nil {
			return nil, unknownOutcome(err) // the node may have been created, and last as long as the session
		}
		return &zkHold{l, lock, connection}, nil
	case <-ctx.Done():
		l.background.Go(func() {
			if <-done == nil {
				_ = l.unlock(lock)
			}
		})
		return nil, unknownOutcome(ctx.Err())
	}
}

func (l *zkLocker) TryLock(context.Context, string) (Hold, error) { return nil, ErrTryUnsupported }

// unlock retries until the node is deleted, or the locker is closed and the node ends with the
// session. A node that is left while the session lives would keep the lock forever.
func (l *zkLocker) unlock(lock *zk.Lock) error {
	for {
		switch err := lock.Unlock(); {
		case err == nil:
			return nil
		case errors.Is(err, zk.ErrNoNode):
			return fmt.Errorf("%w: %w", ErrLost, err)
		case isClosed(l.closed):
			return err
		}
		select {
		case <-time.After(unlockRetryInterval):
		case <-l.closed:
		}
	}
}

// unlockRetryInterval is the pause before an Unlock that failed is tried again.
const unlockRetryInterval = 100 * time.Millisecond

// Close ends the session. If ZooKeeper does not receive that within a second, the TTL ends the
// session. Close ignores ctx.
func (l *zkLocker) Close(context.Context) error {
	close(l.closed)
	l.conn.Close()
	l.background.Wait()
	return nil
}

type zkHold struct {
	locker     *zkLocker
	lock       *zk.Lock
	connection *zkConnection
}

func (h *zkHold) Token() uint64         { return 0 }
func (h *zkHold) Until() int64          { return 0 }
func (h *zkHold) Valid() bool           { return !isClosed(h.connection.broken) }
func (h *zkHold) Lost() <-chan struct{} { return h.connection.broken }
func (h *zkHold) Why() string           { return h.connection.why }

func (h *zkHold) Release(ctx context.Context) error {
	done := make(chan error, 1)
	h.locker.background.Go(func() { done <- h.locker.unlock(h.lock) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
