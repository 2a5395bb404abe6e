package stile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A Hold is a lock that is held. It ends once: it is released, yielded or lost. It is safe for
// concurrent use; any goroutine may release it.
type Hold struct {
	place        *Place
	tenure       *tenure
	token        uint64
	acquiredMode line.Mode // the mode in which the lock was acquired
	acquiredAt   bootclock.Instant

	// deliver sets these, before the caller gets the hold.
	started context.Context // returned by HoldStart
	ctx     context.Context
	end     context.CancelCauseFunc

	over atomic.Bool // the hold has ended; set under the queue's mutex

	// Guarded by the queue's mutex.
	delivered bool       // the caller gets the hold: its end now calls HoldEnd and removes its place
	loss      *LostError // set if it was lost
	released  bool
	next      *Place        // what Yield waits or has waited with; nil without a Yield
	lost      chan struct{} // closed when loss is set; nil until somebody asks for it
	contended chan struct{} // nil until somebody asks for it
}

// tokenOf returns the token of the first hold of the entry with the given order. The low bits count turns.
func tokenOf(order uint64) uint64 { return order << store.TurnBits }

// orderOf returns the order that is part of a token.
func orderOf(token uint64) uint64 { return token >> store.TurnBits }

func newHold(p *Place, t *tenure) *Hold {
	return &Hold{
		place: p, tenure: t, token: tokenOf(t.order) | uint64(t.turn), acquiredMode: t.mode, acquiredAt: bootclock.Now(),
	}
}

// deliver calls the hooks of an acquired lock and reports whether the caller gets the hold. It
// returns false if the hold is lost by then; the place keeps its position in the queue. If a hook
// or the logger panics, the lock is given up.
func (h *Hold) deliver() bool {
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
	h.tenure.awaitPendingLoss()
	q.mu.Lock()
	if h.loss == nil {
		h.delivered = true
		h.ctx, h.end = context.WithCancelCause(holdContext{values, h})
		if h.tenure.publication.timer == nil {
			h.tenure.publishLaterLocked(publishAfter)
		}
	}
	q.mu.Unlock()
	if !h.delivered {
		h.reportLoss() // HoldStart was called, so HoldEnd must be
		return false
	}
	h.tenure.hookContended(h)
	return true
}

// start calls HoldStart. It returns a context that does not end, whose values the hold's context
// gets.
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
	return HoldStartEvent{Name: h.Name(), Mode: h.acquiredMode, Token: h.token}
}

// callHoldEnd calls HoldEnd.
func (h *Hold) callHoldEnd(reason EndReason, err error, held time.Duration) {
	if f := h.tenure.queue.client.opts.Hooks.HoldEnd; f != nil {
		f(h.started, HoldEndEvent{h.event(), reason, err, held})
	}
}

// reportLoss logs the loss and calls HoldEnd, in the background.
func (h *Hold) reportLoss() {
	c, held := h.tenure.queue.client, bootclock.Now().Sub(h.acquiredAt)
	c.notifier.post(func() {
		c.log(slog.LevelWarn, "lock lost", slog.String("lock", h.loss.Name), slog.Any("error", h.loss))
		h.callHoldEnd(EndLost, h.loss, held)
	})
}

// giveUp withdraws a lock that was not delivered.
func (h *Hold) giveUp() {
	q := h.tenure.queue
	q.mu.Lock()
	last := h.giveBackLocked()
	q.mu.Unlock()
	call, err := q.client.track(context.Background())
	if err != nil { // the client is closed: the entry ends with its session
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

// Mode returns the mode of the hold: exclusive, shared or slot. It changes only in [Hold.Downgrade].
func (h *Hold) Mode() line.Mode {
	h.tenure.queue.mu.Lock()
	defer h.tenure.queue.mu.Unlock()
	return h.tenure.mode
}

// EntryKey returns the key of the hold's entry in the store: the key on etcd, the path of the node on
// ZooKeeper. Packages etcdguard and zkguard check that the entry is still there. It is empty on
// the other stores, and does not change.
//
// Once a hold was asked for its key, no later hold gets the same entry (see [Options.Turns]). If the hold has
// ended before that, the entry may be that of a later hold.
func (h *Hold) EntryKey() string {
	h.tenure.pin()
	return h.tenure.ticket.Extensions().Key
}

// Owner returns the holder as others see it. After a Try method its field Obtained is set from the start.
// Otherwise it is published in the background once the lock has been held for a second; shorter holds cost
// no request for it. Redlock is an exception: there others see Obtained from the start, but Owner returns
// it as zero.
func (h *Hold) Owner() Owner {
	h.tenure.queue.mu.Lock()
	defer h.tenure.queue.mu.Unlock()
	return h.tenure.owner
}

// replaceOwner changes the owner that others see, if the hold has not ended.
func (h *Hold) replaceOwner(ctx context.Context, change func(*Owner)) error {
	t, q := h.tenure, h.tenure.queue
	fail := func(err error) error {
		return fmt.Errorf("stile: lock %q (token %d): change the owner: %w", q.name, h.token, err)
	}
	if !q.client.caps.OwnerUpdates {
		return fail(fmt.Errorf("%w by the %s store", ErrUnsupported, q.client.caps.Kind))
	}
	t.awaitPendingLoss()
	q.mu.Lock()
	loss, released := h.loss, h.released
	if t.publication.cancel != nil {
		t.publication.cancel() // this request publishes the same
	}
	q.mu.Unlock()
	switch {
	case loss != nil:
		return loss
	case released:
		return fail(ErrReleased)
	}
	err := t.replaceOwner(ctx, change)
	if err == nil {
		return nil
	}
	q.mu.Lock()
	loss, released = h.loss, h.released
	q.mu.Unlock()
	switch {
	case loss != nil:
		return loss
	case released:
		err = ErrReleased
	}
	return fail(err)
}

// Token returns the fencing token. It is zero on stores without fencing; no store of this repository is
// one. On all others it is positive, below 2^63, and larger than the token of every
// earlier conflicting hold of the name, as long as the store keeps its data. It is made from the
// order of the hold's entry in the store and the number of its turn: see [store.TurnBits] and
// [Options.Turns]. A resource that remembers the largest
// token it has seen and refuses smaller ones is protected from holders that do not know yet that they
// have lost.
func (h *Hold) Token() uint64 { return h.token }

// Context returns a context that ends when the hold does. Its cause is a [*LostError] after a loss,
// [ErrReleased] after a release, and [ErrYielded] after a Yield. It has the values of the context that was
// passed to the locking method, or of the context that [Hooks] returned.
func (h *Hold) Context() context.Context { return h.ctx }

// Lost returns a channel that is closed when the hold is lost. It stays open after a release.
func (h *Hold) Lost() <-chan struct{} {
	h.tenure.queue.mu.Lock()
	defer h.tenure.queue.mu.Unlock()
	return once(&h.lost, h.loss != nil)
}

// Err returns a [*LostError] if the hold was lost, and nil otherwise.
func (h *Hold) Err() error {
	h.tenure.queue.mu.Lock()
	defer h.tenure.queue.mu.Unlock()
	if h.loss == nil {
		return nil
	}
	return h.loss
}

// Valid reports whether the lock is held now, by the clock and by all that is known of the store.
// Once it is false it stays false. Valid is cheap, sends no request, and is more exact than
// Context, which depends on timers: it is right immediately after a suspend.
//
// True does not mean that the lock will still be held a moment later. To protect a resource after
// the check, pass it the token.
func (h *Hold) Valid() bool { return !h.over.Load() && h.tenure.session.Valid() }

// Deadline returns when the hold will be lost if no further renewal is confirmed, in wall-clock
// time. Renewals move it forward. After the end of the hold it has no meaning.
func (h *Hold) Deadline() time.Time { return h.tenure.session.Deadline().Time() }

// Terms returns the terms of the session that the hold belongs to. They do not change.
func (h *Hold) Terms() store.Terms { return h.tenure.session.Store().Terms() }

// Contended returns a channel that is closed when another client or goroutine waits for the lock.
// It is a hint to finish early. The first call makes the store look for waiters. The channel may
// never be closed, even if there are waiters.
func (h *Hold) Contended() <-chan struct{} {
	h.tenure.queue.mu.Lock()
	ch := h.contended
	first := ch == nil
	if first {
		ch = make(chan struct{})
		h.contended = ch
	}
	h.tenure.queue.mu.Unlock()
	if first {
		h.tenure.whenContended(func() { close(ch) })
		h.tenure.watchBehind()
	}
	return ch
}

// Release gives the lock up. The hold is invalid and its context has ended as soon as Release is
// called, whatever it returns.
//
// On success the store has confirmed that the lock was held until now and is free for the next waiter.
// There are three exceptions, which send no request: a goroutine of the same client has the next turn with
// the entry ([Options.Turns]), other readers of the client share it, or the client keeps it
// ([Options.Linger]). Then the lock was held until now as far as the deadline tells. With
// [Options.ReleaseInBackground] success confirms nothing. That the entry had been broken just before, or
// the session ended early by the store, is reported to the holds that have the entry next. The errors are:
//   - a [*LostError] if the lock had been lost
//   - one matching [ErrNotKnown] if the lock is free now but may have been lost before: a request got no
//     reply, and its repetition found no entry
//   - any other error: the release is not confirmed; it continues in the background, and is complete when the
//     session ends, at the latest. If ctx ended first, the error matches ctx.Err().
//
// If ctx has already ended, Release allows two seconds, so that defer hold.Release(ctx) works after
// a signal. The error matches [context.DeadlineExceeded] if these pass. It also allows two seconds, but
// not beyond ctx's deadline, if ctx is [Hold.Context], the context of a function run by [Mutex.Do], or
// derived from one of them: such a context ends when the release begins.
// Releasing again returns nil. Releasing a hold that has yielded releases the hold that Yield returned.
func (h *Hold) Release(ctx context.Context) error {
	if h = h.latest(); h == nil {
		return nil
	}
	return h.release(ctx, EndReleased, true, func(ctx context.Context) error { return h.tenure.ticket.Withdraw(ctx) })
}

// ReleaseAfter gives the lock up like [Hold.Release], but the lock stays closed to others for d.
// The entry stays in the line that long without renewal, even if the process ends. Use it for a
// scheduled job that must not run twice, for example on another machine whose clock is behind and
// which therefore starts the job later. Others can see the entry, and break it.
//
// On success nobody else gets the lock until d after the call; then the next waiter does. A store
// may round d up to a full second or to its minimum TTL, and a change of etcd's leader may double it. If
// d is zero or negative, ReleaseAfter is Release. ReleaseAfter allows two seconds in the same cases as Release.
//
// If the store does not support it, as ZooKeeper does not, the error matches [ErrUnsupported] and the lock
// is still held. The same happens on every store to the hold of a reader ([RWMutex.RLock],
// [Hold.Downgrade]). All other errors are those of Release. After a [*LostError] or [ErrNotKnown] others
// may have the lock already. After any other error others may get it before d has passed, but not before
// the session has ended.
func (h *Hold) ReleaseAfter(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return h.Release(ctx)
	}
	if err := h.checkReleaseAfter(d); err != nil {
		return err
	}
	if h = h.latest(); h == nil {
		return nil
	}
	return h.release(ctx, EndReleasedAfter, false, func(ctx context.Context) error {
		return h.tenure.ticket.Extensions().WithdrawAfter(ctx, d)
	})
}

// checkReleaseAfter returns the error of ReleaseAfter if the store or the mode does not support it.
func (h *Hold) checkReleaseAfter(d time.Duration) error {
	// Other goroutines of this client may continue to use a shared entry, and would lose it after
	// d.
	caps, mode := h.tenure.queue.client.caps, h.Mode()
	if !caps.ReleaseAfter || mode == line.Shared {
		return fmt.Errorf("stile: lock %q (token %d): release after %v: %w by the %s store for a hold in mode %v",
			h.Name(), h.token, d, ErrUnsupported, caps.Kind, mode)
	}
	return nil
}

// release ends the hold. With handsOver, the next place of this client may get its entry or one that replaces
// it. Otherwise, if the hold was the last one of its tenure, the entry is withdrawn.
func (h *Hold) release(ctx context.Context, reason EndReason, handsOver bool, withdraw func(context.Context) error) error {
	ctx, cancel := h.withGrace(ctx)
	defer cancel()
	r, err := h.startRelease(handsOver)
	q := h.place.queue
	switch {
	case r == nil:
		return err
	case r.passed:
		q.client.unref(q)
	case r.kept:
		if r.watches {
			h.tenure.watchBehind()
		}
	case r.releaseLater(ctx, reason, withdraw):
		return nil
	case r.replacement != nil:
		r.err = h.handOn(ctx, r.replacement)
	case r.last:
		r.err = withdraw(ctx)
		q.leave(h.place)
	default:
		q.leave(h.place)
	}
	return h.reportEnd(reason, r.lost, r.err)
}

// withGrace returns the context for the requests of a release, before the hold ends. It ends with ctx, but two
// seconds later if ctx has already ended, or comes from the hold and ends because the hold is released. In that
// case it also ends at the deadline of ctx.
func (h *Hold) withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil || !h.isSourceOf(ctx) {
		return withGrace(ctx)
	}
	released, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if deadline, ok := ctx.Deadline(); ok {
		released, cancel = context.WithDeadline(released, deadline)
	}
	stop := context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == ErrReleased {
			select {
			case <-time.After(grace):
			case <-released.Done():
			}
		}
		cancel()
	})
	return released, func() { stop(); cancel() }
}

// isSourceOf reports whether ctx comes from the hold, and so may end with it.
func (h *Hold) isSourceOf(ctx context.Context) bool {
	for from := holdOf(ctx); from != nil; from = holdOf(from.started) {
		if from == h {
			return true
		}
	}
	return false
}

// A releasing is a hold that ends by a release.
type releasing struct {
	hold *Hold
	lost keeper.Reason // why it had been lost before; zero if it is not known to have been
	last bool          // its entry must be withdrawn, or replaced
	err  error         // of the withdrawal

	passed      bool    // the next place has its tenure
	kept        bool    // its tenure is kept for a later place
	watches     bool    // it is kept for the first time: the store must be asked to report waiters
	replacement *tenure // what replaces its entry, for the next place; nil if the entry is to be withdrawn
}

// startRelease ends the hold, without a request to the store. It returns nil, and the error of the release,
// if the hold has ended before.
func (h *Hold) startRelease(handsOver bool) (*releasing, error) {
	t, q := h.tenure, h.tenure.queue
	r := &releasing{hold: h, lost: t.session.Reason()}
	q.mu.Lock()
	switch {
	case h.released:
		q.mu.Unlock()
		return nil, nil
	case h.over.Load():
		h.released = true
		defer q.mu.Unlock()
		return nil, h.loss // a hold that is over and was not released is lost
	}
	h.released = true
	h.end(ErrReleased) // before anybody can get the lock
	if handsOver && t.passLocked() {
		r.passed = true
		h.over.Store(true)
		q.mu.Unlock()
		return r, nil
	}
	if handsOver && t.keepLocked() {
		r.kept, r.watches = true, !t.watching
		h.over.Store(true)
		q.mu.Unlock()
		return r, nil
	}
	if handsOver {
		r.replacement = t.replacementLocked()
	}
	r.last = h.giveBackLocked()
	q.mu.Unlock()

	if r.last {
		t.session.Unsubscribe(t)
	}
	return r, nil
}

// reportEnd reports the end of a hold that was given up, and returns the error for the caller. lost is
// the reason of an earlier loss, or zero. err is what the store has returned.
func (h *Hold) reportEnd(reason EndReason, lost keeper.Reason, err error) error {
	reason, err = h.endOf(reason, lost, err)
	h.logRelease()
	h.callHoldEnd(reason, err, bootclock.Now().Sub(h.acquiredAt))
	return err
}

func (h *Hold) logRelease() {
	q := h.tenure.queue
	q.client.log(slog.LevelDebug, "lock released", slog.String("lock", q.name), slog.Uint64("token", h.token))
}

// endOf returns how a hold has ended and the error to report, given what reportEnd gets.
func (h *Hold) endOf(reason EndReason, lost keeper.Reason, err error) (EndReason, error) {
	q := h.tenure.queue
	if lost == 0 {
		lost = h.tenure.reasonIn(err)
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
	return reason, err
}

// giveBackLocked returns the hold to its tenure, unless it is over. It reports whether the entry
// must be withdrawn.
func (h *Hold) giveBackLocked() (last bool) {
	if h.over.Swap(true) {
		return false
	}
	t := h.tenure
	t.holds = slices.DeleteFunc(t.holds, func(other *Hold) bool { return other == h })
	return t.dropLocked()
}

// loseLocked marks the hold as lost.
func (h *Hold) loseLocked(reason keeper.Reason, cause error) {
	h.loss = &LostError{Name: h.Name(), Token: h.token, Reason: Reason(reason), Err: cause}
	h.over.Store(true)
	if h.delivered {
		h.end(h.loss)
	}
	if h.lost != nil {
		close(h.lost)
	}
}
