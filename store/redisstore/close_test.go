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

// The Redis client leaks a connection that it is making when it is closed. So no call may be
// running when the last session has been closed, not even in an outage.
func TestClose_leavesNoConnections(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	proxy := testservers.NewProxy(t, server.Addr())
	var outage atomic.Bool
	options := redisstore.ClientOptions(proxy.Addr())
	options.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if outage.Load() {
			if _, bounded := ctx.Deadline(); !bounded {
				return nil, errors.New("no subscriptions during the outage") // so that Close does not wait for a subscription
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
	a, b := open(t, st, longTTL), open(t, st, longTTL)
	hold(t, a, name)
	join(t, b, name, line.Exclusive)

	outage.Store(true)
	proxy.Hold()
	proxy.Reset()
	eventually(t, "the waiter polls on a new connection", func() bool { return proxy.Connections() > 0 })
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Close(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Close: got %v, want Canceled", err)
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
