package stile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// Hold is a lock being held. It is safe for concurrent use, and may be released by any goroutine.
//
// It ends once, in one of two ways: it is released, or it is lost.
type Hold struct {
	place    *Place
	tenure   *tenure
	token    uint64
	acquired bootclock.Instant

	// handOver sets these, before the caller gets the hold.
	started context.Context // what HoldStart has returned
	ctx     context.Context
	end     context.CancelCauseFunc

	lost      chan struct{}
	contended func() <-chan struct{}

	over atomic.Bool // it has ended; set with the queue's mutex held

	// These are guarded by the queue's mutex.
	handed   bool       // the caller gets it: from here on its end is told to the hooks, and ends its place
	loss     *LostError // why it was lost; nil if it was not
	released bool
}

// turnBits is how many bits of a token count the hand-overs within one process since the store admitted it.
const turnBits = 11

// tokenOf makes the token of the first turn after an admission.
func tokenOf(order uint64) uint64 { return order << turnBits }

// orderOf returns the order that a token was made of.
func orderOf(token uint64) uint64 { return token >> turnBits }

func newHold(p *Place, t *tenure) *Hold {
	h := &Hold{place: p, tenure: t, token: tokenOf(t.order), acquired: bootclock.Now(), lost: make(chan struct{})}
	h.contended = sync.OnceValue(h.watchContention)
	return h
}

// handOver tells of the hold before its holder gets it, and reports whether there is still something to get. If not, nobody
// has had it, and its place is in its queue as before. If the hook or the logger panics the lock is given up.
func (h *Hold) handOver() bool {
	q := h.tenure.queue
	if h.Err() != nil {
		return false
	}
	told := false
	defer func() {
		if !told {
			h.giveUp()
		}
	}()
	q.client.log(slog.LevelDebug, "lock acquired", slog.String("lock", q.name), slog.Uint64("token", h.token))
	h.place.attempt.end(nil)
	values := h.start()
	told = true
	h.tenure.settle()
	q.mu.Lock()
	if h.loss == nil {
		h.handed = true
		h.ctx, h.end = context.WithCancelCause(values)
		if h.tenure.publication.timer == nil {
			h.tenure.publishLaterLocked(publishAfter)
		}
	}
	q.mu.Unlock()
	if !h.handed {
		h.tellOfLoss() // because HoldStart was called
		return false
	}
	h.tenure.tellOfContention(h)
	return true
}

// start calls HoldStart. It returns a context that does not end, with the values for the hold's own.
func (h *Hold) start() (values context.Context) {
	h.started = context.WithoutCancel(h.place.attempt.ctx)
	f := h.tenure.queue.client.opts.Hooks.HoldStart
	if f == nil {
		return h.started
	}
	h.started = derived(h.started, f(h.started, h.event()))
	return context.WithoutCancel(h.started)
}

func (h *Hold) event() HoldStartEvent {
	return HoldStartEvent{Name: h.Name(), Mode: h.tenure.mode, Token: h.token}
}

// tellEnd calls HoldEnd for a hold that was handed over.
func (h *Hold) tellEnd(reason EndReason, err error, held time.Duration) {
	if f := h.tenure.queue.client.opts.Hooks.HoldEnd; f != nil {
		f(h.started, HoldEndEvent{h.event(), reason, err, held})
	}
}

// tellOfLoss tells that the hold is lost. It does not block.
func (h *Hold) tellOfLoss() {
	c, held := h.tenure.queue.client, bootclock.Now().Sub(h.acquired)
	c.news.tell(func() {
		c.log(slog.LevelWarn, "lock lost", slog.String("lock", h.loss.Name), slog.Any("error", h.loss))
		h.tellEnd(EndLost, h.loss, held)
	})
}

// giveUp gives up a lock that was not handed over.
func (h *Hold) giveUp() {
	q := h.tenure.queue
	q.mu.Lock()
	last := h.giveBackLocked()
	q.mu.Unlock()
	call, err := q.client.begin(context.Background())
	if err != nil { // the entry goes with the session
		q.leave(h.place)
		return
	}
	q.client.work.Go(func() {
		if last {
			h.tenure.withdraw()
		}
		q.leave(h.place)
	})
	call.done()
}

// Name returns the lock's name.
func (h *Hold) Name() string { return h.tenure.queue.name }

// Owner returns who the holder is, as others see it. When the lock was obtained ([Owner.Obtained]) is told to them, in the
// background, once it has been held for a second; shorter holds cost no request for that. On Redlock
// it is in the store from the beginning, and not in what Owner returns.
func (h *Hold) Owner() Owner {
	h.tenure.queue.mu.Lock()
	defer h.tenure.queue.mu.Unlock()
	return h.tenure.owner
}

// Token returns the fencing token: positive, below 2^63, and larger than that of every earlier conflicting hold of the
// name, for as long as the store keeps its data. A resource that remembers the largest token it has seen, and refuses
// smaller ones, is safe from holders that do not know yet that they have lost. It is zero on stores that cannot fence.
func (h *Hold) Token() uint64 { return h.token }

// Context ends when the hold does: when it is lost the cause is a [*LostError], when it is released the cause is
// [ErrReleased]. It has the values of the context that the lock was taken with, or of the one that [Hooks] have made of it.
func (h *Hold) Context() context.Context { return h.ctx }

// Lost is closed when the hold is lost. It stays open when the hold is released.
func (h *Hold) Lost() <-chan struct{} { return h.lost }

// Err returns the [*LostError] that tells why the hold was lost; nil if it was not.
func (h *Hold) Err() error {
	h.tenure.queue.mu.Lock()
	defer h.tenure.queue.mu.Unlock()
	if h.loss == nil {
		return nil
	}
	return h.loss
}

// Valid reports whether the lock is held now, by the clock and by all that was heard. Once false it stays false. It is
// cheap, asks nobody, and is more exact than Context, which depends on timers: after a suspend it knows at once.
//
// True does not mean that the lock will be held a moment later; for that there is the token.
func (h *Hold) Valid() bool { return !h.over.Load() && h.tenure.session.Valid() }

// Deadline returns until when the hold is valid if the session is not confirmed again, as a time of the wall clock. It
// moves on with each renewal; after the end of the hold it means nothing.
func (h *Hold) Deadline() time.Time { return h.tenure.session.Deadline().Time() }

// Terms returns what the store has granted the session that the lock is held under. They do not change.
func (h *Hold) Terms() store.Terms { return h.tenure.session.Store().Terms() }

// Contended returns a channel that is closed when somebody waits for the lock: a hint to finish early, if that is
// possible. Looking for others begins with the first call. The channel may stay open for ever.
func (h *Hold) Contended() <-chan struct{} { return h.contended() }

func (h *Hold) watchContention() <-chan struct{} {
	ch := make(chan struct{})
	h.tenure.whenContended(func() { close(ch) })
	h.tenure.watchBehind()
	return ch
}

// Release gives the lock up. From the call on the hold is not valid and its context has ended, whatever the outcome.
//
// On success the store has confirmed that the lock was held until now and is free for the next in line. If the lock had been
// lost before, known or not, the error is a [*LostError]. The error matches [ErrNotKnown] if the lock is free but may have
// been lost before: a request was not answered, and its repetition found nothing. Any other error means that the store has
// not confirmed; the release goes on in the background and is done at the latest when the session ends. If that is because
// ctx ended, the error matches ctx.Err().
//
// A ctx that has ended already counts as one that lasts two seconds more, so that defer hold.Release(ctx) works after a
// signal. Releasing again returns nil.
func (h *Hold) Release(ctx context.Context) error {
	return h.release(ctx, EndReleased, func(ctx context.Context) error { return h.tenure.ticket.Withdraw(ctx) })
}

// ReleaseAfter gives the lock up as [Hold.Release] does, but keeps it closed to others for d: its entry stays in the line
// that long without anybody renewing it, even if the process ends meanwhile. It is for jobs that should not run again too
// soon, on a machine whose clock is behind, for example. Others see who has had the lock, and can break it.
//
// On success nobody else has the lock before d has passed since the call, and the next in line has it soon after: a store may
// round d up, to the second or to its least TTL. A d that is zero or negative is a Release. On a store that cannot do it the
// error matches [ErrUnsupported], and the lock is held on as if nothing had been called. All other errors are those of
// Release; who was to be kept out for d may be let in earlier then, but not before the session has ended.
func (h *Hold) ReleaseAfter(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return h.Release(ctx)
	}
	// Others of this process may go on using a shared entry, and would lose it after d.
	caps := h.tenure.queue.client.caps
	if !caps.ReleaseAfter || h.tenure.mode == line.Shared {
		return fmt.Errorf("stile: lock %q (token %d): release after %v: %w by the %s store in mode %v",
			h.Name(), h.token, d, ErrUnsupported, caps.Kind, h.tenure.mode)
	}
	return h.release(ctx, EndReleasedAfter, func(ctx context.Context) error {
		return h.tenure.ticket.Extensions().WithdrawAfter(ctx, d)
	})
}

// release ends the hold. If it is the last of its tenure the entry is withdrawn.
func (h *Hold) release(ctx context.Context, reason EndReason, withdraw func(context.Context) error) error {
	t, q := h.tenure, h.tenure.queue
	lost := t.session.Reason()
	q.mu.Lock()
	switch {
	case h.released:
		q.mu.Unlock()
		return nil
	case h.over.Load():
		h.released = true
		defer q.mu.Unlock()
		return h.loss // nobody has a hold that is over for another reason
	}
	h.released = true
	last := h.giveBackLocked()
	q.mu.Unlock()

	h.end(ErrReleased)
	var err error
	if last {
		t.stopFollowing()
		ctx, cancel := graced(ctx)
		defer cancel()
		err = withdraw(ctx)
	}
	q.leave(h.place)
	if lost == 0 {
		lost = t.reasonIn(err)
	}
	switch {
	case lost != 0:
		reason = EndLost
		err = &LostError{Name: q.name, Token: h.token, Reason: Reason(lost), Err: err}
	case errors.Is(err, store.ErrNotKnown):
		err = fmt.Errorf("stile: lock %q (token %d) is released, but may have been lost before: %w", q.name, h.token, err)
	case err != nil:
		err = fmt.Errorf("stile: release of lock %q (token %d) not confirmed, going on in the background: %w",
			q.name, h.token, err)
	}
	q.client.log(slog.LevelDebug, "lock released", slog.String("lock", q.name), slog.Uint64("token", h.token))
	h.tellEnd(reason, err, bootclock.Now().Sub(h.acquired))
	return err
}

// giveBackLocked ends a hold that is not over by giving it back to its tenure. It reports whether the entry is to be withdrawn.
func (h *Hold) giveBackLocked() (last bool) {
	if h.over.Swap(true) {
		return false
	}
	t := h.tenure
	t.holds = slices.DeleteFunc(t.holds, func(other *Hold) bool { return other == h })
	return t.dropLocked()
}

// loseLocked ends a hold that is lost.
func (h *Hold) loseLocked(reason keeper.Reason, cause error) {
	h.loss = &LostError{Name: h.Name(), Token: h.token, Reason: Reason(reason), Err: cause}
	h.over.Store(true)
	if h.handed {
		h.end(h.loss)
	}
	close(h.lost)
}
