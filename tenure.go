package stile

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// A tenure is what this process has in the store for a name: an entry in the line, of one session. Holds are lent from it
// once the entry is admitted: one in exclusive mode and for a slot, any number in shared mode, where all have the same
// token and are lost together. When nobody uses the tenure any more, its entry is withdrawn.
type tenure struct {
	queue *queue
	mode  line.Mode

	// enter sets these.
	session *keeper.Session
	ticket  store.Ticket

	admitted chan struct{} // closed when it is the entry's turn; order is set
	gone     chan struct{} // closed when the entry is gone; cause is set
	cause    error
	ahead    atomic.Int64 // how many entries must leave before it is the turn of this one

	// These are guarded by the queue's mutex.
	owner       Owner     // as others see it
	obtained    time.Time // when the first hold was lent
	publication publication

	order   uint64
	inTurn  bool     // admitted is closed
	users   int      // the places that wait for the tenure or hold the lock with it
	holds   []*Hold  // lent, and neither given back nor lost
	over    bool     // nothing is lent any more: it was lost, or nobody uses it
	loss    error    // why it was lost; nil if it was not
	forget  func()   // stop following the session
	sharing *sharing // how places share it; nil if it has one user only

	contended   bool     // somebody waits, or has waited, in the queue or behind the entry
	behind      bool     // somebody waits, or has waited, behind the entry
	onContended []func() // called when contended is set
	watching    bool     // the store was asked to tell of those behind the entry
	hooked      bool     // onContended has, or had, the hook
}

var (
	// errJoinAgain: the entry is gone, and the caller still wants the lock.
	errJoinAgain = errors.New("the entry was lost while it waited")
	// errLeaving: the caller has given up. If there is an entry it is in the line still.
	errLeaving = errors.New("given up")
)

func newTenure(q *queue, mode line.Mode, owner Owner) *tenure {
	return &tenure{
		queue: q, mode: mode, owner: owner, users: 1, forget: func() {},
		admitted: make(chan struct{}), gone: make(chan struct{}),
	}
}

// acquire puts an entry into the line in the store and waits until holds can be lent. On failure no entry is in the line, or
// it is being taken out, unless the error is errLeaving and there is a ticket: then the caller has to withdraw.
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
	t.owner.Since, t.owner.Obtained = time.Now(), time.Time{}
	if try {
		t.owner.Obtained = t.owner.Since // if it is read at all
	}
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

// await waits until holds can be lent: until it is the entry's turn, and as long as the lock stays closed because of
// [Options.LockDelay]. On failure it is as with acquire.
func (t *tenure) await(ctx context.Context, try bool) error {
	if err := t.wait(ctx, t.admitted); err != nil {
		return err
	}
	if t.queue.client.opts.LockDelay > 0 {
		err := t.mark(ctx, try)
		if err != nil && !errors.Is(err, errJoinAgain) && !errors.Is(err, errLeaving) {
			t.withdraw()
		}
		if err != nil {
			return err
		}
	}
	forget := t.session.OnLoss(func(lost *keeper.LostError) { t.lose(lost.Reason, lost.Err) }) // at once, if it is lost
	t.queue.mu.Lock()
	t.forget = forget
	over := t.over
	t.queue.mu.Unlock()
	if over {
		forget()
	}
	return nil
}

// wait waits for the end of ch, for as long as the entry is good for anything and the caller wants it.
func (t *tenure) wait(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-t.gone:
		return t.joinAgain(t.cause)
	case <-t.session.Context().Done():
		return t.joinAgain(context.Cause(t.session.Context()))
	case <-ctx.Done():
		return errLeaving
	}
}

func (t *tenure) joinAgain(why error) error { return fmt.Errorf("%w: %w", errJoinAgain, why) }

// sessionEnded returns the error of an entry whose session the store says has ended.
func (t *tenure) sessionEnded(err error) error {
	t.session.Ended(err)
	<-t.session.Context().Done() // until then it would be used again
	return t.joinAgain(err)
}

// withdrawTimeout is how long an entry that nobody wants any more is waited for before the next of this process joins the
// line.
const withdrawTimeout = time.Second

// withdraw takes out an entry, if there is one, that nobody wants any more. It returns when that is done, or after a while:
// then the store goes on by itself.
func (t *tenure) withdraw() {
	if t.ticket == nil {
		return
	}
	t.stopFollowing()
	ctx, cancel := context.WithTimeout(t.queue.client.life, withdrawTimeout)
	defer cancel()
	_ = t.ticket.Withdraw(ctx)
}

func (t *tenure) stopFollowing() {
	t.queue.mu.Lock()
	forget := t.forget
	t.queue.mu.Unlock()
	forget()
}

// settle waits, if the session is not valid any more, until lose has been called, which is on its way then.
func (t *tenure) settle() {
	if !t.session.Valid() {
		<-t.session.Context().Done()
	}
}

// lend returns a hold for a place that uses the tenure. If the tenure is lost, the error is errJoinAgain.
func (t *tenure) lend(p *Place) (*Hold, error) {
	t.settle()
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	if t.over {
		return nil, t.joinAgain(t.loss)
	}
	if t.obtained.IsZero() {
		t.obtained = time.Now()
	}
	h := newHold(p, t)
	t.holds = append(t.holds, h)
	return h, nil
}

// dropLocked ends one use of the tenure. It reports whether that was the last one: then the entry is to be withdrawn.
func (t *tenure) dropLocked() (last bool) {
	t.users--
	if t.users > 0 || t.over {
		return false
	}
	t.over = true
	t.stopPublishingLocked()
	return true
}

// notify is called by the store.
func (t *tenure) notify(st store.Standing) {
	t.ahead.Store(int64(st.Ahead))
	switch st.State {
	case store.Waiting:
	case store.Admitted:
		t.queue.mu.Lock()
		defer t.queue.mu.Unlock()
		if !t.inTurn {
			t.inTurn, t.order = true, st.Order
			close(t.admitted)
		}
	case store.Gone:
		t.cause = st.Cause // the store calls notify no more
		close(t.gone)
		t.lose(t.reasonIn(st.Cause), st.Cause)
	}
}

// reasonIn returns the reason for a loss of which an error of the store tells; zero if it tells of none. An entry that
// went with its session was lost for the session's reason; if that has not been known here, it is now.
func (t *tenure) reasonIn(err error) keeper.Reason {
	expired, gone := errors.Is(err, store.ErrSessionLost), errors.Is(err, store.ErrGone)
	known := t.session.Reason()
	switch {
	case !expired && !gone:
		return 0
	case known != 0:
		return known
	case expired:
		t.session.Ended(err)
		return keeper.Expired
	default:
		return keeper.Evicted
	}
}

// lose ends the tenure with all its holds, unless it has ended. It does not block: the store may be calling.
func (t *tenure) lose(reason keeper.Reason, cause error) {
	q := t.queue
	q.mu.Lock()
	if t.over {
		q.mu.Unlock()
		return
	}
	t.over, t.loss = true, &keeper.LostError{Reason: reason, Err: cause}
	forget := t.forget
	t.stopPublishingLocked()
	// A holder that learns of the loss finds its place out of the queue; and when that gives the turn to another, all the
	// holders have been told.
	var handed []*Hold
	for _, h := range t.holds {
		h.loseLocked(reason, cause)
		if h.handed {
			handed = append(handed, h)
		}
	}
	for _, h := range handed {
		q.leaveLocked(h.place)
	}
	q.mu.Unlock()
	forget()
	for _, h := range handed {
		q.client.forgetPlace(q)
		h.tellOfLoss()
	}
}

// tellOfContention has Contended called, if there is such a hook, for the first hold that is handed over.
func (t *tenure) tellOfContention(h *Hold) {
	c := t.queue.client
	hook := c.opts.Hooks.Contended
	if hook == nil {
		return
	}
	t.queue.mu.Lock()
	first := !t.hooked
	t.hooked = true
	t.queue.mu.Unlock()
	if !first {
		return
	}
	t.whenContended(func() {
		if !t.over { // with the queue's mutex held
			c.news.tell(func() { hook(h.started, ContentionEvent{Name: h.Name(), Token: h.token}) })
		}
	})
	t.watchBehind()
}

// whenContended has f called when somebody waits for the lock while the tenure has it: at once, if somebody does. f must
// not block. The store looks for others from the first call on.
func (t *tenure) whenContended(f func()) {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	t.onContended = append(t.onContended, f)
	if t.contended || len(q.line) > q.turns && !t.over {
		t.contendedLocked()
	}
}

// watchBehind has the store tell, once, when somebody waits behind the entry.
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
			t.behind = true
			t.contendedLocked()
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
