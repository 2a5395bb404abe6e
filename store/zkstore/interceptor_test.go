package zkstore_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// The operations that these tests refer to.
const (
	opDelete       = 2
	opGetData      = 4
	opSetData      = 5
	opSync         = 9
	opGetChildren2 = 12
	opMulti        = 14
	opCreate2      = 15
	opAuth         = 100
	opSetWatches   = 101
)

// opNames are the names under which an interceptor records operations.
var opNames = map[int32]string{
	1: "create", opDelete: "delete", 3: "exists", opGetData: "getData", opSetData: "setData", opSync: "sync", 11: "ping",
	opGetChildren2: "getChildren", opMulti: "multi", opCreate2: "create2", 19: "createContainer", opAuth: "auth", opSetWatches: "setWatches", -11: "close",
}

// An action is what an interceptor does with a frame.
type action int

const (
	pass     action = iota
	discard         // do not forward it
	cut             // do not forward it, and reset the connection
	passLast        // forward it, and close the connection
	stall           // forward it, and what comes after it, when the test calls resume
)

// An interceptor is a proxy between a client and a server that lets a test decide on each frame.
type interceptor struct {
	t        testing.TB
	target   string
	listener net.Listener

	mu          sync.Mutex
	requests    []string         // names of the forwarded requests, without pings
	replyCounts map[string]int   // number of forwarded replies, by the names of the requests
	passwords   map[int64][]byte // by session
	from        net.IP           // local address of connections to the server; nil for any
	stalled     chan struct{}    // closed by resume
	accepted    int              // connections so far
	request     func(op int32, frame []byte) action
	// to is the operation that the frame replies to; 0 for the handshake, -1 for an event.
	reply   func(to int32, frame []byte) action
	conns   map[net.Conn]bool
	running sync.WaitGroup
}

func newInterceptor(t testing.TB, target string) *interceptor {
	t.Helper()
	return newInterceptorFrom(t, nil, target)
}

// newInterceptorFrom returns an interceptor that connects to the server from the given local
// address.
func newInterceptorFrom(t testing.TB, from net.IP, target string) *interceptor {
	t.Helper()
	l, err := net.Listen("tcp", testservers.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	m := &interceptor{
		t: t, from: from, target: target, listener: l, conns: make(map[net.Conn]bool),
		replyCounts: make(map[string]int), passwords: make(map[int64][]byte), stalled: make(chan struct{}),
	}
	m.running.Go(func() { m.acceptAt(l) })
	t.Cleanup(func() {
		_ = l.Close()
		m.intercept(nil, nil)
		m.resume()
		m.reset()
		m.running.Wait()
	})
	return m
}

func (m *interceptor) acceptAt(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		m.mu.Lock()
		m.accepted++
		m.mu.Unlock()
		m.running.Go(func() { m.serve(conn) })
	}
}

func (m *interceptor) addr() string { return m.listener.Addr().String() }

// intercept sets the functions that decide on requests and replies from now on; nil forwards all.
func (m *interceptor) intercept(request, reply func(int32, []byte) action) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.request, m.reply = request, reply
}

// takeRequests returns the requests that were forwarded since its last call.
func (m *interceptor) takeRequests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	passed := m.requests
	m.requests = nil
	return passed
}

// resume forwards the stalled frames.
func (m *interceptor) resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.stalled)
	m.stalled = make(chan struct{})
}

// replies returns the number of forwarded replies, by the names of the requests.
func (m *interceptor) replies() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.replyCounts)
}

// awaitReplies waits until n more replies to the named request than in since were forwarded.
func (m *interceptor) awaitReplies(t *testing.T, name string, n int, since map[string]int) {
	t.Helper()
	await(t, fmt.Sprintf("%d replies to %s", n, name), func() bool { return m.replies()[name] >= since[name]+n })
}

// connections returns the number of connected clients.
func (m *interceptor) connections() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns) / 2
}

// acceptedConnections returns how many connections clients have made so far.
func (m *interceptor) acceptedConnections() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.accepted
}

// expire ends a session that was opened through the interceptor, as servers do when its TTL is
// over.
func (m *interceptor) expire(t *testing.T, se store.Session, server string) {
	t.Helper()
	m.expireID(t, se.ID(), server)
}

func (m *interceptor) expireID(t *testing.T, session, server string) {
	t.Helper()
	id, err := strconv.ParseUint(session, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	password := m.passwords[int64(id)]
	m.mu.Unlock()
	if password == nil {
		t.Fatalf("session %s was not opened through this interceptor", session)
	}
	conn, err := net.Dial("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	resume := make([]byte, 4+8, 64) // version, and the last transaction seen
	resume = binary.BigEndian.AppendUint32(resume, uint32(time.Minute/time.Millisecond))
	resume = binary.BigEndian.AppendUint64(resume, id)
	resume = binary.BigEndian.AppendUint32(resume, uint32(len(password)))
	resume = append(resume, password...)
	end := binary.BigEndian.AppendUint32(nil, 1) // the request's number
	end = binary.BigEndian.AppendUint32(end, 1<<32-11)
	for _, body := range [][]byte{resume, end} {
		if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
			t.Fatalf("ending session %s: %v", session, err)
		}
		if _, err := readFrame(conn); err != nil {
			t.Fatalf("ending session %s: %v", session, err)
		}
	}
}

func readFrame(from io.Reader) ([]byte, error) {
	frame := make([]byte, 4)
	if _, err := io.ReadFull(from, frame); err != nil {
		return nil, err
	}
	frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
	_, err := io.ReadFull(from, frame[4:])
	return frame, err
}

// reset resets all connections.
func (m *interceptor) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for conn := range m.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

func (m *interceptor) serve(client net.Conn) {
	var dialer net.Dialer
	if m.from != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: m.from}
	}
	server, err := dialer.Dial("tcp", m.target)
	if err != nil {
		_ = client.Close()
		return
	}
	for _, conn := range []net.Conn{client, server} {
		m.mu.Lock()
		m.conns[conn] = true
		m.mu.Unlock()
		defer func() {
			_ = conn.Close()
			m.mu.Lock()
			delete(m.conns, conn)
			m.mu.Unlock()
		}()
	}
	pending := &pendingOps{ops: make(map[int32]int32)}
	var both sync.WaitGroup
	both.Go(func() { m.forward(client, server, pending.request, m.decideRequest) })
	both.Go(func() { m.forward(server, client, pending.reply, m.decideReply) })
	both.Wait()
}

// forward copies frames from one side to the other.
func (m *interceptor) forward(from, to net.Conn, op func([]byte) int32, decide func(int32, []byte) action) {
	defer func() { _, _ = from.Close(), to.Close() }()
	for {
		frame, err := readFrame(from)
		if err != nil {
			return
		}
		m.mu.Lock()
		resumed := m.stalled // read before the test can observe the frame
		m.mu.Unlock()
		v := decide(op(frame), frame)
		switch v {
		case cut:
			return
		case discard:
			continue
		case stall:
			<-resumed
		case pass, passLast:
		}
		if _, err := to.Write(frame); err != nil || v == passLast {
			return
		}
	}
}

func (m *interceptor) decideRequest(op int32, frame []byte) action {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := pass
	if m.request != nil {
		v = m.request(op, frame)
	}
	if name := opNames[op]; v == pass && name != "ping" && name != "" {
		m.requests = append(m.requests, name)
	}
	return v
}

func (m *interceptor) decideReply(to int32, frame []byte) action {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := pass
	if m.reply != nil {
		v = m.reply(to, frame)
	}
	// The password follows length, version, timeout, session and its own length.
	const password = 4 + 4 + 4 + 8 + 4
	if to == 0 && len(frame) >= password+16 {
		m.passwords[int64(binary.BigEndian.Uint64(frame[12:]))] = frame[password : password+16]
	}
	if v == pass {
		m.replyCounts[opNames[to]]++
	}
	return v
}

// pendingOps records which operation each reply on one connection belongs to.
type pendingOps struct {
	mu                 sync.Mutex
	ops                map[int32]int32 // by xid
	requested, replied bool
}

func (a *pendingOps) request(frame []byte) int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.requested {
		a.requested = true
		return 0
	}
	op := int32(binary.BigEndian.Uint32(frame[8:]))
	a.ops[int32(binary.BigEndian.Uint32(frame[4:]))] = op
	return op
}

func (a *pendingOps) reply(frame []byte) int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.replied {
		a.replied = true
		return 0
	}
	xid := int32(binary.BigEndian.Uint32(frame[4:]))
	if xid == -1 {
		return -1
	}
	return a.ops[xid]
}

// once returns a function that takes the action on the first frame of the operation, and forwards
// all others. done is closed at that frame.
func once(op int32, v action) (f func(int32, []byte) action, done <-chan struct{}) {
	ch := make(chan struct{})
	seen := false
	return func(got int32, _ []byte) action {
		if seen || got != op {
			return pass
		}
		seen = true
		close(ch)
		return v
	}, ch
}
