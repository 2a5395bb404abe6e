package locker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/stilelock/stile/lab/torture/history"
)

// etcdLocker is etcd's own client/v3/concurrency: one Session for the process, opened again when it has ended, and a Mutex
// for each call. A hold ends for its holder with Session.Done; there is no deadline. The token is the revision of
// Mutex.Header, as the package's users take it.
//
// Two Mutexes of one Session with the same name do not exclude each other, so that here, as its users must, goroutines
// queue for a name among themselves first.
type etcdLocker struct {
	client *clientv3.Client
	ttl    int

	mu         sync.Mutex
	session    *concurrency.Session
	localLocks map[string]chan struct{}
}

// dialTimeout is how long a server may take to be connected to, or to answer the first request.
const dialTimeout = 5 * time.Second

func openConcurrency(ctx context.Context, c Config, _ string) (Locker, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Addresses,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    10 * time.Second, // as storeurl has it for Stile
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	l := &etcdLocker{client: client, ttl: int((c.TTL + time.Second - 1) / time.Second), localLocks: map[string]chan struct{}{}}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err := l.openSession(ctx); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return l, nil
}

// opened returns a session that has not ended as far as is known.
func (l *etcdLocker) openSession(ctx context.Context) (*concurrency.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil && !isClosed(l.session.Done()) {
		return l.session, nil
	}
	// NewSession's context is also the session's: it must not end with ctx. So the lease is taken apart from it.
	lease, err := l.client.Grant(ctx, int64(l.ttl))
	if err != nil {
		return nil, err
	}
	l.session, err = concurrency.NewSession(l.client, concurrency.WithLease(lease.ID), concurrency.WithTTL(l.ttl))
	return l.session, err
}

func (l *etcdLocker) Offers() history.Offers {
	return history.Offers{Tokens: true, Loss: true, Fair: true}
}

func (l *etcdLocker) Lock(ctx context.Context, name string) (Hold, error) {
	return l.lock(ctx, name, (*concurrency.Mutex).Lock)
}

func (l *etcdLocker) TryLock(ctx context.Context, name string) (Hold, error) {
	return l.lock(ctx, name, (*concurrency.Mutex).TryLock)
}

func (l *etcdLocker) lock(ctx context.Context, name string, how func(*concurrency.Mutex, context.Context) error) (Hold, error) {
	localLock := l.localLock(name)
	select {
	case localLock <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h, err := l.lockSession(ctx, name, how)
	if err != nil {
		<-localLock
		return nil, err
	}
	h.localLock = localLock
	return h, nil
}

func (l *etcdLocker) lockSession(ctx context.Context, name string, how func(*concurrency.Mutex, context.Context) error) (*etcdHold, error) {
	session, err := l.openSession(ctx)
	if err != nil {
		return nil, err // nothing has been asked for yet
	}
	mutex := concurrency.NewMutex(session, name)
	switch err := how(mutex, ctx); {
	case errors.Is(err, concurrency.ErrLocked):
		return nil, ErrTaken
	case errors.Is(err, concurrency.ErrSessionExpired):
		return nil, err
	case err != nil:
		return nil, unknownOutcome(err)
	}
	return &etcdHold{session: session, mutex: mutex, token: uint64(mutex.Header().Revision)}, nil
}

// turn returns the channel that is full while somebody in this process has a name, or asks etcd for it.
func (l *etcdLocker) localLock(name string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.localLocks[name] == nil {
		l.localLocks[name] = make(chan struct{}, 1)
	}
	return l.localLocks[name]
}

// Close ends the session, which is bounded by the TTL, whatever ctx says.
func (l *etcdLocker) Close(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.session != nil {
		err = l.session.Close()
	}
	return errors.Join(err, l.client.Close())
}

type etcdHold struct {
	session   *concurrency.Session
	mutex     *concurrency.Mutex
	token     uint64
	localLock chan struct{}
}

func (h *etcdHold) Token() uint64         { return h.token }
func (h *etcdHold) Until() int64          { return 0 }
func (h *etcdHold) Valid() bool           { return !isClosed(h.session.Done()) }
func (h *etcdHold) Lost() <-chan struct{} { return h.session.Done() }
func (h *etcdHold) Why() string           { return "the session is done" }

// Release cannot know whether the key had gone before: Unlock does not tell.
func (h *etcdHold) Release(ctx context.Context) error {
	defer func() { <-h.localLock }()
	lost := !h.Valid()
	err := h.mutex.Unlock(ctx)
	if lost {
		return fmt.Errorf("%w: %s", ErrLost, h.Why())
	}
	return err
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
