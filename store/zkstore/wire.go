package zkstore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store/internal/attempts"
)

// maxHandshake is how long a handshake with a server may take in a session with a long TTL.
const maxHandshake = 3 * time.Second

// transport connects one go-zookeeper client with its servers. It chooses servers, abandons those
// that accept a connection and stay silent, authenticates each connection before any other request,
// and learns from the traffic what the client does not report: see the package comment.
type transport struct {
	servers          []string
	tls              *tls.Config
	auth             []Auth
	lookup           func(ctx context.Context, host string) (addresses []string, err error)
	connect          func(ctx context.Context, network, address string) (net.Conn, error)
	handshakeTimeout time.Duration // how long the handshake with a server may take

	// once is set if the client must not open another session when its own has ended.
	once bool

	stopped context.Context // ends when no more connections are to be made
	stop    context.CancelFunc

	// The client's main goroutine uses these.
	next  int            // index of the next server
	turns map[string]int // index of the first address to try, by server
	tried int            // attempts since the last success
	first time.Time      // when the first of these began
	last  time.Time      // when the last began

	mu             sync.Mutex
	conn           *serverConn // the latest connection; nil when it was dropped
	session        int64
	granted        time.Duration
	ended          bool                     // the session has ended; only if once is set
	err            error                    // why the last connection failed
	pendingCreates map[string]pendingCreate // by the requested path
	closed         bool                     // the server has confirmed the end of the session

	rejected chan struct{} // closed when a server has rejected the credentials
	reject   func()
}

// pendingCreate is a request to create an entry's node.
type pendingCreate struct {
	sent    chan struct{} // closed when the request has been sent, or was given up
	setSent func()        // closes sent
	stats   chan stat     // receives one before the client gets the reply
}

// stat is the part of a created node's metadata that the entry needs.
type stat struct {
	czxid int64
	owner int64
}

func newTransport(s *Store, timeout time.Duration, once bool) *transport {
	l := &transport{
		servers:          slices.Clone(s.servers),
		tls:              s.tls,
		auth:             s.auth,
		lookup:           s.lookup,
		connect:          s.dial,
		turns:            make(map[string]int),
		handshakeTimeout: min(max(silenceTimeout(timeout), 200*time.Millisecond), maxHandshake),
		once:             once,
		pendingCreates:   make(map[string]pendingCreate),
	}
	rand.Shuffle(len(l.servers), func(i, j int) { l.servers[i], l.servers[j] = l.servers[j], l.servers[i] })
	l.stopped, l.stop = context.WithCancel(context.Background())
	l.rejected = make(chan struct{})
	l.reject = sync.OnceFunc(func() { close(l.rejected) })
	return l
}

// Init implements [zk.HostProvider]. Names are resolved for each connection; the default provider
// resolves them once.
func (l *transport) Init([]string) error { return nil }

// Len implements [zk.HostProvider].
func (l *transport) Len() int { return len(l.servers) }

// Next implements [zk.HostProvider]. At the start of a new round the client checks whether it was
// closed, drops the requests that it could not send, and waits a second. So a round starts when no
// more connections are to be made; and when dial would pause as long anyway, because the callers of
// those requests may have given up long ago.
func (l *transport) Next() (server string, retryStart bool) {
	newRound := l.tried > 0 && l.tried%len(l.servers) == 0
	return l.servers[l.next], l.stopped.Err() != nil || newRound && l.wait() == maxPause
}

// Connected implements [zk.HostProvider].
func (l *transport) Connected() { l.tried = 0 }

// The pauses between attempts to connect. The first is for a server that accepts each connection
// and closes it.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// wait returns the pause before the next server is tried, which grows with each round.
func (l *transport) wait() time.Duration {
	d := firstPause
	for range min(l.tried/len(l.servers), 10) {
		d = min(2*d, maxPause)
	}
	return d
}

// pause waits before the next server is tried.
func (l *transport) pause() {
	attempts.Sleep(l.stopped, time.Until(l.last.Add(l.wait())))
	l.last = time.Now()
}

var errEnded = errors.New("the session has ended")

// dial is the [zk.Dialer].
func (l *transport) dial(network, address string, _ time.Duration) (net.Conn, error) {
	l.drop() // the client leaves a connection open on which its session was reported expired
	l.pause()
	if l.tried == 0 {
		l.first = l.last
	}
	l.next, l.tried = (l.next+1)%len(l.servers), l.tried+1
	if l.stopped.Err() != nil || l.hasEnded() {
		return nil, errEnded
	}
	ctx, cancel := context.WithTimeout(l.stopped, l.handshakeTimeout)
	defer cancel()
	conn, err := l.dialOne(ctx, network, address)
	if err == nil && l.tls != nil {
		conn, err = l.startTLS(ctx, conn, address)
	}
	if err != nil {
		l.recordFailure(address, err)
		return nil, err
	}
	w := &serverConn{Conn: conn, transport: l, address: address, r: bufio.NewReaderSize(conn, 16<<10)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = w
	return w, nil
}

// dialOne connects to one of the addresses of a server's name. It starts with another address each
// time: one that accepts connections and stays silent must not keep the client from the others.
func (l *transport) dialOne(ctx context.Context, network, server string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	addresses, err := l.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	slices.Sort(addresses) // name servers return them in any order
	first, tried := l.turns[server]
	if !tried {
		first = rand.IntN(len(addresses))
	}
	l.turns[server] = first + 1
	for i := range addresses {
		var conn net.Conn
		address := net.JoinHostPort(addresses[(first+i)%len(addresses)], port)
		if conn, err = l.connect(ctx, network, address); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// drop closes the present connection, if there is one.
func (l *transport) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked()
}

// dropLocked is drop for a caller that holds l.mu.
func (l *transport) dropLocked() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

// silenceTimeout is how long a server may answer no request of a session with the given TTL. When
// the next confirmation is sent, a third of the time that the last one is valid for has passed;
// this leaves enough of the rest to find another server.
func silenceTimeout(ttl time.Duration) time.Duration { return ttl / 4 }

// giveUp closes a connection on which no request is answered: the server may be hung, or cut off
// from the leader, while others work. The library would wait for two thirds of the TTL, which is
// too late for a holder, and forever while pings are answered.
func (l *transport) giveUp(w *serverConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != w || !w.overdue() {
		return
	}
	l.err = fmt.Errorf("%s: %w", w.RemoteAddr(), errUnanswered)
	l.dropLocked()
}

var errUnanswered = errors.New("connected, but no answer")

func (l *transport) startTLS(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	config := l.tls.Clone()
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		config.ServerName = host
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return secure, nil
}

func (l *transport) recordFailure(address string, err error) {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // the rest of the text repeats the address
	}
	l.mu.Lock()
	l.err = fmt.Errorf("%s: %w", address, err)
	l.mu.Unlock()
	if errors.Is(err, zk.ErrAuthFailed) {
		l.reject()
	}
}

// lastErr returns why the last connection failed or ended, or that no request is answered on it. It
// returns nil otherwise.
func (l *transport) lastErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.conn != nil && l.conn.hasUnanswered() {
		return fmt.Errorf("%s: %w", l.conn.RemoteAddr(), errUnanswered)
	}
	return l.err
}

func (l *transport) hasEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

func (l *transport) closeConfirmed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// terms returns what the server granted when the session was opened.
func (l *transport) terms() (session int64, granted time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session, l.granted
}

// registerCreate registers the creation of a node at path, until forget is called.
func (l *transport) registerCreate(path string) (pc pendingCreate, forget func()) {
	pc = pendingCreate{sent: make(chan struct{}), stats: make(chan stat, 1)}
	pc.setSent = sync.OnceFunc(func() { close(pc.sent) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pendingCreates[path] = pc
	return pc, func() {
		pc.setSent()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.pendingCreates, path)
	}
}

// recordSession records a server's reply to the request for a session. A session of zero means that
// the session has ended.
func (l *transport) recordSession(session int64, granted time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case session == 0:
		l.ended = l.once
	case l.session != 0 && session != l.session && l.once:
		l.ended = true
		return errEnded
	default:
		l.session, l.granted, l.err = session, granted, nil
	}
	return nil
}

// The parts of the protocol that this package needs.
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opGetChildren2    = 12
	opCreate2         = 15 // opCreate, but its reply has the node's stat behind the path
	opCreateContainer = 19
	opAuth            = 100
	opSetWatches      = 101
	opClose           = -11

	xidAuth = -4

	// replyHeader is the size of every reply's header: xid, zxid and error.
	replyHeader = 4 + 8 + 4
	// maxHandshakeReply is an upper bound for the reply to the request for a session, in bytes.
	maxHandshakeReply = 1 << 10
)

// serverConn is one connection to one server. The client reads it in one goroutine and writes it in
// another.
type serverConn struct {
	net.Conn

	transport *transport
	address   string

	r              *bufio.Reader
	handshakeReply []byte // what the client has not yet read of the reply to its request for a session
	established    bool
	left           int // bytes of the current frame that the client has not read

	// maxSilence is how long the server may answer no request; zero if the connection is not
	// abandoned for that.
	maxSilence time.Duration

	mu           sync.Mutex
	pending      map[int32]pendingCreate // unanswered creations, by xid
	closing      int32                   // xid of the request to end the session; zero if there was none
	unanswered   int                     // unanswered requests, without pings
	since        time.Time               // the last reply, or the first unanswered request
	silenceTimer *time.Timer             // abandons the connection; nil before the first request
}

// Read passes on what the server sends, frame by frame. It reads the first frame, and authenticates
// the connection, within the time that the transport grants a server: the client would wait for ten
// times as long as it takes to lose the session.
func (w *serverConn) Read(p []byte) (int, error) {
	if !w.established {
		if err := w.handshake(); err != nil {
			w.transport.recordFailure(w.address, err)
			return 0, err
		}
	}
	if len(w.handshakeReply) > 0 {
		n := copy(p, w.handshakeReply)
		w.handshakeReply = w.handshakeReply[n:]
		return n, nil
	}
	if w.left == 0 {
		if err := w.inspectFrame(); err != nil {
			return 0, err
		}
	}
	n, err := w.r.Read(p[:min(len(p), w.left)])
	w.left -= n
	return n, err
}

var errNotZooKeeper = errors.New("connected, but the reply is not ZooKeeper's: check that the address is a ZooKeeper server's, " +
	"and whether its port uses TLS")

var errClosedWithoutReply = errors.New("the server has closed the connection without a reply: it has no quorum, or too many " +
	"connections from this host (maxClientCnxns), or its port requires TLS")

func (w *serverConn) handshake() error {
	if err := w.Conn.SetDeadline(time.Now().Add(w.transport.handshakeTimeout)); err != nil {
		return err
	}
	frame, err := w.frame(maxHandshakeReply)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET): // either may happen
		return errClosedWithoutReply
	case err != nil:
		return err
	}
	session, granted, ok := parseHandshakeReply(frame[4:])
	if !ok {
		return errNotZooKeeper
	}
	if session != 0 {
		for _, a := range w.transport.auth {
			if err := w.authenticate(a); err != nil {
				return err
			}
		}
	}
	if err := w.transport.recordSession(session, granted); err != nil {
		return err
	}
	if w.transport.once { // for other sessions the library's own timeout is short enough
		w.maxSilence = silenceTimeout(granted)
	}
	w.established, w.handshakeReply = true, frame
	return w.Conn.SetDeadline(time.Time{})
}

// parseHandshakeReply parses the reply to the request for a session. It returns false if the reply
// is malformed, or would make the client panic.
func parseHandshakeReply(body []byte) (session int64, granted time.Duration, ok bool) {
	const beforePassword = 4 + 4 + 8 // version, timeout and session
	if len(body) < beforePassword+4 {
		return 0, 0, false
	}
	granted = time.Duration(int32(binary.BigEndian.Uint32(body[4:]))) * time.Millisecond
	session = int64(binary.BigEndian.Uint64(body[8:]))
	password := int(int32(binary.BigEndian.Uint32(body[beforePassword:])))
	return session, granted, password <= len(body)-beforePassword-4 && (session == 0 || granted > 0)
}

// frame reads a frame, with the four bytes of its length.
func (w *serverConn) frame(largest uint32) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(w.r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > largest {
		return nil, errNotZooKeeper
	}
	frame := make([]byte, 4+n)
	copy(frame, length[:])
	_, err := io.ReadFull(w.r, frame[4:])
	return frame, err
}

// authenticate presents a credential. The client's own way is not used: it authenticates after each
// reconnection from its own goroutine, and may block forever if that fails. No other request is in
// flight yet, so the next frame is the reply.
func (w *serverConn) authenticate(a Auth) error {
	body := binary.BigEndian.AppendUint32(nil, uint32(1<<32+xidAuth))
	body = binary.BigEndian.AppendUint32(body, opAuth)
	body = binary.BigEndian.AppendUint32(body, 0) // type: there is only this one
	body = appendBytes(body, []byte(a.Scheme))
	body = appendBytes(body, []byte(a.Credentials))
	if _, err := w.Conn.Write(appendBytes(nil, body)); err != nil {
		return err
	}
	frame, err := w.frame(maxHandshakeReply)
	switch {
	case err != nil:
		return err
	case len(frame) < 4+replyHeader:
		return errNotZooKeeper
	case binary.BigEndian.Uint32(frame[4+12:]) != 0:
		return fmt.Errorf("scheme %q: %w", a.Scheme, zk.ErrAuthFailed)
	}
	return nil
}

func appendBytes(to, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(b))), b...)
}

// SetReadDeadline does not change the deadline of the handshake: the client's is longer than the
// session lives.
func (w *serverConn) SetReadDeadline(t time.Time) error {
	if !w.established {
		return nil
	}
	return w.Conn.SetReadDeadline(t)
}

var errMalformedReply = errors.New("malformed reply")

// inspectFrame inspects the next frame before the client reads it. A frame that is too short for a
// reply would make the client panic.
func (w *serverConn) inspectFrame() error {
	head, err := w.r.Peek(4 + replyHeader)
	if err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(head))
	if size < replyHeader {
		return errMalformedReply
	}
	w.left = 4 + int(size)
	xid, failed := int32(binary.BigEndian.Uint32(head[4:])), binary.BigEndian.Uint32(head[4+12:]) != 0

	w.mu.Lock()
	w.countReplyLocked(xid)
	pc, isCreate := w.pending[xid]
	delete(w.pending, xid)
	closed := xid == w.closing && xid != 0
	w.mu.Unlock()

	switch {
	case closed && !failed:
		w.transport.mu.Lock()
		w.transport.closed = true
		w.transport.mu.Unlock()
	case isCreate && !failed:
		frame, err := w.r.Peek(min(w.left, w.r.Size()))
		if err != nil {
			return err
		}
		if st, ok := statBehindPath(frame[4+replyHeader:]); ok {
			pc.stats <- st
		}
	}
	return nil
}

// statBehindPath parses the reply to a create2. It returns false if it is truncated.
func statBehindPath(body []byte) (stat, bool) {
	const beforeOwner = 8 + 8 + 8 + 8 + 4 + 4 + 4 // czxid, mzxid, ctime, mtime and three versions
	if len(body) < 4 {
		return stat{}, false
	}
	path := int(int32(binary.BigEndian.Uint32(body)))
	if path < 0 || path > len(body)-4-beforeOwner-8 {
		return stat{}, false
	}
	body = body[4+path:]
	return stat{
		czxid: int64(binary.BigEndian.Uint64(body)),
		owner: int64(binary.BigEndian.Uint64(body[beforeOwner:])),
	}, true
}

// requestHeader is the size of every request's header: length, xid and operation.
const requestHeader = 4 + 4 + 4

// Write passes on one request of the client, which is one frame, or the request that replaces it.
func (w *serverConn) Write(p []byte) (int, error) {
	out := p
	switch {
	case !w.established:
		out = w.transport.sessionRequest(p)
	case len(p) >= requestHeader:
		w.countRequest(int32(binary.BigEndian.Uint32(p[4:])))
		var pc pendingCreate
		if out, pc = w.translate(p); pc.setSent != nil {
			defer pc.setSent()
		}
	}
	if _, err := w.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// countRequest records that a request is sent. A server answers requests in order, so each reply
// shows that it makes progress, and requests that wait for their turn are no reason to leave it.
// Pings show nothing: they are answered out of order, even by servers that can do nothing else.
// Their numbers are negative, like those of everything that is not a request.
func (w *serverConn) countRequest(xid int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if xid < 0 {
		return
	}
	if w.unanswered++; w.unanswered == 1 {
		w.restartTimerLocked()
	}
}

// countReplyLocked records that a request was answered.
func (w *serverConn) countReplyLocked(xid int32) {
	if xid < 0 || w.unanswered == 0 {
		return
	}
	if w.unanswered--; w.unanswered > 0 {
		w.restartTimerLocked()
	} else if w.silenceTimer != nil {
		w.silenceTimer.Stop()
	}
}

// restartTimerLocked starts the time within which the next reply must arrive.
func (w *serverConn) restartTimerLocked() {
	w.since = time.Now()
	switch {
	case w.maxSilence == 0:
	case w.silenceTimer == nil:
		w.silenceTimer = time.AfterFunc(w.maxSilence, func() { w.transport.giveUp(w) })
	default:
		w.silenceTimer.Reset(w.maxSilence)
	}
}

// hasUnanswered reports whether requests are unanswered.
func (w *serverConn) hasUnanswered() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unanswered > 0
}

// overdue reports whether no request was answered for too long.
func (w *serverConn) overdue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unanswered > 0 && time.Since(w.since) >= w.maxSilence
}

// translate returns the request to send in place of p. If p creates an entry, pc is its
// pendingCreate.
func (w *serverConn) translate(p []byte) (out []byte, pc pendingCreate) {
	xid := int32(binary.BigEndian.Uint32(p[4:]))
	switch int32(binary.BigEndian.Uint32(p[8:])) {
	case opClose:
		w.mu.Lock()
		w.closing = xid
		w.mu.Unlock()
	case opCreate:
		if pc, ok := w.transport.takePendingCreate(p[requestHeader:]); ok {
			w.addPending(xid, pc)
			return withOperation(p, opCreate2), pc
		}
		if binary.BigEndian.Uint32(p[len(p)-4:]) == zk.FlagContainer {
			return withOperation(p, opCreateContainer), pc
		}
	case opExists, opGetData, opGetChildren2:
		return rewriteRead(p), pc
	case opDelete:
		return rewriteDelete(p), pc
	}
	return p, pc
}

func withOperation(p []byte, op uint32) []byte {
	p = bytes.Clone(p)
	binary.BigEndian.PutUint32(p[8:], op)
	return p
}

// watched returns the path with which Get, Exists and Children also set a watch.
//
// The client's own GetW, ExistsW and ChildrenW make it restore all watches after each reconnection.
// This package does that itself, because the client only logs if it fails, has a data race there,
// and keeps a channel for each watch that has not fired.
func watched(path string) string { return join(path, watchMark) }

// watchMark is the last element of paths to watch. No other path ends like it: ZooKeeper does not
// allow its first character, but the library does. Only reads have it; in deletions the character
// has another meaning, see pathEnd.
const watchMark = "\ue000watch"

// rewriteRead turns a read of a marked path into a read of the path that sets a watch.
func rewriteRead(p []byte) []byte {
	const path = requestHeader + 4
	if len(p) <= path || int64(binary.BigEndian.Uint32(p[requestHeader:])) != int64(len(p)-path-1) {
		return p
	}
	plain, marked := bytes.CutSuffix(p[path:len(p)-1], []byte("/"+watchMark))
	switch {
	case !marked:
		return p
	case len(plain) == 0:
		plain = []byte("/")
	}
	body := appendBytes(bytes.Clone(p[4:requestHeader]), plain)
	return appendBytes(nil, append(body, 1))
}

// sessionRequest returns the client's request for a session as it is to be sent. In it the client
// reports the last transaction that it has seen, and servers with fewer transactions refuse it:
// after a restore from a backup all do. So a client that may continue with another session reports
// zero, once its own session must have ended.
func (l *transport) sessionRequest(p []byte) []byte {
	const seen, size = 4 + 4, 8 // after length and version
	if _, granted := l.terms(); l.once || time.Since(l.first) <= granted || len(p) < seen+size {
		return p
	}
	p = bytes.Clone(p)
	clear(p[seen : seen+size])
	return p
}

func (w *serverConn) addPending(xid int32, pc pendingCreate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		w.pending = make(map[int32]pendingCreate)
	}
	w.pending[xid] = pc
}

// takePendingCreate removes and returns the pendingCreate of a request to create.
func (l *transport) takePendingCreate(body []byte) (pendingCreate, bool) {
	if len(body) < 4 {
		return pendingCreate{}, false
	}
	n := int(binary.BigEndian.Uint32(body))
	if len(body) < 4+n {
		return pendingCreate{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	path := string(body[4 : 4+n])
	pc, ok := l.pendingCreates[path]
	delete(l.pendingCreates, path)
	return pc, ok
}
