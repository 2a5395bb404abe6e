package stile

import (
	"context"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
)

// sharing is how the places of one process use a tenure in shared mode together. The first of them puts the entry into the
// line. From then on the tenure waits in a goroutine of its own, because any of them may give up.
type sharing struct {
	done chan struct{} // closed when holds can be lent, or never will be; err is set
	err  error

	// These are guarded by the queue's mutex.
	acquired bool               // holds can be lent
	closes   bootclock.Instant  // when others cannot join any more, once acquired
	giveUp   context.CancelFunc // ends the waiting; nil if it has not begun
}

// shareFor is how long places may join a tenure after its entry was admitted. They pass those who wait behind the entry in
// the store. The store tells of these, and then nobody joins any more; but what it tells may be lost or late. A place that comes
// after this time makes an entry of its own, behind everybody, so that readers without end do not keep a writer out for ever.
const shareFor = time.Second

// share returns a tenure in shared mode for p to use: the one there is, if others may join it, or a new one. It waits until
// holds can be lent. On failure p does not use a tenure.
func (p *Place) share(ctx context.Context) (*tenure, error) {
	q := p.queue
	q.mu.Lock()
	t := q.shared
	first := t == nil || !t.openLocked()
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
		return nil, errLeaving
	}
}

// shareNow is share for a place that does not wait: it returns a tenure whose entry is admitted already, or nil.
func (p *Place) shareNow() *tenure {
	q := p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.shared
	if t == nil || !t.openLocked() || !t.sharing.acquired {
		return nil
	}
	t.users++
	p.tenure = t
	return t
}

// openLocked reports whether other places may join the tenure: only those who came before anybody waited behind its entry.
func (t *tenure) openLocked() bool {
	return !t.over && !t.behind && (!t.sharing.acquired || bootclock.Now().Before(t.sharing.closes))
}

// enterShared puts the entry of a tenure that others may join into the line, and has the tenure wait there. If that fails
// because the caller has given up, the others go for a new tenure; otherwise it fails for them too.
func (t *tenure) enterShared(ctx context.Context) error {
	err := t.enter(ctx, false)
	if err != nil {
		forOthers := err
		if ctx.Err() != nil {
			forOthers = t.joinAgain(err)
		}
		t.finishSharing(forOthers)
		return err
	}
	call, err := t.queue.client.begin(context.Background())
	if err != nil { // the client is closed, and the entry goes with its session
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
		if unused := t.finishSharing(call.ended(t.await(waiting, false))); unused {
			t.withdraw()
		}
	}()
	return nil
}

// finishSharing lets the places know that holds can be lent or, with an error, never will be. It reports whether they have
// all given up.
func (t *tenure) finishSharing(err error) (unused bool) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	unused = t.users == 0
	s := t.sharing
	s.acquired, s.err = err == nil, err
	s.closes = bootclock.Now().Add(shareFor)
	t.over = t.over || err != nil
	close(s.done)
	return unused
}

// leaveShared ends the use of a tenure by a place that does not wait any longer.
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
