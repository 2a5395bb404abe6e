package stile

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/stilelock/stile/line"
)

// Downgrade turns a writer's hold into a reader's, without giving the lock up in between. Use it to
// go on reading what was just written. The entry keeps its position in the line: the readers directly
// behind it get the lock too, and no writer gets it before this hold is released. Readers that wait in
// the queue of the same client join the line now, at its end.
//
// Stop writing before the call. The token stays the same. So a resource that compares tokens does not
// refuse a write that was sent before the downgrade, for example by a call that has timed out, and arrives
// when others already read. Package etcdguard refuses such a write.
//
// On success the lock is shared, in the store too. The errors are:
//   - a [*LostError] if the hold was lost
//   - one matching [ErrReleased] if it was released
//   - one matching [ErrUnsupported] if the store cannot do it, as Redlock and ZooKeeper cannot, or if the
//     hold is that of a slot; nothing has changed
//   - one matching ctx.Err() if ctx had ended before the call; nothing has changed
//   - any other error: the hold is still valid, [Hold.Mode] returns the shared mode, and the caller must
//     not write; but the store may keep readers out until the hold is released or Downgrade is called
//     again
//
// The hold of a reader is already shared: Downgrade returns nil. There is no way back, because two
// readers that wait for each other to leave would wait for ever: release the lock and take it for
// writing. A leader whose hold is
// downgraded is no longer the leader of its [Election].
func (h *Hold) Downgrade(ctx context.Context) error {
	t, q := h.tenure, h.tenure.queue
	fail := func(err error) error {
		return fmt.Errorf("stile: lock %q (token %d): downgrade: %w", q.name, h.token, err)
	}
	if caps := q.client.caps; h.acquiredMode.Slots() > 0 || h.acquiredMode == line.Exclusive && !caps.Downgrades {
		return fail(fmt.Errorf("%w by the %s store for a hold in mode %v", ErrUnsupported, caps.Kind, h.acquiredMode))
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	t.awaitPendingLoss()
	done, err := h.beginDowngrade()
	switch {
	case err != nil:
		return fail(err)
	case h.Err() != nil:
		return h.Err()
	case done:
		return nil
	}
	err = t.ticket.Extensions().Downgrade(ctx)
	if reason := t.reasonIn(err); reason != 0 {
		t.lose(reason, err) // the notification may be late
	}

	q.mu.Lock()
	loss, released := h.loss, h.released
	t.downgraded = t.downgraded || err == nil
	q.mu.Unlock()
	switch {
	case loss != nil:
		return loss
	case released:
		return fail(ErrReleased)
	case err != nil:
		return fail(fmt.Errorf("not confirmed, so the lock may still be closed to readers: %w", err))
	}
	q.client.log(slog.LevelDebug, "lock downgraded", slog.String("lock", q.name), slog.Uint64("token", h.token))
	return nil
}

// beginDowngrade makes the hold shared in this process, before the store is asked: the store's answer may
// be lost, and the hold must never count as exclusive while it is shared in the store. Readers behind it
// in the queue may enter the line from now on; in the store they wait until the entry is shared there.
//
// No other place uses the tenure then or later: what waits behind the entry in the store is not known, and
// a reader that shared the entry would overtake it.
//
// done is true if nothing is left to do.
func (h *Hold) beginDowngrade() (done bool, err error) {
	t, q := h.tenure, h.tenure.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case h.loss != nil:
		return true, nil
	case h.released:
		return false, ErrReleased
	case t.mode == line.Exclusive:
		t.mode, h.place.mode = line.Shared, line.Shared
		q.admitLocked()
	}
	return h.acquiredMode == line.Shared || t.downgraded, nil
}
