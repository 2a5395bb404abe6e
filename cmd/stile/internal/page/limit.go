package page

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
)

// connectionLimit counts the connections of all listeners. Those beyond the limit are answered that there
// are too many. Those beyond twice the limit are closed at once.
type connectionLimit struct {
	limit int64
	open  atomic.Int64
}

func newConnectionLimit(limit int64) *connectionLimit { return &connectionLimit{limit: limit} }

func (c *connectionLimit) listener(l net.Listener) net.Listener { return &limitedListener{l, c} }

type limitedListener struct {
	net.Listener
	limit *connectionLimit
}

// Accept implements [net.Listener].
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		n := l.limit.open.Add(1)
		c := &connection{Conn: conn, tooMany: n > l.limit.limit, closed: sync.OnceFunc(func() { l.limit.open.Add(-1) })}
		if n <= 2*l.limit.limit {
			return c, nil
		}
		_ = c.Close()
	}
}

// connection is a connection that is counted.
type connection struct {
	net.Conn
	tooMany bool
	closed  func()
}

// Close implements [net.Conn].
func (c *connection) Close() error {
	c.closed()
	return c.Conn.Close()
}

type connectionKey struct{}

// withConnection keeps the connection in the context of its requests.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

func connectionOf(ctx context.Context) *connection {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		return c
	}
	return new(connection)
}
