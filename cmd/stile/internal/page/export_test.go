package page

import "net"

// SetMaxConnections replaces the number of connections that are allowed. It must be called before Serve.
func SetMaxConnections(p *Page, n int64) { p.maxConnections = n }

// LimitConnections is what Serve does to its listeners.
func LimitConnections(l net.Listener, limit int64) net.Listener {
	return newConnectionLimit(limit).listener(l)
}
