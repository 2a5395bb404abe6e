package testservers

import (
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
	var err error
	for range 5 {
		var addr string
		if addr, err = freePort(); err != nil {
			break
		}
		var p *tcpproxy.Proxy
		if p, err = tcpproxy.New(target, func() (net.Listener, error) { return net.Listen("tcp", addr) }); err == nil {
			t.Cleanup(p.Close)
			return &Proxy{Proxy: p, t: t}
		}
	}
	t.Fatalf("testservers: proxy for %s: %v", target, err)
	return nil
}

// Accept ends Refuse: clients are served again.
func (p *Proxy) Accept() {
	p.t.Helper()
	if err := p.Proxy.Accept(); err != nil {
		p.t.Fatalf("testservers: proxy of %s: %v", p.Addr(), err)
	}
}
