package locker

import (
	"context"
	"time"
)

// A renewer renews a lock at every third of its TTL, until it is stopped or finds that the lock is
// lost. It is for the libraries that leave renewing to their users, and does what their
// documentation, or that of others, advises.
type renewer struct {
	cancel  context.CancelFunc
	stopped chan struct{}
	lost    chan struct{}
	why     string // written before lost is closed
}

// startRenewer starts a renewer, which also stops when ctx ends. Each call of renew gets a third of
// the TTL. An error of renew means that the lock is lost.
func startRenewer(ctx context.Context, ttl time.Duration, renew func(context.Context) error) *renewer {
	ctx, cancel := context.WithCancel(ctx)
	e := &renewer{cancel: cancel, stopped: make(chan struct{}), lost: make(chan struct{})}
	go func() {
		defer close(e.stopped)
		e.run(ctx, ttl/3, renew)
	}()
	return e
}

func (e *renewer) run(ctx context.Context, interval time.Duration, renew func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, interval)
		err := renew(bounded)
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

// stop stops the renewer and waits until it has stopped.
func (e *renewer) stop() {
	e.cancel()
	<-e.stopped
}
