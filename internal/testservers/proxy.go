package testservers

import (
	"fmt"
	"net"
	"testing"

	"github.com/stilelock/stile/internal/tcpproxy"
)

// Direction is one direction of the traffic through a [Proxy].
type Direction = tcpproxy.Direction

const (
	// Up is from the client to the server: requests.
	Up = tcpproxy.Up
	// Down is from the server to the client: replies.
	Down = tcpproxy.Down
)

// Proxy forwards TCP connections to one server, and can delay, hold or reset them. It is safe for
// concurrent use.
type Proxy struct {
	*tcpproxy.Proxy
	t testing.TB
}

// NewProxy starts a proxy for the server at target, a host:port. The server need not be running.
// The proxy and its connections are closed when the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := newProxy(target)
	must(t, err)
	t.Cleanup(p.Close)
	p.t = t
	return p
}

// newProxy starts a proxy that belongs to no test.
func newProxy(target string) (*Proxy, error) {
	var err error
	for range 5 {
		var addr string
		if addr, err = NewAddress(); err != nil {
			break
		}
		var p *tcpproxy.Proxy
		if p, err = tcpproxy.New(target, func() (net.Listener, error) { return net.Listen("tcp", addr) }); err == nil {
			return &Proxy{Proxy: p}, nil
		}
	}
	return nil, fmt.Errorf("proxy for %s: %w", target, err)
}

// Accept ends Refuse. The test fails if listening again fails.
func (p *Proxy) Accept() {
	if err := p.Proxy.Accept(); err != nil {
		must(p.t, fmt.Errorf("proxy of %s: %w", p.Addr(), err))
	}
}
