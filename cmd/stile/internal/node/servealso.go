package node

import "net"

// ServeAlso also accepts clients from l, without TLS, until the server stops, which closes l. It is
// for a server whose socket was removed by somebody else: it can listen at a new path and keep its
// connected clients. It must not be called during or after Close.
func (n *Node) ServeAlso(l net.Listener) {
	n.mu.Lock()
	serving := n.grpc[0] // set before Start returned
	n.mu.Unlock()
	go func() { _ = serving.Serve(l) }() // it ends with Stop, or with an error of l, after which no client can connect to l
	if l.Addr().Network() == "unix" {
		n.listenForTethers(l.Addr().String())
	}
}
