// Package tcpproxy stands between TCP clients and a server and does to them what bad networks do.
package tcpproxy

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Direction is a way through a [Proxy].
type Direction int

const (
	// Up is from the client to the server: requests.
	Up Direction = iota
	// Down is from the server to the client: replies.
	Down
)

// Proxy stands between clients and one server, and passes on what they say, late, not yet or never. It is safe for
// concurrent use.
//
// What it does to a direction it does to all connections, those that come later included. It never reorders or loses
// bytes within a connection that lives on, as TCP does not.
type Proxy struct {
	target string
	addr   string
	listen func() (net.Listener, error)

	mu       sync.Mutex
	listener net.Listener // nil while refusing
	pairs    map[*pair]struct{}
	lanes    [2]lane
	late     map[string]time.Duration // what is sent to the clients of an address
	changed  chan struct{}            // closed and replaced when lanes change
	closed   bool

	running sync.WaitGroup
}

// A lane is how one direction is treated.
type lane struct {
	delay time.Duration
	held  bool
}

// New starts a proxy in front of the server at target, a host:port that nobody need listen on yet. listen returns the
// listener at which clients connect; it is called again, and must return one at the same address, by [Proxy.Accept]. Close
// the proxy when it is not needed any more.
func New(target string, listen func() (net.Listener, error)) (*Proxy, error) {
	p := &Proxy{target: target, listen: listen, pairs: make(map[*pair]struct{}), late: make(map[string]time.Duration), changed: make(chan struct{})}
	if err := p.open(); err != nil {
		return nil, err
	}
	p.addr = p.listener.Addr().String()
	return p, nil
}

// Addr returns the address that clients connect to, as host:port. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Delay makes everything arrive d later than it was sent, in the given directions or, if none is given, in both.
// Zero ends the delay. It holds for what is on its way already, too.
func (p *Proxy) Delay(d time.Duration, directions ...Direction) {
	p.change(directions, func(l *lane) { l.delay = d })
}

// DelayTo makes what the server sends arrive d later at the clients of one IP address, besides what [Proxy.Delay] says. Zero
// ends that.
func (p *Proxy) DelayTo(client string, d time.Duration) {
	p.change([]Direction{Down}, func(*lane) { p.late[client] = d })
}

// Hold lets nothing pass any more in the given directions or, if none is given, in both. Connections stay open, and
// new ones are accepted; neither side is told that the other has closed. See [Proxy.Release].
func (p *Proxy) Hold(directions ...Direction) {
	p.change(directions, func(l *lane) { l.held = true })
}

// Release ends [Proxy.Hold] in the given directions or, if none is given, in both: what was held arrives now.
func (p *Proxy) Release(directions ...Direction) {
	p.change(directions, func(l *lane) { l.held = false })
}

// CutReplies lets requests reach the server and keeps its replies back: it is Hold(Down). To have the replies arrive
// late, Release; to have them lost, Reset, then Release.
func (p *Proxy) CutReplies() { p.Hold(Down) }

// Reset cuts all present connections, on both sides, as a reset. What was held or delayed in them is lost. New ones
// are accepted as before.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.pairs {
		c.abort()
		delete(p.pairs, c)
	}
}

// Refuse makes new connections be refused until [Proxy.Accept], as if no server ran. The present ones stay: call
// [Proxy.Reset] to cut them too.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
}

// Accept ends [Proxy.Refuse]. It fails if the listener cannot be made again; clients are refused then as before.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	refusing := p.listener == nil
	p.mu.Unlock()
	if !refusing {
		return nil
	}
	return p.open()
}

// Connections returns how many connections are open.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Close ends the proxy and all of its connections.
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

// serve connects client with the server until both have closed or the two are cut.
func (p *Proxy) serve(client *net.TCPConn) {
	host, _, _ := net.SplitHostPort(client.RemoteAddr().String())
	c := &pair{client: client, host: host, cut: make(chan struct{})}
	if !p.add(c) {
		return
	}
	defer p.remove(c)
	server, err := net.Dial("tcp", p.target)
	if err != nil || !c.join(server.(*net.TCPConn)) {
		c.abort()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(c, Up, c.client, c.server) })
	both.Go(func() { p.pass(c, Down, c.server, c.client) })
	both.Wait()
	_, _ = c.client.Close(), c.server.Close()
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

// A piece is what was read at once, or how reading ended.
type piece struct {
	data []byte
	read time.Time
	end  error
}

// pass carries what arrives from one side to the other, as direction d is treated. It returns when that side has
// closed and the other has been told, or when the pair is cut.
func (p *Proxy) pass(c *pair, d Direction, from, to *net.TCPConn) {
	pieces := make(chan piece, 256) // when it is full the sender is held up, as by a full socket
	go func() {
		defer close(pieces)
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			select {
			case pieces <- piece{data: buf[:n], read: time.Now(), end: err}:
			case <-c.cut:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for piece := range pieces {
		if !p.await(c, d, piece.read) {
			return
		}
		if _, err := to.Write(piece.data); err != nil {
			c.abort()
			return
		}
		switch {
		case piece.end == nil:
		case errors.Is(piece.end, io.EOF):
			_ = to.CloseWrite()
		default:
			c.abort()
		}
	}
}

// await returns true when what was read then may pass in direction d, false when the pair is cut.
func (p *Proxy) await(c *pair, d Direction, read time.Time) bool {
	for {
		p.mu.Lock()
		lane, changed := p.lanes[d], p.changed
		if d == Down {
			lane.delay += p.late[c.host]
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

// A pair is a client's connection and the one made to the server for it.
type pair struct {
	host   string // the client's IP address
	mu     sync.Mutex
	client *net.TCPConn
	server *net.TCPConn // nil until joined
	cut    chan struct{}
	isCut  bool
}

// join adds the server's side, unless the pair has been cut meanwhile.
func (c *pair) join(server *net.TCPConn) bool {
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
	_ = conn.SetLinger(0) // closing then sends a reset
	_ = conn.Close()
}
