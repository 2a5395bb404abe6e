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

// The operations that these tests know.
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

// opNames are for what a meddler notes.
var opNames = map[int32]string{
	1: "create", opDelete: "delete", 3: "exists", opGetData: "getData", opSetData: "setData", opSync: "sync", 11: "ping",
	opGetChildren2: "getChildren", opMulti: "multi", opCreate2: "create2", 19: "createContainer", opAuth: "auth", opSetWatches: "setWatches", -11: "close",
}

// A verdict is what becomes of a frame.
type action int

const (
	pass     action = iota
	discard         // it is not passed on
	cut             // it is not passed on, and the connection is reset
	passLast        // it is passed on, and the connection is closed
	stall           // it, and what comes after it, is passed on when the test calls resume
)

// A meddler stands between a client and a server, and does to single frames what a test tells it.
type interceptor struct {
	t        testing.TB
	target   string
	listener net.Listener

	mu          sync.Mutex
	requests    []string         // the names of those that have passed, but pings
	replyCounts map[string]int   // how many answers have passed, by the names of the requests
	passwords   map[int64][]byte // by session
	from        net.IP           // from where the server is connected to; nil for wherever the system chooses
	stalled     chan struct{}    // closed by resume
	request     func(op int32, frame []byte) action
	reply       func(to int32, frame []byte) action // to is the operation that it answers; 0 for the greeting, -1 for an event
	conns       map[net.Conn]bool
	running     sync.WaitGroup
}

func newInterceptor(t testing.TB, target string) *interceptor {
	t.Helper()
	return newInterceptorFrom(t, nil, target)
}

// newInterceptorFrom returns a meddler that connects to the server from an address of this machine.
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
		m.running.Go(func() { m.serve(conn) })
	}
}

func (m *interceptor) addr() string { return m.listener.Addr().String() }

// on sets what becomes of frames from here on; nil passes them.
func (m *interceptor) intercept(request, reply func(int32, []byte) action) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.request, m.reply = request, reply
}

// passed returns the requests that have passed since it was called last.
func (m *interceptor) takeRequests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	passed := m.requests
	m.requests = nil
	return passed
}

// resume passes on what was stalled.
func (m *interceptor) resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.stalled)
	m.stalled = make(chan struct{})
}

// answers returns how many answers have passed, by the names of what they answer.
func (m *interceptor) replies() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.replyCounts)
}

// awaitReplies waits until n answers to what has that name have passed since then.
func (m *interceptor) awaitReplies(t *testing.T, name string, n int, since map[string]int) {
	t.Helper()
	await(t, fmt.Sprintf("%d answers to %s", n, name), func() bool { return m.replies()[name] >= since[name]+n })
}

// connections returns how many clients are connected.
func (m *interceptor) connections() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns) / 2
}

// expire ends a session that was opened through the meddler, as the servers do when they have not heard of it for its TTL.
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
		t.Fatalf("session %s was not opened through this meddler", session)
	}
	conn, err := net.Dial("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	resume := make([]byte, 4+8, 64) // version, and what was seen
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

// reset cuts all connections.
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

// pass carries frames from one side to the other.
func (m *interceptor) forward(from, to net.Conn, op func([]byte) int32, decide func(int32, []byte) action) {
	defer func() { _, _ = from.Close(), to.Close() }()
	for {
		frame, err := readFrame(from)
		if err != nil {
			return
		}
		m.mu.Lock()
		resume := m.stalled // before the test may hear of the frame
		m.mu.Unlock()
		v := decide(op(frame), frame)
		switch v {
		case cut:
			return
		case discard:
			continue
		case stall:
			<-resume
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
	const password = 4 + 4 + 4 + 8 + 4 // behind length, version, timeout, session and its own length
	if to == 0 && len(frame) >= password+16 {
		m.passwords[int64(binary.BigEndian.Uint64(frame[12:]))] = frame[password : password+16]
	}
	if v == pass {
		m.replyCounts[opNames[to]]++
	}
	return v
}

// pendingOps knows what the answers on one connection are to.
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

// once returns a function that has the verdict on the first frame of the operation, and passes all others.
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
