package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// crowdCallers is the number of callers of each worker: with six workers, 504 callers want the lock.
const crowdCallers = 84

// A crowd is the clients of a worker of the workload Crowd.
//
// Of 84 callers, 72 have a client of their own on connections that twelve clients share, and six have
// one on connections of its own. The other six use the client of another caller, so that the line is
// 468 entries long, and some callers queue in their process too. A connection for every client would
// cost more than the lock: with three etcd servers it is three TCP connections, each of which two
// cores have to open again after each fault of the network. (On ZooKeeper every client has one
// connection anyway.)
type crowd struct {
	*worker
	callers int
	clients []*crowdClient
	conns   []*crowdConn
}

const (
	callersPerShared = 14 // of so many callers, one uses the client of another one
	clientsPerOwn    = 13 // of so many clients, one has connections of its own
	clientsPerConn   = 12
)

// newCrowd returns the crowd of a worker with the given number of callers. It connects to nothing.
func newCrowd(w *worker, callers int) *crowd {
	c := &crowd{worker: w, callers: callers}
	n := callers - callers/callersPerShared
	shared := n - n/clientsPerOwn
	for i := range n {
		client := &crowdClient{worker: w, name: fmt.Sprintf("%s/%d", w.config.Worker, i)}
		if i < shared {
			if i%clientsPerConn == 0 {
				c.conns = append(c.conns, &crowdConn{})
			}
			client.conn = c.conns[len(c.conns)-1]
		}
		c.clients = append(c.clients, client)
	}
	return c
}

// clientOf returns the client of a caller, and whether no other caller uses it.
func (c *crowd) clientOf(caller int) (client *crowdClient, alone bool) {
	n := len(c.clients)
	return c.clients[caller%n], caller < n && caller+n >= c.callers
}

// close closes all clients, and then their connections.
func (c *crowd) close() {
	var closing sync.WaitGroup
	for _, client := range c.clients {
		closing.Go(func() { client.leave(false) })
	}
	closing.Wait()
	for _, conn := range c.conns {
		if conn.base != nil {
			c.withinTTL(func(ctx context.Context) { _ = conn.base.Close(ctx) })
		}
	}
}

// A crowdConn is the connections of several clients.
type crowdConn struct {
	mu   sync.Mutex
	base locker.Locker // its own client is not used; nil before the first client has been opened
}

// A crowdClient is a client, which is opened when it is needed and again after it was closed.
type crowdClient struct {
	*worker
	name string
	conn *crowdConn // nil if it has connections of its own

	mu     sync.Mutex
	locker locker.Locker // nil if it is not open
}

// open returns the client's locker, which it opens if necessary; nil if ctx ends first.
func (c *crowdClient) open(ctx context.Context) (locker.Locker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.locker != nil {
		return c.locker, nil
	}
	config := c.config.Locker
	config.OnSession = func() { c.say(history.Event{Opened: &history.Opened{Client: c.name}}) }
	var err error
	if c.conn == nil {
		c.locker, err = c.worker.open(ctx, config)
		return c.locker, err
	}
	base, err := c.conn.open(ctx, c.worker)
	if base == nil {
		return nil, err
	}
	c.locker, err = locker.Share(base, config, c.config.Worker)
	return c.locker, err
}

func (c *crowdConn) open(ctx context.Context, w *worker) (locker.Locker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base != nil {
		return c.base, nil
	}
	var err error
	c.base, err = w.open(ctx, w.config.Locker)
	return c.base, err
}

// leave closes the client, if it is open, or abandons it if it is to and has connections of its own.
func (c *crowdClient) leave(abandon bool) {
	c.mu.Lock()
	l := c.locker
	c.locker = nil
	c.mu.Unlock()
	if l == nil {
		return
	}
	c.withinTTL(func(ctx context.Context) {
		if abandoner, ok := l.(locker.Abandoner); ok && abandon {
			abandoner.Abandon(ctx)
			return
		}
		_ = l.Close(ctx)
	})
}

// crowdCall is one call of a caller in the crowd. Most callers wait until they have the lock. One of four
// leaves the line after a while, and some of these close or abandon the client. Of the callers that get
// the lock, some close or abandon the client instead of releasing it.
func (s *sequence) crowdCall(ctx context.Context) error {
	client, alone := s.crowd.clientOf(s.number)
	l, err := client.open(ctx)
	if l == nil {
		return err
	}
	callCtx, cancel := s.crowdPatience(ctx)
	defer cancel()
	var left atomic.Bool // the client was closed or abandoned during the call
	if s.rng.IntN(4) == 0 {
		closes, abandon := alone && s.rng.IntN(4) == 0, s.rng.IntN(2) == 0
		leaving := time.AfterFunc(s.randomUpTo(5*s.config.holdUnit()), func() {
			if closes {
				left.Store(true)
				client.leave(abandon)
			}
			cancel()
		})
		defer leaving.Stop()
	}
	t := s.waitWith(callCtx, &history.Acquire{Lock: s.pickLock(), Client: client.name}, func(ctx context.Context, name string) (locker.Hold, error) {
		h, err := l.Lock(ctx, name)
		if err != nil && left.Load() {
			err = fmt.Errorf("%w: %w", stile.ErrClosed, err)
		}
		return h, err
	})
	if t == nil || !alone || s.rng.IntN(20) > 0 {
		err := s.workAndRelease(ctx, t, s.rng.IntN(2), 0)
		s.pause(ctx)
		return err
	}
	err = t.work(ctx, 1, 0)
	t.endWith(func(context.Context) (history.Outcome, error) {
		client.leave(s.rng.IntN(2) == 0)
		return history.Unknown, errors.New("the client was closed instead")
	})
	return err
}

// crowdPatience returns a context for a call. When ctx ends, one of four callers gives up at once. The
// others go on waiting until all ahead of them have been served, for up to ten TTLs.
func (s *sequence) crowdPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	callCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if s.number%4 == 0 {
			cancel()
			return
		}
		sleep(callCtx, 10*s.config.holdUnit())
		cancel()
	})
	return callCtx, func() { stop(); cancel() }
}
