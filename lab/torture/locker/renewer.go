package locker

import (
	"context"
	"time"
)

// An extension renews a lock at every third of its TTL, until it is stopped or told that the lock is lost. It is for the
// libraries that leave renewing to their users: this is what their documentation, or that of others, advises.
type renewer struct {
	cancel  context.CancelFunc
	stopped chan struct{}
	lost    chan struct{}
	why     string // written before lost is closed
}

// extend begins an extension, which also stops when ctx ends. Each call of once is given a third of the TTL; its answer is
// not nil if the lock is lost.
func startRenewer(ctx context.Context, ttl time.Duration, once func(context.Context) error) *renewer {
	ctx, cancel := context.WithCancel(ctx)
	e := &renewer{cancel: cancel, stopped: make(chan struct{}), lost: make(chan struct{})}
	go func() {
		defer close(e.stopped)
		e.run(ctx, ttl/3, once)
	}()
	return e
}

func (e *renewer) run(ctx context.Context, every time.Duration, once func(context.Context) error) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, every)
		err := once(bounded)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			e.why = err.Error()
			close(e.lost)
			return
		}
	}
}

// stop ends the extension, and waits for it.
func (e *renewer) stop() {
	e.cancel()
	<-e.stopped
}
