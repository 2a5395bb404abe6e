package stile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
)

// LockAll takes the locks of all names, each like [Mutex.Lock], or none of them. Callers of LockAll do not
// deadlock with each other, in whatever order they give the names. On failure nothing is held, as with
// Mutex.Lock. It is an error to give no name, or one name twice.
//
// On etcd, ZooKeeper, a single Redis server, and in memory, LockAll joins the lines of all names in one
// step. It keeps the locks that it gets while it waits for the others. If it loses one of them, it leaves
// all lines and joins them again. The store limits the number of names: 60 on etcd, 500 on Redis, about a
// thousand on ZooKeeper.
//
// Redis Cluster and Redlock have no such step. There LockAll takes the locks one after another, sorted by
// name, which takes about as long as that many calls of Lock. If it loses one while it waits for the
// next, it releases all and begins again.
//
// A caller that holds one lock and then calls LockAll or Lock for another may deadlock with a caller of
// LockAll that wants both, in whatever order it gives the names. Take such locks with one call of LockAll.
func (c *Client) LockAll(ctx context.Context, names ...string) (*MultiHold, error) {
	return c.lockAll(ctx, names, false)
}

// TryLockAll is LockAll, but does not wait for the locks. If one of them is not free, it takes none and
// returns the [*HeldError] of [Mutex.TryLock].
func (c *Client) TryLockAll(ctx context.Context, names ...string) (*MultiHold, error) {
	return c.lockAll(ctx, names, true)
}

func (c *Client) lockAll(ctx context.Context, names []string, try bool) (*MultiHold, error) {
	names = slices.Sorted(slices.Values(names))
	if err := checkNames(names); err != nil {
		return nil, err
	}
	for {
		m, err := c.lockAllOnce(ctx, names, try)
		switch {
		case err == nil:
			return m, nil
		case !errors.Is(err, errLostOne):
			return nil, err
		case ctx.Err() != nil:
			return nil, fmt.Errorf("stile: lock several names: %w: %w", ctx.Err(), err)
		}
	}
}

func (c *Client) lockAllOnce(ctx context.Context, names []string, try bool) (*MultiHold, error) {
	m := &MultiHold{lost: make(chan struct{})}
	taken := false
	defer func() {
		if !taken { // also if a hook panicked
			_ = m.Release(ctx)
		}
	}()
	take := m.takeEach
	if c.caps.EnqueueAll != nil {
		take = m.takeTogether
	}
	err := take(ctx, c, names, try)
	if err == nil {
		err = m.begin(ctx)
	}
	taken = err == nil
	return m, err
}

func checkNames(names []string) error {
	if len(names) == 0 {
		return errors.New("stile: lock several names: no name is given")
	}
	for i, name := range names {
		if err := store.CheckName(name); err != nil {
			return fmt.Errorf("stile: %w", err)
		}
		if i > 0 && name == names[i-1] {
			return fmt.Errorf("stile: lock %q: it is given twice; locks are not re-entrant", name)
		}
	}
	return nil
}

// errLostOne means that one of several locks was lost before all were held.
var errLostOne = errors.New("one of several locks was lost")

// A MultiHold is what [Client.LockAll] returns: several locks that are held. It ends when they are
// released, or when one of them is lost. It is safe for concurrent use.
type MultiHold struct {
	holds []*Hold // sorted by name

	ctx  context.Context
	end  context.CancelCauseFunc
	stop []func() bool // end the observation of the holds

	mu   sync.Mutex
	loss *LostError    // the first one
	lost chan struct{} // closed when loss is set
}

// takeEach takes the locks one after another. On failure the ones that it has taken must be given up.
func (m *MultiHold) takeEach(ctx context.Context, c *Client, names []string, try bool) error {
	waiting, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	for _, name := range names {
		h, err := locker{client: c, name: name, ownEntry: true}.lock(m.withHolds(waiting), try)
		if cause := context.Cause(waiting); err != nil && errors.Is(cause, errLostOne) {
			return cause
		}
		if err != nil {
			return err
		}
		m.holds = append(m.holds, h)
		defer context.AfterFunc(h.Context(), func() { giveUp(fmt.Errorf("%w: %w", errLostOne, context.Cause(h.Context()))) })()
	}
	return nil
}

// begin observes the holds from now on.
func (m *MultiHold) begin(ctx context.Context) error {
	m.ctx, m.end = context.WithCancelCause(context.WithoutCancel(m.withHolds(ctx)))
	for _, h := range m.holds {
		m.stop = append(m.stop, context.AfterFunc(h.Context(), func() { m.lose(h) }))
	}
	if !m.Valid() {
		return errLostOne
	}
	return nil
}

// withHolds returns a context that comes from the last hold, and so from all of them: see outerHold. It has
// no other values of theirs.
func (m *MultiHold) withHolds(ctx context.Context) context.Context {
	if len(m.holds) == 0 {
		return ctx
	}
	return holdContext{ctx, m.holds[len(m.holds)-1]}
}

func (m *MultiHold) unobserve() {
	for _, stop := range m.stop {
		stop()
	}
}

// lose records that a hold has been lost.
func (m *MultiHold) lose(h *Hold) {
	loss, ok := errors.AsType[*LostError](h.Err())
	if !ok {
		return // it was released
	}
	m.mu.Lock()
	if m.loss == nil {
		m.loss = loss
		close(m.lost)
	}
	m.mu.Unlock()
	m.end(loss)
}

// Names returns the names of the locks, sorted.
func (m *MultiHold) Names() []string {
	names := make([]string, 0, len(m.holds))
	for _, h := range m.holds {
		names = append(names, h.Name())
	}
	return names
}

// Token returns the fencing token of one of the locks, as [Hold.Token] does; zero if the name is not
// one of them.
func (m *MultiHold) Token(name string) uint64 {
	for _, h := range m.holds {
		if h.Name() == name {
			return h.Token()
		}
	}
	return 0
}

// Context returns a context that ends when the first of the locks is lost, with its [*LostError] as the
// cause, or with [ErrReleased] after Release. It has the values of LockAll's context. When it has ended
// because of a loss, the other locks stay held until they are released or lost too.
func (m *MultiHold) Context() context.Context { return m.ctx }

// Err returns the [*LostError] of the first lock that was lost, and nil if none was.
func (m *MultiHold) Err() error {
	for _, h := range m.holds {
		if err := h.Err(); err != nil {
			m.lose(h)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loss == nil {
		return nil
	}
	return m.loss
}

// Lost returns a channel that is closed when one of the locks is lost. It stays open after a release.
func (m *MultiHold) Lost() <-chan struct{} { return m.lost }

// Valid reports whether all locks are held now, as [Hold.Valid] does for one.
func (m *MultiHold) Valid() bool {
	return !slices.ContainsFunc(m.holds, func(h *Hold) bool { return !h.Valid() })
}

// Deadline returns when the first of the locks will be lost if no further renewal is confirmed, as
// [Hold.Deadline] does for one.
func (m *MultiHold) Deadline() time.Time {
	first := m.holds[0].Deadline()
	for _, h := range m.holds[1:] {
		if d := h.Deadline(); d.Before(first) {
			first = d
		}
	}
	return first
}

// Terms returns the terms of the session that all the locks belong to, as [Hold.Terms] does.
func (m *MultiHold) Terms() store.Terms { return m.holds[0].Terms() }

// Release gives all locks up, and behaves like [Hold.Release] for each: it returns their errors,
// joined, and nil if all were held until now. The requests are sent side by side. If Hold.Release would allow
// two seconds, it allows them for all requests together. Releasing again returns nil.
func (m *MultiHold) Release(ctx context.Context) error {
	return m.release(ctx, EndReleased, func(t store.Ticket) func(context.Context) error { return t.Withdraw })
}

// ReleaseAfter gives all locks up like [MultiHold.Release], but they stay closed to others for d, as
// with [Hold.ReleaseAfter]. If the store does not support it, the error matches [ErrUnsupported], and
// all locks are still held.
func (m *MultiHold) ReleaseAfter(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return m.Release(ctx)
	}
	if err := m.holds[0].checkReleaseAfter(d); err != nil { // the others are of the same mode
		return err
	}
	return m.release(ctx, EndReleasedAfter, func(t store.Ticket) func(context.Context) error {
		return func(ctx context.Context) error { return t.Extensions().WithdrawAfter(ctx, d) }
	})
}

// release ends all holds.
func (m *MultiHold) release(ctx context.Context, reason EndReason, withdraw func(store.Ticket) func(context.Context) error) error {
	if len(m.holds) == 0 { // no lock was taken
		return nil
	}
	ctx, cancel := m.holds[len(m.holds)-1].withGrace(ctx) // Context comes from the last hold: see withHolds
	defer cancel()
	m.unobserve()
	if m.end != nil { // otherwise not all locks were taken
		m.end(ErrReleased)
	}
	var errs []error
	var all []*releasing
	for _, h := range m.holds {
		r, err := h.startRelease(false)
		if r != nil {
			all = append(all, r)
		}
		errs = append(errs, err)
	}
	all = slices.DeleteFunc(all, func(r *releasing) bool {
		return r.releaseLater(ctx, reason, withdraw(r.hold.tenure.ticket))
	})
	var withdrawing sync.WaitGroup
	for _, r := range all {
		withdrawing.Go(func() { r.err = withdraw(r.hold.tenure.ticket)(ctx) }) // its entry has no other hold
	}
	withdrawing.Wait()
	for _, r := range all {
		r.hold.place.queue.leave(r.hold.place)
	}
	return errors.Join(append(errs, reportEnds(all, reason)...)...)
}

// reportEnds reports the ends of all holds, also if the logger or a hook panics.
func reportEnds(all []*releasing, reason EndReason) (errs []error) {
	if len(all) == 0 {
		return nil
	}
	defer func() { errs = append(errs, reportEnds(all[1:], reason)...) }()
	return []error{all[0].hold.reportEnd(reason, all[0].lost, all[0].err)}
}
