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

// link stands between one go-zookeeper client and its servers. It chooses the servers, gives up those that accept a
// connection and then say nothing, authenticates each connection before anything else is said on it, and learns from
// what passes what the client does not tell: see the package comment.
type link struct {
	servers []string
	tls     *tls.Config
	auth    []Auth
	lookup  func(ctx context.Context, host string) (addresses []string, err error)
	connect func(ctx context.Context, network, address string) (net.Conn, error)
	silence time.Duration // how long a server may say nothing before the connection is made use of

	// once is set if the client must not go on with another session when its own has ended.
	once bool

	over context.Context // ends when no more connections are to be made
	stop context.CancelFunc

	// These belong to the client's main goroutine.
	next  int            // which of the servers to try
	turns map[string]int // which of a server's addresses to try first; by server
	tried int            // how many were, since one was found
	first time.Time      // when the first of these was
	last  time.Time      // when the last was

	mu      sync.Mutex
	conn    *wire // the last one made; nil when it was dropped
	session int64
	granted time.Duration
	ended   bool             // the session, if once is set
	err     error            // why the last connection failed
	births  map[string]birth // by the path that is asked for
	closed  bool             // the server has ended the session because we asked

	rejected chan struct{} // closed when a server has said that it does not accept who we are
	reject   func()
}

// A birth is what becomes of the creation of an entry's node.
type birth struct {
	sent    chan struct{} // closed when the request has been sent, or nobody waits for that any more
	setSent func()        // closes sent
	stats   chan stat     // gets one before the client hears of the success
}

// A stat is what is to be known of a node when it has been created.
type stat struct {
	czxid int64
	owner int64
}

func newLink(s *Store, timeout time.Duration, once bool) *link {
	l := &link{
		servers: slices.Clone(s.servers),
		tls:     s.tls,
		auth:    s.auth,
		lookup:  s.lookup,
		connect: s.dial,
		turns:   make(map[string]int),
		silence: min(max(patienceFor(timeout), 200*time.Millisecond), 3*time.Second),
		once:    once,
		births:  make(map[string]birth),
	}
	rand.Shuffle(len(l.servers), func(i, j int) { l.servers[i], l.servers[j] = l.servers[j], l.servers[i] })
	l.over, l.stop = context.WithCancel(context.Background())
	l.rejected = make(chan struct{})
	l.reject = sync.OnceFunc(func() { close(l.rejected) })
	return l
}

// Init implements [zk.HostProvider]. Names are looked up when they are connected to, every time: the default provider
// does it once.
func (l *link) Init([]string) error { return nil }

// Len implements [zk.HostProvider].
func (l *link) Len() int { return len(l.servers) }

// Next implements [zk.HostProvider]. Where a new round is said to begin the client looks whether it has been closed, drops
// the requests that it could not send, and waits a second. So one begins when no more connections are to be made; and
// where dial would pause as long anyway, because those who made the requests may have given up long ago.
func (l *link) Next() (server string, retryStart bool) {
	newRound := l.tried > 0 && l.tried%len(l.servers) == 0
	return l.servers[l.next], l.over.Err() != nil || newRound && l.wait() == lastPause
}

// Connected implements [zk.HostProvider].
func (l *link) Connected() { l.tried = 0 }

// The pauses between attempts to connect. The first is for a server that accepts everybody and keeps nobody.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// wait is how long to pause before another server is tried: longer after each round.
func (l *link) wait() time.Duration {
	d := firstPause
	for range min(l.tried/len(l.servers), 10) {
		d = min(2*d, lastPause)
	}
	return d
}

// pause waits before another server is tried.
func (l *link) pause() {
	attempts.Rest(l.over, time.Until(l.last.Add(l.wait())))
	l.last = time.Now()
}

var errOver = errors.New("the session has ended")

// dial is the [zk.Dialer].
func (l *link) dial(network, address string, _ time.Duration) (net.Conn, error) {
	l.drop() // the client does not close one on which it has heard that its session has expired
	l.pause()
	if l.tried == 0 {
		l.first = l.last
	}
	l.next, l.tried = (l.next+1)%len(l.servers), l.tried+1
	if l.over.Err() != nil || l.hasEnded() {
		return nil, errOver
	}
	ctx, cancel := context.WithTimeout(l.over, l.silence)
	defer cancel()
	conn, err := l.dialOne(ctx, network, address)
	if err == nil && l.tls != nil {
		conn, err = l.secure(ctx, conn, address)
	}
	if err != nil {
		l.failed(address, err)
		return nil, err
	}
	w := &wire{Conn: conn, link: l, address: address, r: bufio.NewReaderSize(conn, 16<<10)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = w
	return w, nil
}

// dialOne connects to one of the addresses that a server's name has. Each time another is the first to be tried: one that
// accepts connections and makes no use of them must not keep the client from the others.
func (l *link) dialOne(ctx context.Context, network, server string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	addresses, err := l.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	slices.Sort(addresses) // name servers give them in any order
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
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangUp()
}

// hangUp is drop, called with l.mu held.
func (l *link) hangUp() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

// patienceFor is how long a server may answer nothing, with a session of the given TTL. Of what a confirmation is good for,
// a third is over when the next one is sent; this leaves enough of the rest to find another server.
func patienceFor(ttl time.Duration) time.Duration { return ttl / 4 }

// giveUp drops a connection on which nothing is answered: the server may be hung, or cut off from the leader, while others
// are well. The library would give it up after two thirds of the TTL, which is too late for who holds something; and not at
// all while pings are answered.
func (l *link) giveUp(w *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != w || !w.overdue() {
		return
	}
	l.err = fmt.Errorf("%s: %w", w.RemoteAddr(), errUnanswered)
	l.hangUp()
}

var errUnanswered = errors.New("the server is connected, and does not answer")

func (l *link) secure(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
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

func (l *link) failed(address string, err error) {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // the rest of it names the address too
	}
	l.mu.Lock()
	l.err = fmt.Errorf("%s: %w", address, err)
	l.mu.Unlock()
	if errors.Is(err, zk.ErrAuthFailed) {
		l.reject()
	}
}

// trouble returns why the last connection could not be made, or ended, or that nothing is answered on it. Nil if there was
// none.
func (l *link) trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.conn != nil && l.conn.asked() {
		return fmt.Errorf("%s: %w", l.conn.RemoteAddr(), errUnanswered)
	}
	return l.err
}

func (l *link) hasEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

func (l *link) closeConfirmed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// terms returns what the server granted when the session was opened.
func (l *link) terms() (session int64, granted time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session, l.granted
}

// expect makes the link tell what becomes of the creation of a node at path, until forget is called.
func (l *link) expect(path string) (b birth, forget func()) {
	b = birth{sent: make(chan struct{}), stats: make(chan stat, 1)}
	b.setSent = sync.OnceFunc(func() { close(b.sent) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.births[path] = b
	return b, func() {
		b.setSent()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.births, path)
	}
}

// greeted takes in a server's answer to the request for a session. A session of zero means that ours has ended.
func (l *link) greeted(session int64, granted time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case session == 0:
		l.ended = l.once
	case l.session != 0 && session != l.session && l.once:
		l.ended = true
		return errOver
	default:
		l.session, l.granted, l.err = session, granted, nil
	}
	return nil
}

// The parts of the protocol that are needed here.
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opGetChildren2    = 12
	opCreate2         = 15 // opCreate, but its answer has the node's stat behind the path
	opCreateContainer = 19
	opAuth            = 100
	opSetWatches      = 101
	opClose           = -11

	xidAuth = -4

	// replyHeader is the size of what every answer begins with: xid, zxid and error.
	replyHeader = 4 + 8 + 4
	// largestGreeting is more than the answer to the request for a session ever has, in bytes.
	largestGreeting = 1 << 10
)

// wire is one connection to one server. The client reads it in one goroutine and writes it in another.
type wire struct {
	net.Conn

	link    *link
	address string

	r        *bufio.Reader
	greeting []byte // the answer to the request for a session, as far as it has not been read by the client
	greeted  bool
	left     int // bytes of the present frame that the client has not read

	// patience is how long the server may answer nothing though it was asked; zero if the connection is not given up for that.
	patience time.Duration

	mu      sync.Mutex
	pending map[int32]birth // creations that have not been answered, by xid
	closing int32           // xid of the request to end the session; zero if there was none
	waiting int             // how many requests have not been answered, without pings
	since   time.Time       // for how long nothing was answered, if any are waiting
	silence *time.Timer     // gives the connection up after that; nil if none was waiting yet
}

// Read passes on what the server says, frame by frame. The first one is read, and the connection authenticated, within
// the time that the link gives a server: the client would wait for ten times as long as it takes to lose the session.
func (w *wire) Read(p []byte) (int, error) {
	if !w.greeted {
		if err := w.greet(); err != nil {
			w.link.failed(w.address, err)
			return 0, err
		}
	}
	if len(w.greeting) > 0 {
		n := copy(p, w.greeting)
		w.greeting = w.greeting[n:]
		return n, nil
	}
	if w.left == 0 {
		if err := w.look(); err != nil {
			return 0, err
		}
	}
	n, err := w.r.Read(p[:min(len(p), w.left)])
	w.left -= n
	return n, err
}

var errNoGreeting = errors.New("connected, but the answer is not one of ZooKeeper's: is it a ZooKeeper server, and does " +
	"it speak TLS on this port, or not?")

var errTurnedAway = errors.New("the server has closed the connection instead of answering: it has no quorum, or too many " +
	"connections from here already (maxClientCnxns), or wants TLS on this port")

func (w *wire) greet() error {
	if err := w.Conn.SetDeadline(time.Now().Add(w.link.silence)); err != nil {
		return err
	}
	frame, err := w.frame(largestGreeting)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET): // which of them is chance
		return errTurnedAway
	case err != nil:
		return err
	}
	session, granted, ok := parseGreeting(frame[4:])
	if !ok {
		return errNoGreeting
	}
	if session != 0 {
		for _, a := range w.link.auth {
			if err := w.authenticate(a); err != nil {
				return err
			}
		}
	}
	if err := w.link.greeted(session, granted); err != nil {
		return err
	}
	if w.link.once { // without a session to lose the library gives it up in time
		w.patience = patienceFor(granted)
	}
	w.greeted, w.greeting = true, frame
	return w.Conn.SetDeadline(time.Time{})
}

// parseGreeting understands the answer to the request for a session. It reports false if the answer is none, or one that
// the client would come to grief with.
func parseGreeting(body []byte) (session int64, granted time.Duration, ok bool) {
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
func (w *wire) frame(largest uint32) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(w.r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > largest {
		return nil, errNoGreeting
	}
	frame := make([]byte, 4+n)
	copy(frame, length[:])
	_, err := io.ReadFull(w.r, frame[4:])
	return frame, err
}

// authenticate says who we are. The client's own way is not used: it does so anew after each reconnection, from
// goroutines of its own, and if that fails it may stand still for ever. Nothing else is under way yet, so the next frame
// is the answer.
func (w *wire) authenticate(a Auth) error {
	body := binary.BigEndian.AppendUint32(nil, uint32(1<<32+xidAuth))
	body = binary.BigEndian.AppendUint32(body, opAuth)
	body = binary.BigEndian.AppendUint32(body, 0) // type: there is only this one
	body = appendBytes(body, []byte(a.Scheme))
	body = appendBytes(body, []byte(a.Credentials))
	if _, err := w.Conn.Write(appendBytes(nil, body)); err != nil {
		return err
	}
	frame, err := w.frame(largestGreeting)
	switch {
	case err != nil:
		return err
	case len(frame) < 4+replyHeader:
		return errNoGreeting
	case binary.BigEndian.Uint32(frame[4+12:]) != 0:
		return fmt.Errorf("scheme %q: %w", a.Scheme, zk.ErrAuthFailed)
	}
	return nil
}

func appendBytes(to, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(b))), b...)
}

// SetReadDeadline leaves the deadline alone that the greeting has: the client's is longer than the session lives.
func (w *wire) SetReadDeadline(t time.Time) error {
	if !w.greeted {
		return nil
	}
	return w.Conn.SetReadDeadline(t)
}

var errNoAnswer = errors.New("what the server says is not an answer: the connection is out of step")

// look looks at the frame that comes next, before the client reads it. One that is too short for an answer would make the
// client panic.
func (w *wire) look() error {
	head, err := w.r.Peek(4 + replyHeader)
	if err != nil {
		return err
	}
	size := int32(binary.BigEndian.Uint32(head))
	if size < replyHeader {
		return errNoAnswer
	}
	w.left = 4 + int(size)
	xid, failed := int32(binary.BigEndian.Uint32(head[4:])), binary.BigEndian.Uint32(head[4+12:]) != 0

	w.mu.Lock()
	w.answered(xid)
	b, born := w.pending[xid]
	delete(w.pending, xid)
	closed := xid == w.closing && xid != 0
	w.mu.Unlock()

	switch {
	case closed && !failed:
		w.link.mu.Lock()
		w.link.closed = true
		w.link.mu.Unlock()
	case born && !failed:
		frame, err := w.r.Peek(min(w.left, w.r.Size()))
		if err != nil {
			return err
		}
		if st, ok := statBehindPath(frame[4+replyHeader:]); ok {
			b.stats <- st
		}
	}
	return nil
}

// statBehindPath understands the answer to a create2. It reports false if it is cut short.
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

// requestHeader is the size of what every request begins with: length, xid and operation.
const requestHeader = 4 + 4 + 4

// Write passes on one request of the client, which is one frame, or what is to be said in its place.
func (w *wire) Write(p []byte) (int, error) {
	said := p
	switch {
	case !w.greeted:
		said = w.link.sessionRequest(p)
	case len(p) >= requestHeader:
		w.ask(int32(binary.BigEndian.Uint32(p[4:])))
		var b birth
		if said, b = w.translated(p); b.setSent != nil {
			defer b.setSent()
		}
	}
	if _, err := w.Conn.Write(said); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ask notes that a request is sent. A server answers in the order of the requests, so each answer shows that it works on
// them, and those that have to wait for their turn are no reason to leave it. Pings show nothing: they are answered out of
// that order, by servers that can do nothing else. Their numbers are negative, like those of all that is no request.
func (w *wire) ask(xid int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if xid < 0 {
		return
	}
	if w.waiting++; w.waiting == 1 {
		w.beSilent()
	}
}

// answered notes that a request was answered. It is called with w.mu held.
func (w *wire) answered(xid int32) {
	if xid < 0 || w.waiting == 0 {
		return
	}
	if w.waiting--; w.waiting > 0 {
		w.beSilent()
	} else if w.silence != nil {
		w.silence.Stop()
	}
}

// beSilent notes that from here on nothing is answered. It is called with w.mu held.
func (w *wire) beSilent() {
	w.since = time.Now()
	switch {
	case w.patience == 0:
	case w.silence == nil:
		w.silence = time.AfterFunc(w.patience, func() { w.link.giveUp(w) })
	default:
		w.silence.Reset(w.patience)
	}
}

// asked reports whether there are requests that have not been answered.
func (w *wire) asked() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting > 0
}

// overdue reports whether nothing was answered for too long.
func (w *wire) overdue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting > 0 && time.Since(w.since) >= w.patience
}

// translated returns what is to be said in place of a request. If that is the creation of an entry, b is its birth.
func (w *wire) translated(p []byte) (said []byte, b birth) {
	xid := int32(binary.BigEndian.Uint32(p[4:]))
	switch int32(binary.BigEndian.Uint32(p[8:])) {
	case opClose:
		w.mu.Lock()
		w.closing = xid
		w.mu.Unlock()
	case opCreate:
		if b, ok := w.link.birthOf(p[requestHeader:]); ok {
			w.expect(xid, b)
			return withOperation(p, opCreate2), b
		}
		if binary.BigEndian.Uint32(p[len(p)-4:]) == zk.FlagContainer {
			return withOperation(p, opCreateContainer), b
		}
	case opExists, opGetData, opGetChildren2:
		return watching(p), b
	case opDelete:
		return settingWatches(p), b
	}
	return p, b
}

func withOperation(p []byte, op uint32) []byte {
	p = bytes.Clone(p)
	binary.BigEndian.PutUint32(p[8:], op)
	return p
}

// watched returns the path by which to ask that a reading of a node leaves a watch: Get, Exists and Children do then.
//
// The client's own GetW, ExistsW and ChildrenW have it set all watches anew after each reconnection, which is done here too,
// and for good reason: it only logs if that fails. Besides it has a data race there; and it keeps a channel for each watch
// that nobody has heard of yet.
func watched(path string) string { return join(path, watchMark) }

// watchMark is the last element of paths that are to be watched. No path that is there, or may be asked for, ends like it:
// ZooKeeper does not allow the first character, which the library does. Readings alone have it: in deletions the same character
// has another meaning; see pathEnd.
const watchMark = "\ue000watch"

// watching turns a reading of a path that is marked into one of the path that leaves a watch.
func watching(p []byte) []byte {
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

// sessionRequest is the client's request for a session, as it is to be sent. The client says in it how much it has seen, and
// servers that know of less do not let it in: none does any more after the ensemble was restored from a backup or set up
// anew. A client that may go on with another session therefore has seen nothing, once its own must have ended.
func (l *link) sessionRequest(p []byte) []byte {
	const seen, size = 4 + 4, 8 // behind length and version
	if _, granted := l.terms(); l.once || time.Since(l.first) <= granted || len(p) < seen+size {
		return p
	}
	p = bytes.Clone(p)
	clear(p[seen : seen+size])
	return p
}

func (w *wire) expect(xid int32, b birth) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		w.pending = make(map[int32]birth)
	}
	w.pending[xid] = b
}

// birthOf takes the birth that a request to create is the beginning of.
func (l *link) birthOf(body []byte) (birth, bool) {
	if len(body) < 4 {
		return birth{}, false
	}
	n := int(binary.BigEndian.Uint32(body))
	if len(body) < 4+n {
		return birth{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	path := string(body[4 : 4+n])
	b, ok := l.births[path]
	delete(l.births, path)
	return b, ok
}
