package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store/redisstore"
)

// The Redis client keeps a connection that it was making for somebody while it was closed. So nobody may be asking any more
// when the last session is closed, in an outage either.
func TestNoConnectionIsLeftThatWasMadeDuringClose(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy := testservers.NewProxy(t, server.Addr())
	var outage atomic.Bool
	options := redisstore.ClientOptions(proxy.Addr())
	options.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if outage.Load() {
			if _, bounded := ctx.Deadline(); !bounded {
				return nil, errors.New("nobody may listen now") // so that closing does not wait for that
			}
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	cli, err := rueidis.NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	st := newStore(t, cli, nil)
	name := newName(t)
	a, b := open(t, st, lasting), open(t, st, lasting)
	hold(t, a, name)
	join(t, b, name, line.Exclusive)

	outage.Store(true)
	proxy.Hold()
	proxy.Reset()
	eventually(t, "who waits asks, on a new connection", func() bool { return proxy.Connections() > 0 })
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Close(over); !errors.Is(err, context.Canceled) {
		t.Errorf("nothing can have been carried out, and closing says %v", err)
	}
	closed := make(chan error, 1)
	go func() { closed <- b.Close(t.Context()) }()
	<-redisstore.Ended(b)
	proxy.Release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	cli.Close()
	eventually(t, "no connection is left", func() bool { return proxy.Connections() == 0 })
}
