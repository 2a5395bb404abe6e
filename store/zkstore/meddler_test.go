package zkstore_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// The operations that these tests know.
const (
	opDelete       = 2
	opGetData      = 4
	opSync         = 9
	opGetChildren2 = 12
	opMulti        = 14
	opCreate2      = 15
	opAuth         = 100
	opSetWatches   = 101
)

// opNames are for what a meddler notes.
var opNames = map[int32]string{
	1: "create", opDelete: "delete", 3: "exists", opGetData: "getData", opSync: "sync", 11: "ping",
	opGetChildren2: "getChildren", opMulti: "multi", opCreate2: "create2", 19: "createContainer", opAuth: "auth", opSetWatches: "setWatches", -11: "close",
}

// A verdict is what becomes of a frame.
type verdict int

const (
	pass    verdict = iota
	swallow         // it is not passed on
	cut             // it is not passed on, and the connection is reset
)

// A meddler stands between a client and a server, and does to single frames what a test tells it.
type meddler struct {
	t        testing.TB
	target   string
	listener net.Listener

	mu       sync.Mutex
	requests []string // the names of those that have passed, but pings
	request  func(op int32, frame []byte) verdict
	reply    func(to int32, frame []byte) verdict // to is the operation that it answers; 0 for the greeting, -1 for an event
	conns    map[net.Conn]bool
	running  sync.WaitGroup
}

func newMeddler(t *testing.T, target string) *meddler {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &meddler{t: t, target: target, listener: l, conns: make(map[net.Conn]bool)}
	m.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			m.running.Go(func() { m.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		m.reset()
		m.running.Wait()
	})
	return m
}

func (m *meddler) addr() string { return m.listener.Addr().String() }

// on sets what becomes of frames from here on; nil passes them.
func (m *meddler) on(request, reply func(int32, []byte) verdict) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.request, m.reply = request, reply
}

// passed returns the requests that have passed since it was called last.
func (m *meddler) passed() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	passed := m.requests
	m.requests = nil
	return passed
}

// reset cuts all connections.
func (m *meddler) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for conn := range m.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

func (m *meddler) serve(client net.Conn) {
	server, err := net.Dial("tcp", m.target)
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
	asked := &askedFor{ops: make(map[int32]int32)}
	var both sync.WaitGroup
	both.Go(func() { m.pass(client, server, asked.request, m.judgeRequest) })
	both.Go(func() { m.pass(server, client, asked.reply, m.judgeReply) })
	both.Wait()
}

// pass carries frames from one side to the other.
func (m *meddler) pass(from, to net.Conn, op func([]byte) int32, judge func(int32, []byte) verdict) {
	defer func() { _, _ = from.Close(), to.Close() }()
	for {
		frame := make([]byte, 4)
		if _, err := io.ReadFull(from, frame); err != nil {
			return
		}
		frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
		if _, err := io.ReadFull(from, frame[4:]); err != nil {
			return
		}
		switch judge(op(frame), frame) {
		case cut:
			return
		case swallow:
			continue
		case pass:
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

func (m *meddler) judgeRequest(op int32, frame []byte) verdict {
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

func (m *meddler) judgeReply(to int32, frame []byte) verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reply == nil {
		return pass
	}
	return m.reply(to, frame)
}

// askedFor knows what the answers on one connection are to.
type askedFor struct {
	mu               sync.Mutex
	ops              map[int32]int32 // by xid
	connect, greeted bool
}

func (a *askedFor) request(frame []byte) int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.connect {
		a.connect = true
		return 0
	}
	op := int32(binary.BigEndian.Uint32(frame[8:]))
	a.ops[int32(binary.BigEndian.Uint32(frame[4:]))] = op
	return op
}

func (a *askedFor) reply(frame []byte) int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.greeted {
		a.greeted = true
		return 0
	}
	xid := int32(binary.BigEndian.Uint32(frame[4:]))
	if xid == -1 {
		return -1
	}
	return a.ops[xid]
}

// once returns a function that has the verdict on the first frame of the operation, and passes all others.
func once(op int32, v verdict) (f func(int32, []byte) verdict, done <-chan struct{}) {
	ch := make(chan struct{})
	judged := false
	return func(got int32, _ []byte) verdict {
		if judged || got != op {
			return pass
		}
		judged = true
		close(ch)
		return v
	}, ch
}
