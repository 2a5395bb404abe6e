package redlockstore

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
)

// A request that arrives while the connection breaks makes the Redis client reconnect, although the
// master abandons that client.
func TestMaster_oneConnectionAfterBreak(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	d := &dialer{open: make(map[*conn]bool)}
	m := newMaster(0, rueidis.ClientOption{InitAddress: []string{server.Addr()}, DialCtxFn: d.dial}, slog.New(slog.DiscardHandler))
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	running.Go(func() { m.run(ctx) })
	client := m.await(ctx)

	d.gate.Lock()
	d.breakAll()
	var again atomic.Bool
	running.Go(func() {
		for !again.Load() {
			client.Do(ctx, client.B().Ping().Build())
		}
	})
	eventually(t, "the client reconnects", func() bool { return d.dialing.Load() == 1 })
	again.Store(true)
	m.markBroken(client, io.EOF)
	eventually(t, "the master connects with another client", func() bool { return d.dialing.Load() == 2 })
	d.gate.Unlock()
	eventually(t, "both are connected", func() bool { return d.dialing.Load() == 0 })
	m.await(ctx)
	eventually(t, "one connection is left", func() bool { return d.count() == 1 })
}

// dialer makes connections while its gate is unlocked.
type dialer struct {
	gate    sync.RWMutex
	dialing atomic.Int32
	mu      sync.Mutex
	open    map[*conn]bool
}

type conn struct {
	net.Conn
	of *dialer
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (d *dialer) dial(_ context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	d.dialing.Add(1)
	defer d.dialing.Add(-1)
	d.gate.RLock()
	defer d.gate.RUnlock()
	made, err := dialer.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &conn{made, d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[c] = true
	return c, nil
}

func (d *dialer) breakAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.open {
		_ = c.Conn.Close()
	}
}

func (d *dialer) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}
