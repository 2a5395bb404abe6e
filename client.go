package stile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
)

// Client takes locks on one store. Make one for each store and process, and share it: all its holds are renewed with one
// session, and goroutines that want the same lock queue in the process before they queue in the store.
//
// A Client is safe for concurrent use. Use [New] to make one and [Client.Close] to end it.
type Client struct {
	store store.Store
	caps  store.Capabilities
	opts  Options

	// life ends when the client is closed.
	life  context.Context
	close context.CancelFunc
	work  sync.WaitGroup // what goes on in the background

	news      news      // for the logger and the hooks
	publisher publisher // for others

	mu       sync.Mutex
	opening  *opening // under way; nil if none is
	current  *keeper.Session
	sessions []*keeper.Session // current, and lost ones that may not have come to their end
	queues   map[string]*queue // of the names that somebody here holds or waits for
	delays   map[uncleanEnd]*delay
}

// New returns a client on the store st. It opens no session before it is needed. A nil opts means the defaults. Everything
// that is wrong with opts is in the error.
func New(st store.Store, opts *Options) (*Client, error) {
	if st == nil {
		return nil, errors.New("stile: no store")
	}
	caps := st.Capabilities()
	complete, err := opts.complete(caps)
	if err != nil {
		return nil, fmt.Errorf("stile: bad options: %w", err)
	}
	c := &Client{
		store:  st,
		caps:   caps,
		opts:   complete,
		queues: make(map[string]*queue),
		delays: make(map[uncleanEnd]*delay),
	}
	c.life, c.close = context.WithCancel(context.Background())
	return c, nil
}

// Close ends the client. What is held is lost, with reason [LostClosed]; calls that wait return an error matching
// [ErrClosed]; and the session is ended in the store, so that the next in line need not wait for it to expire. Release holds
// first to end them in order, and to spare the others [Options.LockDelay].
//
// ctx bounds the request that ends the session. If ctx has ended already, Close takes two seconds for it, so that
// defer client.Close(ctx) also works after a signal. Close waits for hooks that have not been told everything yet, as long as
// ctx lasts and two seconds at most. After a failure the client is closed all the same, and its session ends when the TTL has
// passed; Close may be called again to try again. Close does not close the store's connection.
func (c *Client) Close(ctx context.Context) error {
	ctx, cancel := graced(ctx)
	defer cancel()
	c.mu.Lock()
	c.close() // with the mutex, so that no call begins any more
	c.mu.Unlock()
	c.work.Wait() // calls under way end at once; after that nobody opens a session

	c.mu.Lock()
	sessions := slices.Clone(c.sessions)
	c.mu.Unlock()
	var errs []error
	for _, s := range sessions {
		errs = append(errs, s.Close(ctx))
	}
	c.news.wait(ctx, patienceWithHooks)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stile: close: %w", err)
	}
	return nil
}

// patienceWithHooks is how long Close waits at most for the hooks to be told everything. One that calls Close would wait for
// itself.
const patienceWithHooks = 2 * time.Second

// graced returns ctx or, if it has ended already, one that lasts for two seconds more.
func graced(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
}

// opening is an attempt to open a session. Those who need one meanwhile wait for it and share its outcome, so that nobody
// waits for a store that cannot be reached longer than the store does.
type opening struct {
	over    chan struct{} // closed when there is an outcome
	session *keeper.Session
	err     error
	mine    bool // it failed because of the one who made it, and says nothing to others
}

// session returns the session to enqueue with, opening one if there is none that is alive.
func (c *Client) session(ctx context.Context) (*keeper.Session, error) {
	for {
		c.mu.Lock()
		if c.current != nil && c.current.Valid() {
			defer c.mu.Unlock()
			return c.current, nil
		}
		o := c.opening
		if o == nil {
			o = &opening{over: make(chan struct{})}
			c.opening = o
			c.mu.Unlock()
			c.open(ctx, o)
			return o.session, o.err
		}
		c.mu.Unlock()
		select {
		case <-o.over:
			if !o.mine {
				return o.session, o.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Terms returns what the store has granted the client's session, and opens one if there is none that is valid. For TTL less
// Slack after each renewal the store lets nobody else in. A session that follows a lost one may have other terms: those of a
// hold are [Hold.Terms].
func (c *Client) Terms(ctx context.Context) (store.Terms, error) {
	call, err := c.begin(ctx)
	if err != nil {
		return store.Terms{}, fmt.Errorf("stile: %w", err)
	}
	defer call.done()
	s, err := c.session(call.ctx)
	if err != nil {
		return store.Terms{}, fmt.Errorf("stile: open session: %w", call.ended(err))
	}
	return s.Store().Terms(), nil
}

func (c *Client) open(ctx context.Context, o *opening) {
	o.mine = true // if the store panics
	defer func() {
		c.mu.Lock()
		c.opening = nil
		if o.session != nil {
			c.current = o.session
			c.sessions = append(slices.DeleteFunc(c.sessions, over), o.session)
		}
		c.mu.Unlock()
		close(o.over)
		if o.session != nil {
			c.log(slog.LevelDebug, "session opened", slog.String("session", o.session.Store().ID()))
		}
	}()
	s, err := keeper.Open(ctx, c.store, store.SessionOptions{TTL: c.opts.TTL}, c.watcher())
	o.session, o.err, o.mine = s, err, err != nil && ctx.Err() != nil
}

// check returns an error if the client is closed.
func (c *Client) check() error {
	if c.life.Err() != nil {
		return fmt.Errorf("stile: %w", ErrClosed)
	}
	return nil
}

func over(s *keeper.Session) bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// watcher passes on what happens to a session.
func (c *Client) watcher() keeper.Watcher {
	hooks := &c.opts.Hooks
	var id string
	renewed := func(e RenewalEvent) {
		if hooks.SessionRenewed != nil {
			e.Session = id
			c.news.tell(func() { hooks.SessionRenewed(e) })
		}
	}
	return keeper.Watcher{
		Opened: func(session string) {
			id = session
			if hooks.SessionOpened != nil {
				c.news.tell(func() { hooks.SessionOpened(SessionEvent{id}) })
			}
		},
		Confirmed: func(roundTrip, left time.Duration) { renewed(RenewalEvent{RoundTrip: roundTrip, Left: left}) },
		Unconfirmed: func(err error, left time.Duration) {
			c.news.tell(func() { c.log(slog.LevelDebug, "renewal not confirmed", slog.Any("error", err)) })
			renewed(RenewalEvent{Left: left, Err: err})
		},
		AtRisk: func(err error, left time.Duration) {
			c.news.tell(func() {
				c.log(slog.LevelWarn, "renewal overdue", slog.Duration("left", left), slog.Any("error", err))
				if hooks.SessionAtRisk != nil {
					hooks.SessionAtRisk(RiskEvent{Session: id, Left: left, Err: err})
				}
			})
		},
		Recovered: func() {
			c.news.tell(func() {
				c.log(slog.LevelDebug, "session confirmed again")
				if hooks.SessionRecovered != nil {
					hooks.SessionRecovered(SessionEvent{id})
				}
			})
		},
		Lost: func(err *keeper.LostError) {
			c.news.tell(func() {
				c.log(slog.LevelWarn, "session lost", slog.Any("error", err))
				if hooks.SessionLost != nil {
					hooks.SessionLost(SessionLossEvent{Session: id, Reason: Reason(err.Reason), Err: err.Err})
				}
			})
		},
	}
}

func (c *Client) log(level slog.Level, msg string, attrs ...slog.Attr) {
	c.opts.Logger.LogAttrs(context.Background(), level, msg, attrs...)
}
