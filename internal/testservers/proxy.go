package testservers

import (
	"fmt"
	"net"
	"testing"

	"github.com/stilelock/stile/internal/tcpproxy"
)

// Direction is a way through a [Proxy].
type Direction = tcpproxy.Direction

const (
	// Up is from the client to the server: requests.
	Up = tcpproxy.Up
	// Down is from the server to the client: replies.
	Down = tcpproxy.Down
)

// Proxy stands between clients and one server, and passes on what they say, late, not yet or never. It is safe for
// concurrent use.
type Proxy struct {
	*tcpproxy.Proxy
	t testing.TB
}

// NewProxy starts a proxy in front of the server at target, a host:port that nobody need listen on yet. It ends,
// with all its connections, when t ends.
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

// Accept ends Refuse: clients are served again.
func (p *Proxy) Accept() {
	if err := p.Proxy.Accept(); err != nil {
		must(p.t, fmt.Errorf("proxy of %s: %w", p.Addr(), err))
	}
}
