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
type verdict int

const (
	pass    verdict = iota
	swallow         // it is not passed on
	cut             // it is not passed on, and the connection is reset
	last            // it is passed on, and the connection is closed
	stall           // it, and what comes after it, is passed on when the test calls goOn
)

// A meddler stands between a client and a server, and does to single frames what a test tells it.
type meddler struct {
	t        testing.TB
	target   string
	listener net.Listener

	mu       sync.Mutex
	requests []string         // the names of those that have passed, but pings
	answered map[string]int   // how many answers have passed, by the names of the requests
	secrets  map[int64][]byte // by session
	from     net.IP           // from where the server is connected to; nil for wherever the system chooses
	stalled  chan struct{}    // closed by goOn
	request  func(op int32, frame []byte) verdict
	reply    func(to int32, frame []byte) verdict // to is the operation that it answers; 0 for the greeting, -1 for an event
	conns    map[net.Conn]bool
	running  sync.WaitGroup
}

func newMeddler(t testing.TB, target string) *meddler {
	t.Helper()
	return newMeddlerFrom(t, nil, target)
}

// newMeddlerFrom returns a meddler that connects to the server from an address of this machine.
func newMeddlerFrom(t testing.TB, from net.IP, target string) *meddler {
	t.Helper()
	l, err := net.Listen("tcp", testservers.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	m := &meddler{
		t: t, from: from, target: target, listener: l, conns: make(map[net.Conn]bool),
		answered: make(map[string]int), secrets: make(map[int64][]byte), stalled: make(chan struct{}),
	}
	m.running.Go(func() { m.acceptAt(l) })
	t.Cleanup(func() {
		_ = l.Close()
		m.on(nil, nil)
		m.goOn()
		m.reset()
		m.running.Wait()
	})
	return m
}

func (m *meddler) acceptAt(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		m.running.Go(func() { m.serve(conn) })
	}
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

// goOn passes on what was stalled.
func (m *meddler) goOn() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.stalled)
	m.stalled = make(chan struct{})
}

// answers returns how many answers have passed, by the names of what they answer.
func (m *meddler) answers() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.answered)
}

// awaitAnswers waits until n answers to what has that name have passed since then.
func (m *meddler) awaitAnswers(t *testing.T, name string, n int, since map[string]int) {
	t.Helper()
	await(t, fmt.Sprintf("%d answers to %s", n, name), func() bool { return m.answers()[name] >= since[name]+n })
}

// connections returns how many clients are connected.
func (m *meddler) connections() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.conns) / 2
}

// expire ends a session that was opened through the meddler, as the servers do when they have not heard of it for its TTL.
func (m *meddler) expire(t *testing.T, se store.Session, server string) {
	t.Helper()
	m.expireID(t, se.ID(), server)
}

func (m *meddler) expireID(t *testing.T, session, server string) {
	t.Helper()
	id, err := strconv.ParseUint(session, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	secret := m.secrets[int64(id)]
	m.mu.Unlock()
	if secret == nil {
		t.Fatalf("session %s was not opened through this meddler", session)
	}
	conn, err := net.Dial("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	resume := make([]byte, 4+8, 64) // version, and what was seen
	resume = binary.BigEndian.AppendUint32(resume, uint32(time.Minute/time.Millisecond))
	resume = binary.BigEndian.AppendUint64(resume, id)
	resume = binary.BigEndian.AppendUint32(resume, uint32(len(secret)))
	resume = append(resume, secret...)
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
func (m *meddler) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for conn := range m.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

func (m *meddler) serve(client net.Conn) {
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
		frame, err := readFrame(from)
		if err != nil {
			return
		}
		m.mu.Lock()
		goOn := m.stalled // before the test may hear of the frame
		m.mu.Unlock()
		v := judge(op(frame), frame)
		switch v {
		case cut:
			return
		case swallow:
			continue
		case stall:
			<-goOn
		case pass, last:
		}
		if _, err := to.Write(frame); err != nil || v == last {
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
	v := pass
	if m.reply != nil {
		v = m.reply(to, frame)
	}
	const secret = 4 + 4 + 4 + 8 + 4 // behind length, version, timeout, session and its own length
	if to == 0 && len(frame) >= secret+16 {
		m.secrets[int64(binary.BigEndian.Uint64(frame[12:]))] = frame[secret : secret+16]
	}
	if v == pass {
		m.answered[opNames[to]]++
	}
	return v
}

// askedFor knows what the answers on one connection are to.
type askedFor struct {
	mu                   sync.Mutex
	ops                  map[int32]int32 // by xid
	connect, established bool
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
	if !a.established {
		a.established = true
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
