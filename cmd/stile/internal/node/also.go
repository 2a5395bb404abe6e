package node

import "net"

// ServeAlso accepts clients from l too, without TLS, until the server stops: that closes l. It is for a server whose
// socket was removed from outside, which has to listen in a new place without letting go of the clients it has.
func (n *Node) ServeAlso(l net.Listener) {
	n.mu.Lock()
	serving := n.grpc[0] // Start has returned, so there is one
	n.mu.Unlock()
	go func() { _ = serving.Serve(l) }() // it ends with Stop, or because nobody can connect there anymore, which shows
}
