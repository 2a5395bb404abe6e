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

// etcdLocker is etcd's own client/v3/concurrency. It has one Session for the process, which it
// opens again after it has ended, and one Mutex for each call. The holder is notified of a loss by
// Session.Done; there is no deadline. The token is the revision of Mutex.Header, which is what
// users of the package take as one.
//
// Two Mutexes of one Session with the same name do not exclude each other. So goroutines queue
// locally for a name first, as users of the package must do too.
type etcdLocker struct {
	client *clientv3.Client
	ttl    int

	mu          sync.Mutex
	session     *concurrency.Session
	localQueues map[string]chan struct{}
}

// dialTimeout bounds connecting to a server, and its reply to the first request.
const dialTimeout = 5 * time.Second

func openConcurrency(ctx context.Context, c Config, _ string) (Locker, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Addresses,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    10 * time.Second, // the same values as in storeurl, for Stile
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	l := &etcdLocker{client: client, ttl: int((c.TTL + time.Second - 1) / time.Second), localQueues: map[string]chan struct{}{}}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err := l.openSession(ctx); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return l, nil
}

// openSession returns a session that has not ended as far as is known. It opens one if necessary.
func (l *etcdLocker) openSession(ctx context.Context) (*concurrency.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil && !isClosed(l.session.Done()) {
		return l.session, nil
	}
	// The context of NewSession is also that of the session, which must outlive ctx. So only the
	// lease is granted with ctx.
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

func (l *etcdLocker) lock(ctx context.Context, name string, acquire func(*concurrency.Mutex, context.Context) error) (Hold, error) {
	localQueue := l.localQueue(name)
	select {
	case localQueue <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h, err := l.lockInEtcd(ctx, name, acquire)
	if err != nil {
		<-localQueue
		return nil, err
	}
	h.localQueue = localQueue
	return h, nil
}

func (l *etcdLocker) lockInEtcd(ctx context.Context, name string, acquire func(*concurrency.Mutex, context.Context) error) (*etcdHold, error) {
	session, err := l.openSession(ctx)
	if err != nil {
		return nil, err // no request for the lock was sent
	}
	mutex := concurrency.NewMutex(session, name)
	switch err := acquire(mutex, ctx); {
	case errors.Is(err, concurrency.ErrLocked):
		return nil, ErrTaken
	case errors.Is(err, concurrency.ErrSessionExpired):
		return nil, err
	case err != nil:
		return nil, unknownOutcome(err)
	}
	return &etcdHold{session: session, mutex: mutex, token: uint64(mutex.Header().Revision)}, nil
}

// localQueue returns the channel that is full while a goroutine of this process holds the lock, or
// requests it from etcd.
func (l *etcdLocker) localQueue(name string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.localQueues[name] == nil {
		l.localQueues[name] = make(chan struct{}, 1)
	}
	return l.localQueues[name]
}

// Close ends the session. The TTL bounds this; ctx does not.
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
	session    *concurrency.Session
	mutex      *concurrency.Mutex
	token      uint64
	localQueue chan struct{}
}

func (h *etcdHold) Token() uint64         { return h.token }
func (h *etcdHold) Until() int64          { return 0 }
func (h *etcdHold) Valid() bool           { return !isClosed(h.session.Done()) }
func (h *etcdHold) Lost() <-chan struct{} { return h.session.Done() }
func (h *etcdHold) Why() string           { return "the session has ended" }

// Release cannot report that the key had been deleted: Unlock returns no error then.
func (h *etcdHold) Release(ctx context.Context) error {
	defer func() { <-h.localQueue }()
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
