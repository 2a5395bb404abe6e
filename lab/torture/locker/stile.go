package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/storeurl"
)

// stileLocker is Stile. After any error of its Lock, nothing is held.
type stileLocker struct {
	conn     *storeurl.Conn
	client   *stile.Client
	borrowed bool // the connections are those of another locker
	keeps    bool // the client keeps locks
}

func openStile(ctx context.Context, c Config, worker string) (Locker, error) {
	conn, err := storeurl.Open(ctx, c.URL, nil)
	if err != nil {
		return nil, err
	}
	client, err := newClient(conn, c, worker)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &stileLocker{conn: conn, client: client, keeps: c.Linger > 0}, nil
}

func newClient(conn *storeurl.Conn, c Config, worker string) (*stile.Client, error) {
	owner := stile.DefaultOwner()
	owner.Labels = map[string]string{"worker": worker}
	opts := &stile.Options{TTL: c.TTL, Linger: c.Linger, Owner: owner}
	if c.OnSession != nil {
		opts.Hooks.SessionOpened = func(stile.SessionEvent) { c.OnSession() }
	}
	return stile.New(conn.Store, opts)
}

func (l *stileLocker) share(c Config, worker string) (Locker, error) {
	client, err := newClient(l.conn, c, worker)
	if err != nil {
		return nil, err
	}
	return &stileLocker{conn: l.conn, client: client, borrowed: true, keeps: c.Linger > 0}, nil
}

// ClientOf returns the client of a Locker that is Stile's, and what its store can do; nil for the
// other lockers. It is for the workloads that use more than exclusive locks, which only Stile has.
func ClientOf(l Locker) (*stile.Client, store.Capabilities) {
	if s, ok := l.(*stileLocker); ok {
		return s.client, s.conn.Store.Capabilities()
	}
	return nil, store.Capabilities{}
}

// HoldOf returns a hold of Stile's as a Hold.
func HoldOf(h *stile.Hold) Hold { return stileHold{h} }

func (l *stileLocker) Offers() history.Offers {
	caps := l.conn.Store.Capabilities()
	offers := history.Offers{
		Tokens: caps.Fencing, Deadlines: true, Loss: true, Proof: true, Fair: caps.Fair, Sets: caps.EnqueueAll != nil, Keeps: l.keeps,
	}
	if caps.Fencing {
		offers.TurnBits = store.TurnBits
	}
	return offers
}

func (l *stileLocker) Lock(ctx context.Context, name string) (Hold, error) {
	h, err := l.client.Mutex(name).Lock(ctx)
	if err != nil {
		return nil, err
	}
	return stileHold{h}, nil
}

func (l *stileLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	h, err := l.client.Mutex(name).TryLock(ctx)
	switch {
	case errors.Is(err, stile.ErrHeld):
		return nil, fmt.Errorf("%w: %w", ErrTaken, err)
	case err != nil:
		return nil, err
	}
	return stileHold{h}, nil
}

func (l *stileLocker) Close(ctx context.Context) error {
	err := l.client.Close(ctx)
	if !l.borrowed {
		err = errors.Join(err, l.conn.Close())
	}
	return err
}

// Abandon closes the connections first. Then closing the client ends its goroutines, and its last
// requests reach no server. Connections of another locker stay open, and Abandon is like Close. So it is
// on Redis, whose client leaks a connection that it is making when it is closed; Stile prevents that only
// if its own client is closed first.
func (l *stileLocker) Abandon(ctx context.Context) {
	if l.borrowed || l.conn.Store.Capabilities().Kind == "redis" {
		_ = l.Close(ctx)
		return
	}
	_ = l.conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_ = l.client.Close(ctx)
}

type stileHold struct{ hold *stile.Hold }

func (h stileHold) Token() uint64 { return h.hold.Token() }

// Until reads the clock before it reads the deadline, so that the result is too early, never too
// late, by the time that passes in between.
func (h stileHold) Until() int64 {
	now := history.Now()
	return now + int64(time.Until(h.hold.Deadline()))
}

func (h stileHold) Valid() bool           { return h.hold.Valid() }
func (h stileHold) Lost() <-chan struct{} { return h.hold.Lost() }

func (h stileHold) Why() string {
	if err := h.hold.Err(); err != nil {
		return err.Error()
	}
	return "the deadline has passed" // Lost will be closed soon
}

func (h stileHold) Release(ctx context.Context) error {
	return lostError(h.hold.Release(ctx))
}

// lostError makes an error that says that a hold was lost match [ErrLost].
func lostError(err error) error {
	if errors.Is(err, stile.ErrLost) {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

// HoldOfSet returns one of several locks that are held together as a Hold. It is valid as long as all
// of them are. Its Release must not be called: they are released together.
func HoldOfSet(m *stile.MultiHold, name string) Hold { return setHold{m, name} }

type setHold struct {
	set  *stile.MultiHold
	name string
}

func (h setHold) Token() uint64 { return h.set.Token(h.name) }

// Until is like [stileHold.Until].
func (h setHold) Until() int64 {
	now := history.Now()
	return now + int64(time.Until(h.set.Deadline()))
}

func (h setHold) Valid() bool           { return h.set.Valid() }
func (h setHold) Lost() <-chan struct{} { return h.set.Lost() }

func (h setHold) Why() string {
	if err := h.set.Err(); err != nil {
		return err.Error()
	}
	return "the deadline has passed"
}

func (h setHold) Release(context.Context) error {
	return errors.New("one of several locks is not released alone")
}
