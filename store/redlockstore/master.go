package redlockstore

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

const (
	// dialTimeout bounds connecting to a master, including the login.
	dialTimeout = 2 * time.Second
	// silenceTimeout is how long a connection may leave all requests unanswered before it is
	// closed. Only the requests on that connection wait for it.
	silenceTimeout = 3 * time.Second
	// firstRedial and lastRedial bound the pause between attempts to connect.
	firstRedial = 20 * time.Millisecond
	lastRedial  = time.Second
	// maxTakes bounds the unanswered take requests at a master; further ones wait. It bounds what
	// has to be cleaned up at a master that hangs.
	maxTakes = 512
	// voidTTL is how long a void attempt is remembered: longer than a request can be in flight.
	voidTTL = time.Minute
)

var (
	errConnecting = errors.New("still connecting")
	errClosed     = errors.New("the store is closed")
)

// unsentError means that a request was not sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// doubtError means that a request may have been carried out, or may yet be.
type doubtError struct{ error }

func (e doubtError) Unwrap() error { return e.error }

// inDoubt reports whether a request that failed with err may yet be carried out.
func inDoubt(err error) bool {
	_, ok := errors.AsType[doubtError](err)
	return ok
}

// master is one of the Redis servers. It reconnects in the background, so that requests never wait
// for a connection. Removals that were not possible while it was unreachable are its first requests
// after it reconnects.
type master struct {
	number int
	addr   string
	option rueidis.ClientOption
	logger *slog.Logger

	first  chan struct{} // closed after the first attempt to connect
	takes  chan struct{} // holds one element for each unanswered take request
	wakeup work.Signal   // wakes run: the connection has broken, or a removal is pending

	mu      sync.Mutex
	client  rueidis.Client // nil while disconnected
	up      chan struct{}  // closed when connected; replaced when the connection breaks
	err     error          // why it is disconnected
	latency latency        // latency of its answers
	pending map[*pendingRemoval]struct{}
}

// pendingRemoval is a removal to be carried out when the master is connected.
type pendingRemoval struct {
	keys, args []string
	done       func(reply rueidis.RedisMessage, err error)
}

// latency is the shortest recent latency, which leaves out temporary delays.
type latency struct {
	min   time.Duration
	since time.Time
}

// record adds a measurement. A smaller one replaces it at once, any other after two seconds.
func (p *latency) record(took time.Duration) {
	if took <= p.min || time.Since(p.since) > 2*time.Second {
		p.min, p.since = took, time.Now()
	}
}

// newMaster returns a master, not connected: see [master.run].
func newMaster(number int, option rueidis.ClientOption, logger *slog.Logger) *master {
	// One connection, so that the master carries out requests in the order in which they are sent.
	option.PipelineMultiplex = -1
	option.AlwaysPipelining = true
	option.ForceSingleClient = true
	option.DisableRetry = true
	option.DisableCache = true
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = dialTimeout
	}
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = silenceTimeout
	}
	if option.ReadBufferEachConn == 0 {
		option.ReadBufferEachConn = 32 << 10
	}
	if option.WriteBufferEachConn == 0 {
		option.WriteBufferEachConn = 32 << 10
	}
	return &master{
		number:  number,
		addr:    option.InitAddress[0],
		option:  option,
		logger:  logger.With(slog.String("master", option.InitAddress[0])),
		first:   make(chan struct{}),
		takes:   make(chan struct{}, maxTakes),
		wakeup:  work.NewSignal(),
		up:      make(chan struct{}),
		err:     errConnecting,
		pending: make(map[*pendingRemoval]struct{}),
	}
}

// lifeConn is a connection that is also closed when its life ends.
type lifeConn struct {
	net.Conn
	stopClose func() bool // stops the close at the end of the life
}

func (c lifeConn) Close() error {
	c.stopClose()
	return c.Conn.Close()
}

type dialFunc = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

// dialWithin returns a function that connects as dial does (by default as the Redis client does)
// and whose connections are closed when life ends. The Redis client has no other way to stop
// waiting for a silent server. Also, a request that arrives while its connection breaks makes it
// reconnect, even after it was closed.
func dialWithin(life context.Context, dial dialFunc) dialFunc {
	if dial == nil {
		dial = func(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
			if config == nil {
				return dialer.DialContext(ctx, "tcp", addr)
			}
			return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", addr)
		}
	}
	return func(ctx context.Context, addr string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		conn, err := dial(ctx, addr, dialer, config)
		if err != nil {
			return nil, err
		}
		return lifeConn{conn, context.AfterFunc(life, func() { _ = conn.Close() })}, nil
	}
}

// run keeps the master connected until ctx ends.
func (m *master) run(ctx context.Context) {
	var dialed sync.Once
	pause := firstRedial
	for ctx.Err() == nil {
		within, end := context.WithCancel(ctx)
		client, err := m.connect(within)
		if err == nil {
			pause = firstRedial
			m.connected(client)
			dialed.Do(func() { close(m.first) })
			m.serve(ctx, client)
			m.disconnected(client)
			end()
			client.Close()
			continue
		}
		end()
		m.setErr(err)
		dialed.Do(func() { close(m.first) })
		attempts.Sleep(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, lastRedial)
	}
	m.setErr(errClosed)
}

// connect connects to the master and carries out the pending removals before any other request. A
// master that accepts connections but does not answer therefore gets no further takes, and the
// pending removals do not accumulate.
func (m *master) connect(ctx context.Context) (rueidis.Client, error) {
	option := m.option
	option.DialCtxFn = dialWithin(ctx, option.DialCtxFn)
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, withoutAddr(err)
	}
	if err := m.removePending(client); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// serve carries out pending removals until the connection breaks or ctx ends.
func (m *master) serve(ctx context.Context, client rueidis.Client) {
	for m.removePending(client) == nil {
		var again <-chan time.Time
		if m.hasPending() {
			again = time.After(lastRedial)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-m.wakeup:
		}
		m.mu.Lock()
		broken := m.client != client
		m.mu.Unlock()
		if broken {
			return
		}
	}
}

func (m *master) connected(client rueidis.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = client
	close(m.up)
}

func (m *master) setErr(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = why
}

// markBroken records that a request has failed on the connection.
func (m *master) markBroken(client rueidis.Client, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != client {
		return
	}
	m.client, m.up, m.err = nil, make(chan struct{}), why
	m.wakeup.Set()
	m.logger.LogAttrs(context.Background(), slog.LevelInfo, "connection lost; connecting again", slog.Any("error", why))
}

// disconnected records that the connection is no longer used.
func (m *master) disconnected(client rueidis.Client) { m.markBroken(client, errClosed) }

// ask runs a script at the master and waits for its reply, a few seconds at most. It waits for the
// first attempt to connect, until ctx ends. Once the request is sent ctx does not matter, because
// the caller needs the outcome.
//
// The error is a [rueidis.RedisError] if that is the master's reply, otherwise an unsentError or a
// doubtError.
func (m *master) ask(ctx context.Context, script *rueidis.Lua, keys, args []string) (rueidis.RedisMessage, error) {
	select {
	case <-m.first:
	case <-ctx.Done():
		return rueidis.RedisMessage{}, unsentError{errConnecting}
	}
	m.mu.Lock()
	client, why := m.client, m.err
	m.mu.Unlock()
	if client == nil {
		return rueidis.RedisMessage{}, unsentError{why}
	}

	start := time.Now()
	reply, err := m.exec(client, script, keys, args)
	if !inDoubt(err) {
		m.mu.Lock()
		m.latency.record(time.Since(start))
		m.mu.Unlock()
	}
	return reply, err
}

// take runs takeScript when fewer than maxTakes are unanswered. If ctx ends before that the request
// is not sent.
func (m *master) take(ctx context.Context, keys, args []string) (rueidis.RedisMessage, error) {
	select {
	case m.takes <- struct{}{}:
		defer func() { <-m.takes }()
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		return rueidis.RedisMessage{}, unsentError{err}
	}
	return m.ask(ctx, takeScript, keys, args)
}

func (m *master) exec(client rueidis.Client, script *rueidis.Lua, keys, args []string) (rueidis.RedisMessage, error) {
	result := script.Exec(context.Background(), client, keys, args)
	if err := result.NonRedisError(); err != nil {
		m.markBroken(client, err)
		return rueidis.RedisMessage{}, doubtError{err}
	}
	return result.ToMessage()
}

// removeLater schedules a removal for when the master answers.
func (m *master) removeLater(d *pendingRemoval) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending[d] = struct{}{}
	m.wakeup.Set()
}

func (m *master) hasPending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pending) > 0
}

// removePending carries out the pending removals. If the connection breaks it returns the error.
func (m *master) removePending(client rueidis.Client) error {
	m.mu.Lock()
	due := slices.Collect(maps.Keys(m.pending))
	m.mu.Unlock()
	broken := make(chan error, len(due))
	var all sync.WaitGroup
	for _, d := range due {
		all.Go(func() {
			if doubt, ok := errors.AsType[doubtError](m.removeOne(client, d)); ok {
				broken <- doubt.error
			}
		})
	}
	all.Wait()
	close(broken)
	return <-broken
}

// removeOne carries out one pending removal. It stays pending if it could not be sent or was
// refused temporarily. If the master refuses it for good it is dropped, and the entry expires with
// its TTL.
func (m *master) removeOne(client rueidis.Client, d *pendingRemoval) error {
	reply, err := m.exec(client, leaveScript, d.keys, d.args)
	if inDoubt(err) || temporary(err) {
		return err
	}
	if err != nil {
		m.logger.LogAttrs(context.Background(), slog.LevelWarn,
			"removal of an entry refused; it expires with its TTL", slog.Any("error", err))
	}
	m.mu.Lock()
	delete(m.pending, d)
	m.mu.Unlock()
	d.done(reply, err)
	return err
}

// await returns the connection as soon as there is one; nil if ctx ends first.
func (m *master) await(ctx context.Context) rueidis.Client {
	for {
		m.mu.Lock()
		client, up := m.client, m.up
		m.mu.Unlock()
		if client != nil {
			return client
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil
		}
	}
}

// connErr returns why the master is disconnected, or nil.
func (m *master) connErr() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		return nil
	}
	return m.err
}

// withoutAddr strips the address from the error of a failed connection, because messages name it
// anyway.
func withoutAddr(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
