package stile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/store"
)

// A delay is the time for which a lock stays closed after holds that ended without a release.
type delay struct {
	until   bootclock.Instant
	cleared chan struct{} // closed when the delay has passed and the markers are cleared
}

// left returns how much longer the lock stays closed; zero or negative if it is open.
func (d *delay) left() time.Duration { return d.until.Sub(bootclock.Now()) }

// A markerKey identifies the marker of one hold.
type markerKey struct {
	name  string
	order uint64
}

// mark leaves the marker of this entry in the store; a client with a LockDelay holds a lock only
// once its marker is there. While there are markers of unreleased holds, mark waits for them to be
// cleared; the entry stays in the line meanwhile and keeps others out. If try is set, it does not
// wait.
func (t *tenure) mark(ctx context.Context, try bool) error {
	c, name := t.queue.client, t.queue.name
	mark := t.ticket.Extensions().Mark
	for {
		unreleased, err := mark(ctx)
		switch {
		case errors.Is(err, store.ErrSessionLost):
			return t.sessionEnded(err)
		case errors.Is(err, store.ErrGone):
			t.withdraw() // until then the session keeps its record of the entry
			return t.rejoinError(err)
		case err != nil:
			return err
		case len(unreleased) == 0:
			return nil
		}
		last := unreleased[len(unreleased)-1]
		d := c.delayAfter(name, unreleased)
		left := d.left()
		if try && left > 0 {
			return closedError(name, last, left)
		}
		c.notifier.post(func() {
			c.log(slog.LevelWarn, "lock was not released by its last holder and stays closed for a while",
				slog.String("lock", name), slog.String("holder", last.Owner.String()), slog.Duration("left", left))
		})
		if err := t.wait(ctx, d.cleared); err != nil {
			return err
		}
	}
}

// delayAfter returns the delay to wait for, given the unreleased holds of a name. For holds that
// this client has not seen before, the delay starts now.
func (c *Client) delayAfter(name string, unreleased []store.Entry) *delay {
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := &delay{until: bootclock.Now().Add(c.opts.LockDelay), cleared: make(chan struct{})}
	var longest *delay
	var newOrders []uint64
	for _, e := range unreleased {
		end := markerKey{name, e.Order}
		d := c.delays[end]
		if d == nil {
			d = fresh
			c.delays[end] = d
			newOrders = append(newOrders, e.Order)
		}
		if longest == nil || longest.until.Before(d.until) {
			longest = d
		}
	}
	if len(newOrders) > 0 {
		c.work.Go(func() { c.waitOut(fresh, name, newOrders) })
	}
	return longest
}

// clearTimeout bounds the request that clears markers. If it fails, the delay is applied again.
const clearTimeout = 10 * time.Second

// waitOut waits until the delay has passed and clears its markers. It does so even if no goroutine
// of this client still wants the lock, so that the lock also opens for TryLock. If the client is
// closed meanwhile, other clients clear the markers.
func (c *Client) waitOut(d *delay, name string, orders []uint64) {
	defer close(d.cleared)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, order := range orders {
			delete(c.delays, markerKey{name, order})
		}
	}()
	for left := d.left(); left > 0; left = d.left() {
		select {
		case <-time.After(min(left, time.Second)): // timers stop while the machine is suspended
		case <-c.life.Done():
			return
		}
	}
	ctx, cancel := context.WithTimeout(c.life, clearTimeout)
	defer cancel()
	if err := c.caps.ClearMarks(ctx, name, orders); err != nil && c.life.Err() == nil {
		c.notifier.post(func() {
			c.log(slog.LevelWarn, "could not clear the markers of holds that were not released; the lock delay will be applied again",
				slog.String("lock", name), slog.Any("error", err))
		})
	}
}

// closedError returns the error of TryLock for a lock whose last hold was not released.
func closedError(name string, last store.Entry, left time.Duration) *HeldError {
	holder := entryOf(last)
	who := cmp.Or(last.Owner.String(), "session "+last.Session)
	return &HeldError{
		Name:      name,
		Holder:    &holder,
		ClosedFor: left,
		inner: fmt.Errorf("lock %q is closed for %v more: it was not released by %s, who held it last",
			name, left.Round(time.Millisecond), who),
	}
}
