package page

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"sync"
)

// connections limits the connections of all listeners together.
//
// A connection is unproven until one of its requests is allowed to see the locks. Those have a limit of their own: a
// new one takes the place of another unproven one. So clients that may see nothing cannot keep out one that may,
// however many connections they open and however little they send. Of two proven connections, one that waits for its
// next request gives way to one that has a request.
type connections struct {
	maxProven, maxUnproven int

	mu       sync.Mutex
	unproven []*connection // in the order in which they were accepted
	proven   []*connection // in the order in which they have begun or ended a request
}

func (cs *connections) listener(l net.Listener) net.Listener { return &limitedListener{l, cs} }

type limitedListener struct {
	net.Listener
	connections *connections
}

// Accept implements [net.Listener].
func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, all: l.connections, network: networkOf(conn.RemoteAddr())}
	if other := c.all.add(c); other != nil {
		_ = other.Close()
	}
	return c, nil
}

// networkOf returns what an address has in common with those that its machine can choose: all of IPv4, and the first
// half of IPv6. It is empty for clients on this machine.
func networkOf(a net.Addr) string {
	ip, err := netip.ParseAddr(hostname(a.String()))
	if err != nil {
		return "" // of a socket
	}
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() {
		return ""
	}
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}

// maxOfBrowser is how many unproven connections a network may have as any other. A browser opens several before one of
// them is proven, and must not be taken for a flood beside idle ones of many networks.
const maxOfBrowser = 8

// add adds an unproven connection, and returns the one that must be closed for it, if any: of the network that has
// most of them, the one that was accepted first.
func (cs *connections) add(c *connection) (other *connection) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.unproven = append(cs.unproven, c)
	if len(cs.unproven) <= cs.maxUnproven {
		return nil
	}
	of := make(map[string]int)
	for _, c := range cs.unproven {
		of[c.network]++
	}
	most := slices.MaxFunc(cs.unproven, func(a, b *connection) int { // the first
		return max(of[a.network], maxOfBrowser) - max(of[b.network], maxOfBrowser)
	})
	cs.unproven = without(cs.unproven, most)
	return most
}

func without(all []*connection, c *connection) []*connection {
	return slices.DeleteFunc(all, func(other *connection) bool { return other == c })
}

// connection is a connection that is counted.
type connection struct {
	net.Conn
	all     *connections
	network string

	// Guarded by the mutex of connections.
	isProven bool
	requests int // that are being answered
}

// Close implements [net.Conn].
func (c *connection) Close() error {
	c.all.mu.Lock()
	c.all.unproven, c.all.proven = without(c.all.unproven, c), without(c.all.proven, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// begin says that a request is being answered, until end is called.
func (c *connection) begin() (end func()) {
	c.count(1)
	return func() { c.count(-1) }
}

func (c *connection) count(n int) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.requests += n
	if slices.Contains(c.all.proven, c) {
		c.all.proven = append(without(c.all.proven, c), c)
	}
}

// prove says that a request of the connection is allowed. It returns false if there are too many such connections.
// Otherwise other is the one that must be closed, if any: it has not been used for longest.
func (c *connection) prove() (other *connection, ok bool) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.isProven {
		return nil, true
	}
	if len(c.all.proven) >= c.all.maxProven {
		i := slices.IndexFunc(c.all.proven, func(c *connection) bool { return c.requests == 0 })
		if i < 0 {
			return nil, false
		}
		other = c.all.proven[i]
		c.all.proven = without(c.all.proven, other)
	}
	c.isProven = true
	if slices.Contains(c.all.unproven, c) { // otherwise it has been closed meanwhile
		c.all.unproven = without(c.all.unproven, c)
		c.all.proven = append(c.all.proven, c)
	}
	return other, true
}

type connectionKey struct{}

// withConnection keeps the connection in the context of its requests.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

func connectionOf(ctx context.Context) *connection { return ctx.Value(connectionKey{}).(*connection) }
