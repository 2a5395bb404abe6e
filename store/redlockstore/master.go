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
	// dialTimeout is how long connecting to a master may take, logging in included.
	dialTimeout = 2 * time.Second
	// silence is how long a master may leave everything unanswered until its connection is given up. Nobody waits for
	// that but the requests that are on it.
	silence = 3 * time.Second
	// firstRedial and lastRedial bound the pause between attempts to connect.
	firstRedial = 20 * time.Millisecond
	lastRedial  = time.Second
	// mostTakes is how many requests to put something in may be unanswered at a master; others wait for their turn. So
	// there is an end to what has to be cleaned up at one that hangs.
	mostTakes = 512
	// voidTTL is how long a void attempt is remembered: longer than a request can be on its way.
	voidTTL = time.Minute
)

var (
	errConnecting = errors.New("still connecting")
	errClosed     = errors.New("the store is closed")
)

// unsentError means that a request was not sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// doubtError means that it is not known whether a request was, or yet will be, carried out.
type doubtError struct{ error }

func (e doubtError) Unwrap() error { return e.error }

// inDoubt reports whether a request that failed with err may yet be carried out.
func inDoubt(err error) bool {
	_, ok := errors.AsType[doubtError](err)
	return ok
}

// master is one of the Redis servers. It connects by itself, again and again, so that nobody who asks it has to wait for
// that; what could not be cleaned up at it while it was out of reach, it cleans up first thing when it is back.
type master struct {
	number int
	addr   string
	option rueidis.ClientOption
	logger *slog.Logger

	first chan struct{} // closed when the first attempt to connect is over
	takes chan struct{} // holds one for each request to put something in that is unanswered
	kick  work.Signal   // tells run that the connection has broken, or that there are new pending removals

	mu      sync.Mutex
	client  rueidis.Client // nil while there is no connection
	up      chan struct{}  // closed when there is one; replaced when it breaks
	why     error          // why there is none
	pace    pace           // how long its answers take
	pending map[*pendingRemoval]struct{}
}

// pendingRemoval is a removal that has to be carried out at a master when it can be.
type pendingRemoval struct {
	keys, args []string
	done       func(reply rueidis.RedisMessage, err error)
}

// pace is how long something has taken of late, at its quickest: what it takes when it is not stopped.
type pace struct {
	least time.Duration
	since time.Time
}

// note takes a measurement, which stands until there is a smaller one, or for two seconds.
func (p *pace) note(took time.Duration) {
	if took <= p.least || time.Since(p.since) > 2*time.Second {
		p.least, p.since = took, time.Now()
	}
}

// newMaster returns a master that [master.run] connects.
func newMaster(number int, option rueidis.ClientOption, logger *slog.Logger) *master {
	// Requests to one master are carried out in the order in which they are made: they are on one connection.
	option.PipelineMultiplex = -1
	option.AlwaysPipelining = true
	option.ForceSingleClient = true
	option.DisableRetry = true
	option.DisableCache = true
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = dialTimeout
	}
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = silence
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
		takes:   make(chan struct{}, mostTakes),
		kick:    work.NewSignal(),
		up:      make(chan struct{}),
		why:     errConnecting,
		pending: make(map[*pendingRemoval]struct{}),
	}
}

// mortal is a connection that something else can close, too.
type mortal struct {
	net.Conn
	spare func() bool // from that
}

func (c mortal) Close() error {
	c.spare()
	return c.Conn.Close()
}

type dialFunc = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

// dialWithin returns a function that connects as dial does, or as usual, and whose connections are closed when life
// ends. Nothing else makes the Redis client stop waiting for a server that has fallen silent; and a request that comes to it
// as its connection breaks makes it connect again, which it may still do when it has been closed.
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
		return mortal{conn, context.AfterFunc(life, func() { _ = conn.Close() })}, nil
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
		m.failed(err)
		dialed.Do(func() { close(m.first) })
		attempts.Rest(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, lastRedial)
	}
	m.failed(errClosed)
}

// connect connects to the master, until ctx ends, and carries out the pending removals. Nothing else is asked of it before: what
// is pending at one that lets itself be connected to, and then answers nothing, does not become more with every connection.
func (m *master) connect(ctx context.Context) (rueidis.Client, error) {
	option := m.option
	option.DialCtxFn = dialWithin(ctx, option.DialCtxFn)
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, unwrapDial(err)
	}
	if err := m.removePending(client); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// serve carries out the pending removals until its connection breaks or ctx ends.
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
		case <-m.kick:
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

func (m *master) failed(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.why = why
}

// broke notes that a request has failed on the connection, and why.
func (m *master) broke(client rueidis.Client, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != client {
		return
	}
	m.client, m.up, m.why = nil, make(chan struct{}), why
	m.kick.Set()
	m.logger.LogAttrs(context.Background(), slog.LevelInfo, "connection lost; connecting again", slog.Any("error", why))
}

// disconnected notes that nothing more can be sent on the connection.
func (m *master) disconnected(client rueidis.Client) { m.broke(client, errClosed) }

// ask runs a script at the master and waits for its answer, as long as there is hope for one, which is a few seconds at
// most. If the connection has never been there it is waited for, until ctx ends; once the request is sent ctx does not
// matter, because its outcome does.
//
// The error is a [rueidis.RedisError] if that is what the master has answered, an unsentError or a doubtError.
func (m *master) ask(ctx context.Context, script *rueidis.Lua, keys, args []string) (rueidis.RedisMessage, error) {
	select {
	case <-m.first:
	case <-ctx.Done():
		return rueidis.RedisMessage{}, unsentError{errConnecting}
	}
	m.mu.Lock()
	client, why := m.client, m.why
	m.mu.Unlock()
	if client == nil {
		return rueidis.RedisMessage{}, unsentError{why}
	}

	start := time.Now()
	reply, err := m.exec(client, script, keys, args)
	if !inDoubt(err) {
		m.mu.Lock()
		m.pace.note(time.Since(start))
		m.mu.Unlock()
	}
	return reply, err
}

// take is ask with takeScript, when it is its turn. If ctx ends before that, the request is not sent.
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
		m.broke(client, err)
		return rueidis.RedisMessage{}, doubtError{err}
	}
	return result.ToMessage()
}

// removeLater has an entry removed as soon as the master answers.
func (m *master) removeLater(d *pendingRemoval) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending[d] = struct{}{}
	m.kick.Set()
}

func (m *master) hasPending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pending) > 0
}

// removePending carries out the pending removals. It returns the error that the connection broke with, if it did.
func (m *master) removePending(client rueidis.Client) error {
	m.mu.Lock()
	due := slices.Collect(maps.Keys(m.pending))
	m.mu.Unlock()
	broke := make(chan error, len(due))
	var all sync.WaitGroup
	for _, d := range due {
		all.Go(func() {
			if doubt, ok := errors.AsType[doubtError](m.removeOne(client, d)); ok {
				broke <- doubt.error
			}
		})
	}
	all.Wait()
	close(broke)
	return <-broke
}

// removeOne carries out one. What cannot be sent, or not be done just now, stays pending; what the master refuses for good does
// not:
// the entry goes when its time is over.
func (m *master) removeOne(client rueidis.Client, d *pendingRemoval) error {
	reply, err := m.exec(client, leaveScript, d.keys, d.args)
	if inDoubt(err) || passes(err) {
		return err
	}
	if err != nil {
		m.logger.LogAttrs(context.Background(), slog.LevelWarn,
			"an entry could not be taken out; it goes when its time is over", slog.Any("error", err))
	}
	m.mu.Lock()
	delete(m.pending, d)
	m.mu.Unlock()
	d.done(reply, err)
	return err
}

// await returns the connection when there is one, nil when ctx ends.
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

// state returns why there is no connection, nil if there is one.
func (m *master) state() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		return nil
	}
	return m.why
}

// unwrapDial returns what connecting failed of, without the address, which messages name anyway.
func unwrapDial(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
