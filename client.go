package stile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
)

// A Client takes locks on one store. Make one per store and process and share it: all its holds are
// renewed with one session. Goroutines that want the same lock queue in the client first; for a mutex
// only the first of them joins the line in the store. Two clients of one process compete in the store,
// as those of two processes do.
//
// A Client is safe for concurrent use. [New] makes one; [Client.Close] ends it.
type Client struct {
	store store.Store
	caps  store.Capabilities
	opts  Options

	// life ends when the client is closed.
	life  context.Context
	close context.CancelFunc
	work  sync.WaitGroup // calls under way and background goroutines

	// giveUpReleases ends when Close does not wait any longer for releases in the background.
	giveUpReleases context.Context
	endReleases    context.CancelFunc

	notifier  notifier  // calls the logger and the hooks
	publisher publisher // publishes the owners of holds in the store

	mu       sync.Mutex
	calls    map[*call]struct{} // under way
	opening  *opening           // the attempt under way; nil if there is none
	current  *keeper.Session    // nil before the first one, and from when its loss was noticed until the next one is open
	sessions []*keeper.Session  // current, and lost ones that may not have finished
	queues   map[string]*queue  // by name; a queue exists while it has places
	delays   map[markerKey]*delay

	reopening keeper.Reopening // used only by the goroutine that makes the attempt opening
}

// New returns a client on the store st. It does not contact the store: the first call that needs a
// session opens it. A nil opts means the defaults. The error lists everything that is wrong with
// opts.
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
		calls:  make(map[*call]struct{}),
		queues: make(map[string]*queue),
		delays: make(map[markerKey]*delay),
	}
	c.life, c.close = context.WithCancel(context.Background())
	c.giveUpReleases, c.endReleases = context.WithCancel(context.Background())
	return c, nil
}

// Close waits for releases in the background ([Options.ReleaseInBackground]), and ends the client and its
// session. Holds that have not been released are lost, with reason
// [LostClosed], and calls under way return an error matching [ErrClosed]. Because the session is
// ended in the store, the next waiters need not wait for it to expire. Release all holds before Close:
// then each release is confirmed, and no [Options.LockDelay] applies.
//
// ctx bounds that wait and the request that ends the session. If ctx has already ended, Close allows two
// seconds, so that defer client.Close(ctx) also works after a signal. Close also waits for pending hooks and
// log messages, at most two seconds.
//
// On failure the client is closed nevertheless, and the store ends its session when the TTL has
// passed. Close may be called again to retry. It does not close the store's connection.
func (c *Client) Close(ctx context.Context) error {
	ctx, cancel := withGrace(ctx)
	defer cancel()
	c.mu.Lock()
	c.close() // under the mutex: no call starts after this
	for call := range c.calls {
		call.cancel(ErrClosed)
	}
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, c.endReleases)
	c.work.Wait() // calls under way end at once; then no more sessions are opened
	stop()

	c.mu.Lock()
	sessions := slices.Clone(c.sessions)
	c.mu.Unlock()
	var errs []error
	for _, s := range sessions {
		errs = append(errs, s.Close(ctx))
	}
	c.notifier.wait(ctx, hooksTimeout)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stile: close: %w", err)
	}
	return nil
}

// hooksTimeout is how long Close waits for pending hooks. It is bounded because a hook that calls
// Close would wait for itself.
const hooksTimeout = 2 * time.Second

// grace is how long requests that give something up may take after their context has ended.
const grace = 2 * time.Second

// withGrace returns ctx or, if it has already ended, a context that lasts two seconds more.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), grace)
}

// An opening is an attempt to open a session. Calls that need a session meanwhile wait for it and
// share its outcome, so that many calls wait for an unreachable store no longer than one does.
type opening struct {
	done       chan struct{} // closed when session or err is set
	session    *keeper.Session
	err        error
	callerOnly bool // err concerns only the caller that made the attempt
}

// session returns the current session, and opens one if there is none or it is lost.
func (c *Client) session(ctx context.Context) (*keeper.Session, error) {
	for {
		c.mu.Lock()
		if c.current != nil && c.current.Valid() {
			defer c.mu.Unlock()
			return c.current, nil
		}
		o := c.opening
		if o == nil {
			o = &opening{done: make(chan struct{})}
			c.opening = o
			c.mu.Unlock()
			c.open(ctx, o)
			return o.session, o.err
		}
		c.mu.Unlock()
		select {
		case <-o.done:
			if !o.callerOnly {
				return o.session, o.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Terms returns what the store has granted the client's session: its TTL, and how much earlier than the
// TTL the store may end it. It opens a session if there is no valid one. A session that follows a lost one
// may have other terms; see [Hold.Terms] for those of a hold.
func (c *Client) Terms(ctx context.Context) (store.Terms, error) {
	call, err := c.track(ctx)
	if err != nil {
		return store.Terms{}, fmt.Errorf("stile: %w", err)
	}
	defer call.done()
	s, err := c.session(call.ctx)
	if err != nil {
		return store.Terms{}, fmt.Errorf("stile: open session: %w", call.withCause(err))
	}
	return s.Store().Terms(), nil
}

func (c *Client) open(ctx context.Context, o *opening) {
	o.callerOnly = true // in case the store panics
	defer func() {
		c.mu.Lock()
		c.opening = nil
		if o.session != nil {
			c.current = o.session
			c.sessions = append(slices.DeleteFunc(c.sessions, isDone), o.session)
		}
		c.mu.Unlock()
		close(o.done)
		if o.session != nil {
			c.log(slog.LevelDebug, "session opened", slog.String("session", o.session.Store().ID()))
		}
	}()
	if o.err = c.awaitReopening(ctx); o.err != nil {
		return
	}
	s, err := keeper.Open(ctx, c.store, store.SessionOptions{TTL: c.opts.TTL}, c.callbacks())
	if err == nil {
		c.reopening.Opened(bootclock.Now())
	}
	o.session, o.err, o.callerOnly = s, err, err != nil && ctx.Err() != nil
}

// awaitReopening waits until a session may be opened. It fails if ctx ends.
func (c *Client) awaitReopening(ctx context.Context) error {
	c.mu.Lock()
	lost := c.current
	c.current = nil // so that another attempt does not count its loss again
	c.mu.Unlock()
	if lost != nil {
		c.reopening.Lost(bootclock.Now(), lost.Store().Terms().TTL, rand.Float64())
	}
	left, inRow := c.reopening.Wait(bootclock.Now()), c.reopening.InRow()
	if wait := left; lost != nil && wait > 0 {
		c.notifier.post(func() {
			c.log(slog.LevelWarn, "sessions were lost soon after they were opened; waiting before the next one",
				slog.Int("lost", inRow), slog.Duration("wait", wait))
		})
	}
	for ; left > 0; left = c.reopening.Wait(bootclock.Now()) {
		select {
		case <-time.After(min(left, time.Second)): // timers stop while the machine is suspended
		case <-ctx.Done():
			return fmt.Errorf("waiting because the last %d sessions were lost soon after they were opened: %w", inRow, ctx.Err())
		}
	}
	return nil
}

// check returns an error matching ErrClosed if the client is closed.
func (c *Client) check() error {
	if c.life.Err() != nil {
		return fmt.Errorf("stile: %w", ErrClosed)
	}
	return nil
}

func isDone(s *keeper.Session) bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// callbacks returns the callbacks that pass a session's events to the logger and the hooks.
func (c *Client) callbacks() keeper.Callbacks {
	hooks := &c.opts.Hooks
	var id string
	renewed := func(e RenewalEvent) {
		if hooks.SessionRenewed != nil {
			e.Session = id
			c.notifier.post(func() { hooks.SessionRenewed(e) })
		}
	}
	return keeper.Callbacks{
		Opened: func(session string) {
			id = session
			if hooks.SessionOpened != nil {
				c.notifier.post(func() { hooks.SessionOpened(SessionEvent{id}) })
			}
		},
		Confirmed: func(roundTrip, left time.Duration) { renewed(RenewalEvent{RoundTrip: roundTrip, Left: left}) },
		Unconfirmed: func(err error, left time.Duration) {
			c.notifier.post(func() { c.log(slog.LevelDebug, "renewal not confirmed", slog.Any("error", err)) })
			renewed(RenewalEvent{Left: left, Err: err})
		},
		AtRisk: func(err error, left time.Duration) {
			c.giveUpKept()
			c.notifier.post(func() {
				c.log(slog.LevelWarn, "renewal overdue", slog.Duration("left", left), slog.Any("error", err))
				if hooks.SessionAtRisk != nil {
					hooks.SessionAtRisk(RiskEvent{Session: id, Left: left, Err: err})
				}
			})
		},
		Recovered: func() {
			c.notifier.post(func() {
				c.log(slog.LevelDebug, "session confirmed again")
				if hooks.SessionRecovered != nil {
					hooks.SessionRecovered(SessionEvent{id})
				}
			})
		},
		Lost: func(err *keeper.LostError) {
			c.notifier.post(func() {
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
