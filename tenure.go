package stile

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A tenure is one entry of this client in the line of a name. Once the entry is admitted, holds
// are lent from it: one in exclusive mode and for a slot; any number in shared mode, all with the
// same token, and all lost together. When no place uses the tenure any more, its entry is
// withdrawn.
type tenure struct {
	queue    *queue
	mode     line.Mode // changed only by a downgrade, under the queue's mutex, after a hold was delivered
	numbered bool      // it has a slot number before holds are lent
	ownEntry bool      // its place needs an entry of its own

	// Set by enter.
	session *keeper.Session
	ticket  store.Ticket

	number slotNumber // set before holds are lent

	ahead atomic.Int64 // entries that must leave before this one is admitted

	// For an entry of a [set]: setLost is closed, by loseSet, when one of the set's entries is gone.
	setLost <-chan struct{}
	loseSet func()

	// Guarded by the queue's mutex.
	owner       Owner        // as others see it
	acquiredAt  time.Time    // when the first hold was lent, or a set's entry was found admitted
	waits       []store.Wait // what holders of this lock have been waiting for, the oldest wait first
	publication publication

	prepared   bool // holds can be lent
	turn       int  // how many holds were lent before, one after another
	pinned     bool // there are no more turns: see pin
	downgraded bool // the store has confirmed that the entry has become shared
	order      uint64
	isAdmitted bool // the entry is admitted; order is set
	isGone     bool // the entry is gone; cause is set
	cause      error
	admitted   chan struct{} // closed when isAdmitted is set; nil until somebody waits for it
	gone       chan struct{} // closed when isGone is set; nil until somebody waits for it
	users      int           // places that wait for the tenure or hold the lock with it
	holds      []*Hold       // lent, and neither returned nor lost
	over       bool          // nothing is lent any more: lost, or without users
	loss       error         // set if it was lost
	sharing    *sharing      // nil if the tenure has one user only

	contended     bool // a waiter was seen, in the queue or behind the entry
	waitersBehind bool // a waiter was seen behind the entry

	lingerUntil bootclock.Instant // the tenure is not kept any longer; set with isAdmitted, if it lingers
	lingerTimer *time.Timer       // gives it up then; nil until it is kept first

	onContended []func() // called when contended becomes true
	watching    bool     // the store was asked to report waiters behind the entry
	hookAdded   bool     // the Contended hook was added to onContended
}

var (
	// errRejoin: the entry is gone, and the caller still wants the lock.
	errRejoin = errors.New("the entry was lost while it waited")
	// errGaveUp: the caller gave up. If there is an entry, it is still in the line.
	errGaveUp = errors.New("given up")
)

func newTenure(q *queue, mode line.Mode, owner Owner) *tenure {
	return &tenure{
		queue: q, mode: mode, owner: owner, users: 1,
	}
}

// acquire puts an entry into the line in the store and waits until holds can be lent. On failure
// the entry is out of the line or is being removed. The exception is errGaveUp with a ticket: then
// the caller must withdraw.
func (t *tenure) acquire(ctx context.Context, try bool) error {
	if err := t.enter(ctx, try); err != nil {
		return err
	}
	return t.await(ctx, try)
}

// enter puts the entry into the line.
func (t *tenure) enter(ctx context.Context, try bool) (err error) {
	if t.session, err = t.queue.client.session(ctx); err != nil {
		return err
	}
	t.stampOwner(try)
	t.ticket, err = t.session.Store().Enqueue(ctx, store.Request{
		Name: t.queue.name, Mode: t.mode, Owner: t.owner, Try: try, Notify: t.notify,
	})
	if held, ok := errors.AsType[*store.HeldError](err); ok {
		return heldError(held)
	}
	if errors.Is(err, store.ErrSessionLost) {
		return t.sessionEnded(err)
	}
	if err == nil && t.sharing != nil {
		t.watchBehind()
	}
	return err
}

// stampOwner sets the times of the owner for an entry that is about to join the line.
func (t *tenure) stampOwner(try bool) {
	t.owner.Since, t.owner.Obtained, t.owner.Waits = time.Now(), time.Time{}, nil
	t.owner.Lingers = t.lingers()
	if try {
		t.owner.Obtained = t.owner.Since // others see it only if the try succeeds
	}
}

// requeueFrom puts the entry into the line in place of that of old, in one step.
func (t *tenure) requeueFrom(ctx context.Context, old *tenure) (err error) {
	old.session.Unsubscribe(old)
	t.session = old.session
	t.owner.Since, t.owner.Lingers = time.Now(), t.lingers()
	t.ticket, err = old.ticket.Extensions().Requeue(ctx, t.owner, t.notify)
	return err
}

// await waits until holds can be lent: until the entry is admitted, [Options.LockDelay] is over and
// the slot number is claimed. It fails like acquire.
func (t *tenure) await(ctx context.Context, try bool) error {
	if err := t.wait(ctx, t.admission()); err != nil {
		return err
	}
	if err := t.prepare(ctx, try); err != nil {
		if !errors.Is(err, errRejoin) && !errors.Is(err, errGaveUp) {
			t.withdraw()
		}
		return err
	}
	t.subscribe()
	t.queue.mu.Lock()
	t.prepared = true
	t.queue.mu.Unlock()
	return nil
}

// subscribe makes the tenure learn of the loss of its session. It is called before holds are lent.
func (t *tenure) subscribe() {
	t.session.Subscribe(t) // notifies at once if the session is already lost
	t.queue.mu.Lock()
	over := t.over
	t.queue.mu.Unlock()
	if over {
		t.session.Unsubscribe(t)
	}
}

// SessionLost implements [keeper.LossListener].
func (t *tenure) SessionLost(lost *keeper.LostError) { t.lose(lost.Reason, lost.Err) }

// prepare does what must be done in the store between the admission and the first hold. On failure
// the entry may still be in the line.
func (t *tenure) prepare(ctx context.Context, try bool) error {
	if t.queue.client.opts.LockDelay > 0 {
		if err := t.mark(ctx, try); err != nil {
			return err
		}
	}
	if t.numbered {
		return t.claimNumber(ctx)
	}
	return nil
}

// wait waits until ch is closed, the entry or another one of its set is gone, its session is lost, or ctx
// ends.
func (t *tenure) wait(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	default:
	}
	select {
	case <-ch:
		return nil
	case <-t.departure():
		return t.rejoinError(t.cause)
	case <-t.setLost:
		return t.rejoinError(errLostOne)
	case <-t.session.Context().Done():
		return t.rejoinError(context.Cause(t.session.Context()))
	case <-ctx.Done():
		return errGaveUp
	}
}

// admission returns a channel that is closed when the entry is admitted.
func (t *tenure) admission() <-chan struct{} {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	return once(&t.admitted, t.isAdmitted)
}

// departure returns a channel that is closed when the entry is gone. Then the cause is set.
func (t *tenure) departure() <-chan struct{} {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	return once(&t.gone, t.isGone)
}

func (t *tenure) rejoinError(why error) error { return fmt.Errorf("%w: %w", errRejoin, why) }

// sessionEnded handles the store's report that the session has ended, and returns the error to
// rejoin with.
func (t *tenure) sessionEnded(err error) error {
	t.session.ReportEnded(err)
	<-t.session.Context().Done() // otherwise the retry would use this session again
	return t.rejoinError(err)
}

// withdrawTimeout bounds the withdrawal of an abandoned entry, which the next place of this client
// waits for.
const withdrawTimeout = time.Second

// withdraw takes out an abandoned entry, if there is one. It returns when that is done or after
// withdrawTimeout; then the store continues in the background.
func (t *tenure) withdraw() {
	if t.ticket == nil {
		return
	}
	t.queue.mu.Lock()
	t.over = true
	t.stopTimersLocked()
	t.queue.mu.Unlock()
	t.session.Unsubscribe(t)
	ctx, cancel := context.WithTimeout(t.queue.client.life, withdrawTimeout)
	defer cancel()
	_ = t.ticket.Withdraw(ctx)
}

// awaitPendingLoss returns at once if the session is valid, and otherwise after lose was called,
// which is imminent.
func (t *tenure) awaitPendingLoss() {
	if !t.session.Valid() {
		<-t.session.Context().Done()
	}
}

// lend returns a hold for a place that uses the tenure. If the tenure is over, the error matches
// errRejoin.
func (t *tenure) lend(p *Place) (*Hold, error) {
	t.awaitPendingLoss()
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	if t.over {
		return nil, t.rejoinError(t.loss)
	}
	if t.acquiredAt.IsZero() {
		t.acquiredAt = time.Now()
	}
	h := newHold(p, t)
	t.holds = append(t.holds, h)
	return h, nil
}

// dropLocked ends one use of the tenure. It reports whether this was the last one: then the entry
// must be withdrawn.
func (t *tenure) dropLocked() (last bool) {
	t.users--
	if t.users > 0 || t.over {
		return false
	}
	t.over = true
	t.stopTimersLocked()
	return true
}

// notify is the entry's [store.Request.Notify].
func (t *tenure) notify(st store.Standing) {
	t.ahead.Store(int64(st.Ahead))
	switch st.State {
	case store.Waiting:
	case store.Admitted:
		t.queue.mu.Lock()
		defer t.queue.mu.Unlock()
		if !t.isAdmitted {
			t.isAdmitted, t.order = true, st.Order
			if t.lingers() {
				t.lingerUntil = bootclock.Now().Add(t.queue.client.opts.Linger)
			}
			if t.admitted != nil {
				close(t.admitted)
			}
		}
	case store.Gone:
		t.queue.mu.Lock()
		t.isGone, t.cause = true, st.Cause
		if t.gone != nil {
			close(t.gone)
		}
		t.queue.mu.Unlock()
		if t.loseSet != nil {
			t.loseSet()
		}
		t.lose(t.reasonIn(st.Cause), st.Cause)
	}
}

// reasonIn returns the reason for the loss that a store's error reports; zero if it reports none.
// If the session is already known to be lost, its reason is the entry's reason too. An error that
// reports the end of the session ends the session here.
func (t *tenure) reasonIn(err error) keeper.Reason {
	expired, gone := errors.Is(err, store.ErrSessionLost), errors.Is(err, store.ErrGone)
	known := t.session.Reason()
	switch {
	case !expired && !gone:
		return 0
	case known != 0:
		return known
	case expired:
		t.session.ReportEnded(err)
		return keeper.Expired
	default:
		return keeper.Evicted
	}
}

// lose ends the tenure and all its holds, once. It does not block, because the store may be the
// caller.
func (t *tenure) lose(reason keeper.Reason, cause error) {
	q := t.queue
	q.mu.Lock()
	if t.over {
		q.mu.Unlock()
		return
	}
	t.over, t.loss = true, &keeper.LostError{Reason: reason, Err: cause}
	kept := q.kept == t
	if kept {
		q.kept = nil
	}
	t.stopTimersLocked()
	// The places leave the queue before any holder can act on its loss, and after all holds are
	// lost: so a holder that locks again is not behind itself, and the next place is admitted only
	// when every hold is over.
	var delivered []*Hold
	for _, h := range t.holds {
		h.loseLocked(reason, cause)
		if h.delivered {
			delivered = append(delivered, h)
		}
	}
	for _, h := range delivered {
		q.leaveLocked(h.place)
	}
	q.mu.Unlock()
	t.session.Unsubscribe(t)
	if kept {
		q.client.unref(q)
	}
	for _, h := range delivered {
		q.client.unref(q)
		h.reportLoss()
	}
}

// hookContended makes the Contended hook fire for the first delivered hold of the tenure.
func (t *tenure) hookContended(h *Hold) {
	c := t.queue.client
	hook := c.opts.Hooks.Contended
	if hook == nil {
		return
	}
	t.queue.mu.Lock()
	first := !t.hookAdded
	t.hookAdded = true
	t.queue.mu.Unlock()
	if !first {
		return
	}
	t.whenContended(func() {
		if !t.over { // called under the queue's mutex
			c.notifier.post(func() { hook(h.started, ContentionEvent{Name: h.Name(), Token: h.token}) })
		}
	})
	t.watchBehind()
}

// whenContended calls f once another client or goroutine waits for the lock: at once if one does
// already. f must not block.
func (t *tenure) whenContended(f func()) {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	t.onContended = append(t.onContended, f)
	if t.contended || len(q.line) > q.admittedCount && !t.over {
		t.contendedLocked()
	}
}

// watchBehind asks the store, once, to report a waiter behind the entry.
func (t *tenure) watchBehind() {
	notify := t.ticket.Extensions().NotifyContended
	t.queue.mu.Lock()
	watching := t.watching
	t.watching = true
	t.queue.mu.Unlock()
	if !watching && notify != nil {
		notify(func() {
			t.queue.mu.Lock()
			defer t.queue.mu.Unlock()
			t.waitersBehind = true
			t.contendedLocked()
			if t.queue.kept == t {
				t.queue.giveUpKeptLocked()
			}
		})
	}
}

func (t *tenure) contendedLocked() {
	t.contended = true
	for _, f := range t.onContended {
		f()
	}
	t.onContended = nil
}
