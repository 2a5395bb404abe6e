//go:build linux

package main

import (
	"net"
	"sync"
)

// proxy forwards TCP connections to one server. It counts what passes, and can reset the connections.
type proxy struct {
	listener net.Listener
	target   string
	count    func() observer // returns the observer of a connection; nil if nothing is counted

	mu      sync.Mutex
	pairs   map[[2]*net.TCPConn]struct{}
	closed  bool
	running sync.WaitGroup
}

// An observer is called with the bytes of a connection in order. Calls for the two directions may be
// concurrent.
type observer interface {
	up(b []byte)
	down(b []byte)
}

func newProxy(target string, count func() observer) (*proxy, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host(target), "0"))
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, target: target, count: count, pairs: make(map[[2]*net.TCPConn]struct{})}
	p.running.Go(p.accept)
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.running.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

func (p *proxy) serve(client *net.TCPConn) {
	defer client.Close()
	conn, err := net.Dial("tcp", p.target)
	if err != nil {
		abort(client)
		return
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	pair := [2]*net.TCPConn{client, server}
	p.mu.Lock()
	closed := p.closed
	p.pairs[pair] = struct{}{}
	p.mu.Unlock()
	if closed {
		return
	}
	up, down := func([]byte) {}, func([]byte) {}
	if p.count != nil {
		o := p.count()
		up, down = o.up, o.down
	}
	var both sync.WaitGroup
	both.Go(func() { forward(client, server, up) })
	both.Go(func() { forward(server, client, down) })
	both.Wait()
	p.mu.Lock()
	delete(p.pairs, pair)
	p.mu.Unlock()
}

// forward copies until one side is closed, and then ends the connection of both.
func forward(from, to *net.TCPConn, observe func([]byte)) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		observe(buf[:n])
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			_, _ = from.Close(), to.Close()
			return
		}
	}
}

// reset resets all connections, on both sides. New ones are accepted as before.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		_, _ = pair[0].SetLinger(0), pair[1].SetLinger(0) // before the end of one closes the other
		_, _ = pair[0].Close(), pair[1].Close()
	}
}

func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.reset()
	p.running.Wait()
}
