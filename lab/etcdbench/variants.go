package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/etcdstore"
)

// ttl is the same for all sessions.
const ttl = stile.DefaultTTL

// lock is one client's way to one lock. It is used by one goroutine. *concurrency.Mutex is one.
type lock interface {
	Lock(ctx context.Context) error
	Unlock(ctx context.Context) error
}

// client is one user of locks, with a connection and a session of its own.
type client interface {
	lock(name string) lock
}

// connector returns a client of one variant, with its session open. Nobody closes the sessions: the server is thrown
// away with them.
type connector func(ctx context.Context, cli *clientv3.Client) (client, error)

// rawClient makes the requests that no lock can do without, and nothing else.
type rawClient struct {
	cli     *clientv3.Client
	session *concurrency.Session
}

func connectRaw(_ context.Context, cli *clientv3.Client) (client, error) {
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(int(ttl/time.Second)))
	return &rawClient{cli, session}, err
}

func (c *rawClient) lock(name string) lock { return &rawLock{c, name} }

type rawLock struct {
	client *rawClient
	key    string
}

func (l *rawLock) Lock(ctx context.Context) error {
	resp, err := l.client.cli.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(l.key), "=", 0)).
		Then(clientv3.OpPut(l.key, "", clientv3.WithLease(l.client.session.Lease()))).
		Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("key %q is there already", l.key)
	}
	return err
}

func (l *rawLock) Unlock(ctx context.Context) error {
	_, err := l.client.cli.Delete(ctx, l.key)
	return err
}

// stockClient takes locks with the etcd client's own mutex.
type stockClient struct{ session *concurrency.Session }

func connectStock(_ context.Context, cli *clientv3.Client) (client, error) {
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(int(ttl/time.Second)))
	return &stockClient{session}, err
}

func (c *stockClient) lock(name string) lock { return concurrency.NewMutex(c.session, name) }

// stileClient takes locks with Stile, with default options.
type stileClient struct{ client *stile.Client }

func connectStile(ctx context.Context, cli *clientv3.Client) (client, error) {
	st, err := etcdstore.New(cli, nil)
	if err != nil {
		return nil, err
	}
	c, err := stile.New(st, nil)
	if err != nil {
		return nil, err
	}
	// The session is opened with the first lock.
	hold, err := c.Mutex(fmt.Sprintf("connect/%p", cli)).Lock(ctx)
	if err != nil {
		return nil, err
	}
	return &stileClient{c}, hold.Release(ctx)
}

func (c *stileClient) lock(name string) lock { return &stileLock{mutex: c.client.Mutex(name)} }

type stileLock struct {
	mutex *stile.Mutex
	hold  *stile.Hold
}

func (l *stileLock) Lock(ctx context.Context) (err error) {
	l.hold, err = l.mutex.Lock(ctx)
	return err
}

func (l *stileLock) Unlock(ctx context.Context) error { return l.hold.Release(ctx) }
