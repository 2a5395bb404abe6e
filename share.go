package stile

import (
	"context"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
)

// sharing is the state of a tenure in shared mode that several places of the client use. The first
// place puts the entry into the line. After that the tenure waits in its own goroutine, because any
// of the places may give up.
type sharing struct {
	done chan struct{} // closed when holds can be lent, or err is set
	err  error

	// Guarded by the queue's mutex.
	acquired  bool               // holds can be lent
	joinUntil bootclock.Instant  // once acquired, no place joins after this time
	giveUp    context.CancelFunc // ends the wait; nil before it starts
}

// shareWindow is how long places may join a tenure after its admission. Those places overtake the
// waiters behind the entry in the store. The store notifies the tenure of such waiters, and then no
// place joins any more; but the notification may be late or lost. The window bounds how long
// readers can keep a writer out then: a later place makes a new entry, at the end of the line.
const shareWindow = time.Second

// share returns a shared tenure for p: the current one if p may join it, or a new one. It waits
// until holds can be lent. On failure p uses no tenure.
func (p *Place) share(ctx context.Context) (*tenure, error) {
	q := p.queue
	q.mu.Lock()
	t := q.shared
	first := t == nil || !t.joinableLocked()
	if first {
		t = newTenure(q, line.Shared, p.owner)
		t.sharing = &sharing{done: make(chan struct{})}
		q.shared = t
	} else {
		t.users++
	}
	p.tenure = t
	q.mu.Unlock()

	if first {
		if err := t.enterShared(ctx); err != nil {
			return nil, err
		}
	}
	select {
	case <-t.sharing.done:
		return t, t.sharing.err
	case <-ctx.Done():
		t.leaveShared()
		return nil, errGaveUp
	}
}

// tryShare returns a tenure that is already admitted and that p may join, or nil. It does not wait.
func (p *Place) tryShare() *tenure {
	q := p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.shared
	if t == nil || !t.joinableLocked() || !t.sharing.acquired {
		return nil
	}
	t.users++
	p.tenure = t
	return t
}

// joinableLocked reports whether places may join the tenure: until another client waits behind its
// entry.
func (t *tenure) joinableLocked() bool {
	return !t.over && !t.waitersBehind && (!t.sharing.acquired || bootclock.Now().Before(t.sharing.joinUntil))
}

// enterShared puts the entry of a shared tenure into the line and starts the tenure's wait. If it
// fails because the caller gave up, the other places get a new tenure; if it fails otherwise, they
// fail too.
func (t *tenure) enterShared(ctx context.Context) error {
	err := t.enter(ctx, false)
	if err != nil {
		forOthers := err
		if ctx.Err() != nil {
			forOthers = t.rejoinError(err)
		}
		t.finishSharing(forOthers)
		return err
	}
	call, err := t.queue.client.track(context.Background())
	if err != nil { // the client is closed: the entry ends with its session
		t.finishSharing(err)
		return err
	}
	waiting, giveUp := context.WithCancel(call.ctx)
	t.queue.mu.Lock()
	t.sharing.giveUp = giveUp
	t.queue.mu.Unlock()
	go func() {
		defer call.done()
		defer giveUp()
		if unused := t.finishSharing(call.withCause(t.await(waiting, false))); unused {
			t.withdraw()
		}
	}()
	return nil
}

// finishSharing publishes the outcome of the wait to the places: nil if holds can be lent. It
// reports whether all places have given up.
func (t *tenure) finishSharing(err error) (unused bool) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	unused = t.users == 0
	s := t.sharing
	s.acquired, s.err = err == nil, err
	s.joinUntil = bootclock.Now().Add(shareWindow)
	t.over = t.over || err != nil
	close(s.done)
	return unused
}

// leaveShared ends the use of a tenure by a place that gave up.
func (t *tenure) leaveShared() {
	t.queue.mu.Lock()
	last, acquired, giveUp := t.dropLocked(), t.sharing.acquired, t.sharing.giveUp
	t.queue.mu.Unlock()
	switch {
	case last && acquired:
		t.queue.client.work.Go(t.withdraw)
	case last:
		giveUp()
	}
}
