package stile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/keeper"
	"github.com/stilelock/stile/store"
)

// Hold is a lock being held. It is safe for concurrent use, and may be released by any goroutine.
//
// It ends once, in one of two ways: it is released, or it is lost.
type Hold struct {
	place    *Place
	session  *keeper.Session
	ticket   store.Ticket
	token    uint64
	owner    Owner
	acquired bootclock.Instant

	ctx    context.Context
	end    context.CancelCauseFunc
	forget func() // no longer follow the session
	lost   chan struct{}

	contended func() <-chan struct{}

	mu       sync.Mutex
	handed   bool // the caller gets it: from here on its end is told to the hooks, and ends its place
	over     bool
	loss     *LostError // why it was lost; nil if it was not
	released bool
}

// turnBits is how many bits of a token count the hand-overs within one process since the store admitted it.
const turnBits = 8

// tokenOf makes the token of the first turn after an admission.
func tokenOf(order uint64) uint64 { return order << turnBits }

// orderOf returns the order that a token was made of.
func orderOf(token uint64) uint64 { return token >> turnBits }

func newHold(p *Place, s *keeper.Session, t store.Ticket, e *entry) *Hold {
	h := &Hold{
		place:    p,
		session:  s,
		ticket:   t,
		token:    tokenOf(e.order),
		owner:    e.owner,
		acquired: bootclock.Now(),
		lost:     make(chan struct{}),
	}
	h.ctx, h.end = context.WithCancelCause(p.values)
	h.contended = sync.OnceValue(h.watchContention)
	// Both may call lose at once.
	h.forget = s.OnLoss(func(lost *keeper.LostError) { h.lose(lost.Reason, lost.Err) })
	e.whenGone(h.entryGone)
	return h
}

// handOver tells of the hold before its holder gets it, and reports whether there is still something to get. If not, nobody
// has had it, and its place is at the head of its queue as before. If the hook or the logger panics the lock is given up.
func (h *Hold) handOver() bool {
	c := h.place.client
	if h.Err() != nil {
		return false
	}
	told := false
	defer func() {
		if !told {
			h.giveUp()
		}
	}()
	c.log(slog.LevelDebug, "lock acquired", slog.String("lock", h.Name()), slog.Uint64("token", h.token))
	if f := c.opts.Hooks.Acquired; f != nil {
		f(Acquired{Name: h.Name(), Token: h.token, Waited: h.acquired.Sub(h.place.began)})
	}
	told = true
	if !h.session.Valid() {
		<-h.session.Context().Done() // it is on its way, and lose is called before it comes
	}
	h.mu.Lock()
	loss := h.loss
	h.handed = loss == nil
	h.mu.Unlock()
	if loss != nil {
		c.tellOfLoss(loss) // because Acquired was called
	}
	return loss == nil
}

// giveUp gives up a lock that was not handed over.
func (h *Hold) giveUp() {
	h.mu.Lock()
	h.over = true
	h.mu.Unlock()
	h.forget()
	h.end(ErrReleased)
	c := h.place.client
	if _, done, err := c.begin(context.Background()); err == nil {
		h.place.abandon(h.ticket)
		done()
	} else {
		c.leave(h.place) // the entry goes with the session
	}
}

// Name returns the lock's name.
func (h *Hold) Name() string { return h.place.name }

// Owner returns who the holder is, as others see it.
func (h *Hold) Owner() Owner { return h.owner }

// Token returns the fencing token: positive, below 2^63, and larger than that of every earlier conflicting hold of the
// name, for as long as the store keeps its data. A resource that remembers the largest token it has seen, and refuses
// smaller ones, is safe from holders that do not know yet that they have lost. It is zero on stores that cannot fence.
func (h *Hold) Token() uint64 { return h.token }

// Context ends when the hold does: when it is lost the cause is a [*LostError], when it is released the cause is
// [ErrReleased]. It has the values of the context that the lock was taken with.
func (h *Hold) Context() context.Context { return h.ctx }

// Lost is closed when the hold is lost. It stays open when the hold is released.
func (h *Hold) Lost() <-chan struct{} { return h.lost }

// Err returns the [*LostError] that tells why the hold was lost; nil if it was not.
func (h *Hold) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loss == nil {
		return nil
	}
	return h.loss
}

// Valid reports whether the lock is held now, by the clock and by all that was heard. Once false it stays false. It is
// cheap, asks nobody, and is more exact than Context, which depends on timers: after a suspend it knows at once.
//
// True does not mean that the lock will be held a moment later; for that there is the token.
func (h *Hold) Valid() bool {
	h.mu.Lock()
	over := h.over
	h.mu.Unlock()
	return !over && h.session.Valid()
}

// Deadline returns until when the hold is valid if the session is not confirmed again, as a time of the wall clock. It
// moves on with each renewal; after the end of the hold it means nothing.
func (h *Hold) Deadline() time.Time { return h.session.Deadline().Time() }

// Contended returns a channel that is closed when somebody waits for the lock: a hint to finish early, if that is
// possible. Looking for others begins with the first call. The channel may stay open for ever.
func (h *Hold) Contended() <-chan struct{} { return h.contended() }

func (h *Hold) watchContention() <-chan struct{} {
	ch := make(chan struct{})
	signal := sync.OnceFunc(func() { close(ch) })
	h.place.client.whenContended(h.place, signal)
	if notify := h.ticket.Extensions().NotifyContended; notify != nil {
		notify(signal)
	}
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
	return h.release(ctx, h.ticket.Withdraw)
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
	caps := h.place.client.store.Capabilities()
	if d > 0 && !caps.Outlasting {
		return fmt.Errorf("stile: lock %q (token %d): release after %v: %w by the %s store",
			h.place.name, h.token, d, ErrUnsupported, caps.Kind)
	}
	return h.release(ctx, func(ctx context.Context) error { return h.ticket.Extensions().WithdrawAfter(ctx, d) })
}

// release ends the hold and has its entry taken out.
func (h *Hold) release(ctx context.Context, withdraw func(context.Context) error) error {
	lost := h.session.Reason()
	h.mu.Lock()
	switch {
	case h.released:
		h.mu.Unlock()
		return nil
	case h.over:
		h.released = true
		defer h.mu.Unlock()
		return h.loss // nobody has a hold that is over for another reason
	}
	h.over, h.released = true, true
	h.mu.Unlock()

	h.forget()
	h.end(ErrReleased)
	ctx, cancel := graced(ctx)
	defer cancel()
	err := withdraw(ctx)
	h.place.client.leave(h.place)
	if lost == 0 {
		lost = h.reasonIn(err)
	}
	switch {
	case lost != 0:
		err = h.lostError(lost, err)
	case errors.Is(err, store.ErrNotKnown):
		err = fmt.Errorf("stile: lock %q (token %d) is released, but may have been lost before: %w", h.place.name, h.token, err)
	case err != nil:
		err = fmt.Errorf("stile: release of lock %q (token %d) not confirmed, going on in the background: %w",
			h.place.name, h.token, err)
	}
	h.place.client.log(slog.LevelDebug, "lock released", slog.String("lock", h.place.name), slog.Uint64("token", h.token))
	if f := h.place.client.opts.Hooks.Released; f != nil {
		f(Released{Name: h.place.name, Token: h.token, Held: bootclock.Now().Sub(h.acquired), Err: err})
	}
	return err
}

// entryGone ends the hold because its entry is not in the line any more.
func (h *Hold) entryGone(cause error) {
	h.forget()
	h.lose(h.reasonIn(cause), cause)
}

// reasonIn returns the reason for a loss of which an error of the store tells; zero if it tells of none. An entry that
// went with its session was lost for the session's reason; if that has not been known here, it is now.
func (h *Hold) reasonIn(err error) keeper.Reason {
	expired, gone := errors.Is(err, store.ErrSessionLost), errors.Is(err, store.ErrGone)
	known := h.session.Reason()
	switch {
	case !expired && !gone:
		return 0
	case known != 0:
		return known
	case expired:
		h.session.Ended(err)
		return keeper.Expired
	default:
		return keeper.Evicted
	}
}

// lose ends the hold, unless it has ended. It does not block: the store may be calling.
func (h *Hold) lose(reason keeper.Reason, cause error) {
	h.mu.Lock()
	if h.over {
		h.mu.Unlock()
		return
	}
	lost := h.lostError(reason, cause)
	h.over, h.loss = true, lost
	handed := h.handed
	h.mu.Unlock()

	// Who is told of it finds the queue without it, and whose turn it is in the queue finds that the holder was told.
	c := h.place.client
	c.mu.Lock()
	h.end(lost)
	close(h.lost)
	if handed {
		c.passOn(h.place)
	}
	c.mu.Unlock()
	if handed {
		c.tellOfLoss(lost)
	}
}

func (c *Client) tellOfLoss(lost *LostError) {
	c.news.tell(func() {
		c.log(slog.LevelWarn, "lock lost", slog.String("lock", lost.Name), slog.Any("error", lost))
		if f := c.opts.Hooks.Lost; f != nil {
			f(lost)
		}
	})
}

func (h *Hold) lostError(reason keeper.Reason, cause error) *LostError {
	return &LostError{Name: h.place.name, Token: h.token, Reason: reason, Err: cause}
}
