package stile

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
)

// releaseTimeout bounds the request of a release in the background. When it has passed, the release is
// reported as not confirmed, and the store continues by itself.
const releaseTimeout = 10 * time.Second

// A removal is a request that removes an entry of this client while its queue already goes on.
type removal struct {
	mode line.Mode
	done chan struct{} // closed when the request has an outcome
}

// releaseLater makes the request of a release in the background, if [Options.ReleaseInBackground] is set and
// the deadline has not passed, and reports whether it does. Afterwards only the store can tell the caller
// whether the lock was held until now.
//
// The hold's place leaves its queue at once, unless the next place is to get an entry that replaces the hold's.
// The next place then joins the line behind the entry, and the store admits it once that is removed.
func (r *releasing) releaseLater(ctx context.Context, reason EndReason, withdraw func(context.Context) error) bool {
	h, t := r.hold, r.hold.tenure
	c, q := t.queue.client, t.queue
	if !c.opts.ReleaseInBackground || reason != EndReleased || !r.last || r.lost != 0 {
		return false
	}
	if r.replacement != nil {
		return c.later(ctx, func() {}, func(ctx context.Context) {
			h.reportEndLater(reason, h.handOn(ctx, r.replacement))
		})
	}
	return q.removeLater(ctx, t, h.place, withdraw, func(err error) { h.reportEndLater(reason, err) })
}

// removeLater withdraws the entry of a tenure that is over, in the background, and then calls done. The place
// that used the tenure leaves the queue at once. It returns false, and does nothing, if the client is closed.
func (q *queue) removeLater(
	ctx context.Context, t *tenure, p *Place, withdraw func(context.Context) error, done func(error),
) bool {
	var r *removal
	start := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		r = q.addRemovalLocked(t.mode)
		q.leaveLocked(p)
	}
	return q.client.later(ctx, start, func(ctx context.Context) {
		err := withdraw(ctx)
		q.removed(r)
		done(err)
	})
}

func (q *queue) addRemovalLocked(mode line.Mode) *removal {
	r := &removal{mode: mode, done: make(chan struct{})}
	q.removals = append(q.removals, r)
	return r
}

// removed ends a removal, and drops a reference to the queue.
func (q *queue) removed(r *removal) {
	q.mu.Lock()
	q.removals = slices.DeleteFunc(q.removals, func(other *removal) bool { return other == r })
	q.mu.Unlock()
	close(r.done)
	q.client.unref(q)
}

// later calls start and then, in the background, f, whose context has the values of ctx. It returns false, and
// calls neither, if the client is closed. [Client.Close] waits for f as long as its own context lasts.
func (c *Client) later(ctx context.Context, start func(), f func(context.Context)) bool {
	c.mu.Lock()
	closed := c.life.Err() != nil
	if !closed {
		c.work.Add(1)
	}
	c.mu.Unlock()
	if closed {
		return false
	}
	start()

	go func() {
		defer c.work.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		defer context.AfterFunc(c.giveUpReleases, cancel)()
		f(ctx)
	}()
	return true
}

// awaitRemovals waits for the removals whose entries would make the store refuse an entry of this mode: all of
// them for a try, otherwise those of another kind of lock.
func (q *queue) awaitRemovals(ctx context.Context, mode line.Mode, try bool) error {
	q.mu.Lock()
	var refusing []*removal
	for _, r := range q.removals {
		if try || !line.SameKind(mode, r.mode) {
			refusing = append(refusing, r)
		}
	}
	q.mu.Unlock()
	for _, r := range refusing {
		select {
		case <-r.done:
		case <-ctx.Done():
			return errGaveUp
		}
	}
	return nil
}

// reportEndLater logs and reports the end of a hold that was released in the background. err is what the store
// has returned.
func (h *Hold) reportEndLater(reason EndReason, err error) {
	c := h.tenure.queue.client
	reason, err = h.endOf(reason, 0, err)
	held := bootclock.Now().Sub(h.acquiredAt)
	c.notifier.post(func() {
		if err != nil {
			c.log(slog.LevelWarn, "release in the background failed", slog.String("lock", h.Name()), slog.Any("error", err))
		} else {
			h.logRelease()
		}
		h.callHoldEnd(reason, err, held)
	})
}
