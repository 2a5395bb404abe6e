package stile

import (
	"context"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
)

// sharing is how the places of one process use a tenure in shared mode together. The tenure acquires its entry in a
// goroutine of its own, because any of them may give up while the others wait.
type sharing struct {
	cancel context.CancelFunc // ends the acquisition

	// These are guarded by the queue's mutex.
	acquired bool              // holds can be lent
	closes   bootclock.Instant // when others cannot join any more, once acquired
	err      error             // why the acquisition has failed

	done chan struct{} // closed when the acquisition is over
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
	if t != nil && t.openLocked() {
		t.users++
	} else {
		var err error
		if t, err = q.beginSharing(); err != nil {
			q.mu.Unlock()
			return nil, err
		}
		q.shared = t
	}
	p.tenure = t
	q.mu.Unlock()

	select {
	case <-t.sharing.done:
		return t, t.sharing.err
	case <-ctx.Done():
		t.giveUpSharing()
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

// beginSharing returns a tenure in shared mode that is being acquired.
func (q *queue) beginSharing() (*tenure, error) {
	call, err := q.client.begin(context.Background())
	if err != nil {
		return nil, err
	}
	t := newTenure(q, line.Shared)
	ctx, cancel := context.WithCancel(call.ctx)
	t.sharing = &sharing{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer call.done()
		defer cancel()
		t.acquireShared(ctx, call)
	}()
	return t, nil
}

func (t *tenure) acquireShared(ctx context.Context, call call) {
	err := call.ended(t.acquire(ctx, false))
	s := t.sharing
	t.queue.mu.Lock()
	unused := t.over && t.loss == nil // everybody has given up
	s.acquired, s.err = err == nil, err
	s.closes = bootclock.Now().Add(shareFor)
	if err != nil {
		t.over = true
	}
	close(s.done)
	t.queue.mu.Unlock()
	if unused {
		t.withdraw()
	}
}

// giveUpSharing ends the use of a tenure by a place that does not wait any longer.
func (t *tenure) giveUpSharing() {
	t.queue.mu.Lock()
	last, acquired := t.dropLocked(), t.sharing.acquired
	t.queue.mu.Unlock()
	switch {
	case last && acquired:
		t.queue.client.work.Go(t.withdraw)
	case last:
		t.sharing.cancel() // acquireShared withdraws
	}
}
