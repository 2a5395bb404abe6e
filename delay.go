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

// delay is the time for which a lock stays closed because holds of it have ended without having been released.
type delay struct {
	until bootclock.Instant
	over  chan struct{} // closed when until has come and the markers of those holds have been cleared
}

// left is how much longer the lock stays closed; zero or negative if it does not.
func (d *delay) left() time.Duration { return d.until.Sub(bootclock.Now()) }

// uncleanEnd is the end of one hold that has left its marker in the store.
type uncleanEnd struct {
	name  string
	order uint64
}

// mark leaves the marker without which nobody with a LockDelay holds the lock. As long as there are markers of holds that
// were not released it waits, with the entry in the line to keep others out. In a try it does not wait.
func (t *tenure) mark(ctx context.Context, try bool) error {
	c, name := t.queue.client, t.queue.name
	mark := t.ticket.Extensions().Mark
	for {
		unreleased, err := mark(ctx)
		switch {
		case errors.Is(err, store.ErrSessionLost):
			return t.sessionEnded(err)
		case errors.Is(err, store.ErrGone):
			t.withdraw() // until then, or until it has heard of it too, the session has it
			return t.joinAgain(err)
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
		c.news.tell(func() {
			c.log(slog.LevelWarn, "lock was not released by its last holder and stays closed for a while",
				slog.String("lock", name), slog.String("holder", last.Owner.String()), slog.Duration("left", left))
		})
		if err := t.wait(ctx, d.over); err != nil {
			return err
		}
	}
}

// delayAfter returns the delay that the given unclean ends of holds make necessary. It begins now for those of which this
// client has not heard yet.
func (c *Client) delayAfter(name string, unreleased []store.Entry) *delay {
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := &delay{until: bootclock.Now().Add(c.opts.LockDelay), over: make(chan struct{})}
	var longest *delay
	var unheardOf []uint64
	for _, e := range unreleased {
		end := uncleanEnd{name, e.Order}
		d := c.delays[end]
		if d == nil {
			d = fresh
			c.delays[end] = d
			unheardOf = append(unheardOf, e.Order)
		}
		if longest == nil || longest.until.Before(d.until) {
			longest = d
		}
	}
	if len(unheardOf) > 0 {
		c.work.Go(func() { c.sitOut(fresh, name, unheardOf) })
	}
	return longest
}

// clearTimeout is how long the store is asked to clear markers. If that fails, they delay the next one again.
const clearTimeout = 10 * time.Second

// sitOut waits until the delay has passed and clears the markers that were the reason for it: whether or not
// anybody here still waits for the lock, so that it also opens for those who only try. A client that is closed meanwhile
// leaves that to others.
func (c *Client) sitOut(d *delay, name string, orders []uint64) {
	defer close(d.over)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, order := range orders {
			delete(c.delays, uncleanEnd{name, order})
		}
	}()
	for left := d.left(); left > 0; left = d.left() {
		select {
		case <-time.After(min(left, time.Second)): // timers stand still while the machine is suspended
		case <-c.life.Done():
			return
		}
	}
	ctx, cancel := context.WithTimeout(c.life, clearTimeout)
	defer cancel()
	if err := c.caps.ClearMarks(ctx, name, orders); err != nil && c.life.Err() == nil {
		c.news.tell(func() {
			c.log(slog.LevelWarn, "could not clear the markers of holds that were not released; the lock delay will be applied again",
				slog.String("lock", name), slog.Any("error", err))
		})
	}
}

// closedError is the error of trying for a lock whose last hold was not released.
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
