// Package tcpproxy is a TCP proxy for tests. It simulates network faults between clients and a
// server: delays, stalls, resets and refused connections.
package tcpproxy

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Direction is one direction of the traffic through a [Proxy].
type Direction int

const (
	// Up is from the client to the server: requests.
	Up Direction = iota
	// Down is from the server to the client: replies.
	Down
)

// Proxy forwards TCP connections to one server, and can delay, hold or reset them. It is safe for
// concurrent use.
//
// A setting for a direction applies to all connections, including later ones. Like TCP, the proxy
// never reorders or loses bytes within a connection that stays open.
type Proxy struct {
	target string
	addr   string
	listen func() (net.Listener, error)

	mu          sync.Mutex
	listener    net.Listener // nil while refusing
	pairs       map[*pair]struct{}
	lanes       [2]lane
	clientDelay map[string]time.Duration // additional delay of replies, by client IP address
	changed     chan struct{}            // closed and replaced when a setting changes
	patience    time.Duration            // see WaitForServer
	closed      bool

	running sync.WaitGroup
}

// A lane has the settings of one direction.
type lane struct {
	delay time.Duration
	held  bool
}

// New starts a proxy for the server at target, a host:port. The server need not be running. listen
// returns the listener for clients. [Proxy.Accept] calls it again, and it must then return a
// listener with the same address. The caller must call Close.
func New(target string, listen func() (net.Listener, error)) (*Proxy, error) {
	p := &Proxy{target: target, listen: listen, pairs: make(map[*pair]struct{}), clientDelay: make(map[string]time.Duration), changed: make(chan struct{})}
	if err := p.open(); err != nil {
		return nil, err
	}
	p.addr = p.listener.Addr().String()
	return p, nil
}

// Addr returns the address for clients, as host:port. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Delay delays all data by d in the given directions, or in both if none is given. It also applies
// to data already in transit. Zero ends the delay.
func (p *Proxy) Delay(d time.Duration, directions ...Direction) {
	p.change(directions, func(l *lane) { l.delay = d })
}

// DelayTo delays replies to clients with the given IP address by d, in addition to [Proxy.Delay].
// Zero ends the delay.
func (p *Proxy) DelayTo(client string, d time.Duration) {
	p.change([]Direction{Down}, func(*lane) { p.clientDelay[client] = d })
}

// Hold stops forwarding in the given directions, or in both if none is given, until
// [Proxy.Release]. Connections stay open, new ones are accepted, and a close by one side is not
// forwarded.
func (p *Proxy) Hold(directions ...Direction) {
	p.change(directions, func(l *lane) { l.held = true })
}

// Release ends [Proxy.Hold] in the given directions, or in both if none is given, and forwards the
// held data.
func (p *Proxy) Release(directions ...Direction) {
	p.change(directions, func(l *lane) { l.held = false })
}

// CutReplies forwards requests and holds replies. It is equivalent to Hold(Down). To deliver the
// replies late, call Release. To lose them, call Reset, then Release.
func (p *Proxy) CutReplies() { p.Hold(Down) }

// Reset resets all current connections, on both sides. Held and delayed data is lost. New
// connections are accepted as before.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		c.abort()
		delete(p.pairs, c)
	}
}

// Refuse refuses new connections until [Proxy.Accept], as if no server was listening. Current
// connections stay open: see [Proxy.Reset].
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Accept ends [Proxy.Refuse]. If listening again fails, it returns the error, and connections are
// still refused.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	refusing := p.listener == nil
	p.mu.Unlock()
	if !refusing {
		return nil
	}
	return p.open()
}

// WaitForServer makes new connections wait up to d for a server that does not listen yet. By default, and if d
// is zero, they are reset at once: a client that tries again when it is refused would give up.
func (p *Proxy) WaitForServer(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.patience = d
}

// Connections returns the number of open connections.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Close closes the proxy and all of its connections.
func (p *Proxy) Close() {
	p.Refuse()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Reset()
	p.running.Wait()
}

func (p *Proxy) change(directions []Direction, set func(*lane)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d := range p.lanes {
		if len(directions) == 0 || slices.Contains(directions, Direction(d)) {
			set(&p.lanes[d])
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) open() error {
	l, err := p.listen()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed by Refuse
			}
			p.running.Go(func() { p.serve(client.(*net.TCPConn)) })
		}
	})
	return nil
}

// serve forwards between client and the server until both have closed or the connections are reset.
func (p *Proxy) serve(client *net.TCPConn) {
	host, _, _ := net.SplitHostPort(client.RemoteAddr().String())
	c := &pair{client: client, host: host, cut: make(chan struct{})}
	if !p.add(c) {
		return
	}
	defer p.remove(c)
	server, err := p.dial(c)
	if err != nil || !c.setServer(server.(*net.TCPConn)) {
		c.abort()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.forward(c, Up, c.client, c.server) })
	both.Go(func() { p.forward(c, Down, c.server, c.client) })
	both.Wait()
	_, _ = c.client.Close(), c.server.Close()
}

func (p *Proxy) dial(c *pair) (net.Conn, error) {
	p.mu.Lock()
	patience := p.patience
	p.mu.Unlock()
	for end := time.Now().Add(patience); ; {
		server, err := net.Dial("tcp", p.target)
		if err == nil || time.Now().After(end) {
			return server, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-c.cut:
			return nil, err
		}
	}
}

func (p *Proxy) add(c *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.abort()
		return false
	}
	p.pairs[c] = struct{}{}
	return true
}

func (p *Proxy) remove(c *pair) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, c)
}

// A chunk is the result of one read.
type chunk struct {
	data []byte
	read time.Time
	end  error
}

// forward copies data in direction d. It returns when from is closed and to has been closed for
// writing, or when the pair is reset.
func (p *Proxy) forward(c *pair, d Direction, from, to *net.TCPConn) {
	chunks := make(chan chunk, 256) // when full, the sender blocks as with a full socket
	go func() {
		defer close(chunks)
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			select {
			case chunks <- chunk{data: buf[:n], read: time.Now(), end: err}:
			case <-c.cut:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for chunk := range chunks {
		if !p.await(c, d, chunk.read) {
			return
		}
		if _, err := to.Write(chunk.data); err != nil {
			c.abort()
			return
		}
		switch {
		case chunk.end == nil:
		case errors.Is(chunk.end, io.EOF):
			_ = to.CloseWrite()
		default:
			c.abort()
		}
	}
}

// await blocks until data that was read at the given time may be forwarded in direction d. It
// returns false if the pair is reset.
func (p *Proxy) await(c *pair, d Direction, read time.Time) bool {
	for {
		p.mu.Lock()
		lane, changed := p.lanes[d], p.changed
		if d == Down {
			lane.delay += p.clientDelay[c.host]
		}
		p.mu.Unlock()
		var due <-chan time.Time
		if !lane.held {
			wait := time.Until(read.Add(lane.delay))
			if wait <= 0 {
				return true
			}
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-changed:
		case <-c.cut:
			return false
		}
	}
}

// A pair is a client's connection and the corresponding connection to the server.
type pair struct {
	host   string // the client's IP address
	mu     sync.Mutex
	client *net.TCPConn
	server *net.TCPConn // nil until setServer
	cut    chan struct{}
	isCut  bool
}

// setServer sets the server's side. If the pair has been reset, it resets server and returns false.
func (c *pair) setServer(server *net.TCPConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = server
	if c.isCut {
		reset(server)
	}
	return !c.isCut
}

// abort resets both sides.
func (c *pair) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isCut {
		return
	}
	c.isCut = true
	close(c.cut)
	reset(c.client)
	if c.server != nil {
		reset(c.server)
	}
}

func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // makes Close send a reset
	_ = conn.Close()
}
