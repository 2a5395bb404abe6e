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
// A connection is unproven until one of its requests is allowed to see the locks. Those have a limit of their own:
// a new one is always accepted, and another one, which has not been used for longest, gives way. A network with no
// more than its share of the places loses none unless as many other networks as there are shares have connections.
// So clients that may see nothing keep out none that may, however many connections they have, unless they use them
// more often than it uses its own. A request that is being answered does not protect its connection: a client
// could take as long as it likes to read the answer.
//
// Of two proven connections, one that waits for its next request gives way to one that has a request.
type connections struct {
	maxProven, maxUnproven int

	mu       sync.Mutex
	unproven []*connection // both in the order of use: when they were accepted, or have last begun or ended a request
	proven   []*connection
}

// shares is the number of networks that have a share of the places of unproven connections.
const shares = 8

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

// networkOf returns what an address has in common with those that one client can choose: all of an IPv4 address,
// 56 bits of IPv6, which is what many providers give to a home. Loopback is one network, because any user of the
// machine can choose any address of it. The clients of a socket are one, too.
func networkOf(a net.Addr) string {
	ip, err := netip.ParseAddr(hostname(a.String()))
	if err != nil {
		return ""
	}
	ip = ip.Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return "loopback"
	case ip.Is6():
		return netip.PrefixFrom(ip, 56).Masked().String()
	default:
		return ip.String()
	}
}

// add adds an unproven connection, and returns the one that must be closed for it, if any: the one that has not
// been used for longest, of the network that has most if that is more than a share, otherwise of all.
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
	other = slices.MaxFunc(cs.unproven, func(a, b *connection) int { // the first of several
		share := cs.maxUnproven / shares
		return max(of[a.network], share) - max(of[b.network], share)
	})
	cs.unproven = without(cs.unproven, other)
	return other
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
	for _, list := range []*[]*connection{&c.all.unproven, &c.all.proven} {
		if slices.Contains(*list, c) { // otherwise it is in the other one, or has been closed
			*list = append(without(*list, c), c)
		}
	}
}

// prove says that a request of the connection is allowed. It returns false if there are too many such connections.
// Otherwise other is the one that must be closed, if any: it has not been used for longest.
func (c *connection) prove() (other *connection, ok bool) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.isProven || !slices.Contains(c.all.unproven, c) { // it may have been closed meanwhile
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
	c.all.unproven = without(c.all.unproven, c)
	c.all.proven = append(c.all.proven, c)
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
