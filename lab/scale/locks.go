//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/storeurl"
)

// connection is a process's way to the servers, with which it opens sessions.
type connection interface {
	// open opens a session. On some stores it has a connection of its own.
	open(ctx context.Context, ttl time.Duration) (session, error)
	close()
}

// session is a session of one of the contenders.
type session interface {
	// lock acquires a lock.
	lock(ctx context.Context, name string) (held, error)
	close(ctx context.Context) error
}

// held is a lock that a session has acquired.
type held interface {
	release(ctx context.Context) error
}

// connect connects to the servers at a URL of package storeurl.
func connect(ctx context.Context, contender, rawURL string) (connection, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	if contender == stileName {
		conn, err := storeurl.Open(ctx, rawURL, nil)
		if err != nil {
			return nil, err
		}
		return stileConnection{conn.Store, func() { _ = conn.Close() }}, nil
	}
	addrs := strings.Split(u.Host, ",")
	switch contender {
	case peers[etcdStore]:
		cli, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
		return etcdConnection{cli}, err
	case peers[zkStore]:
		return zkConnection{addrs}, nil
	}
	return nil, fmt.Errorf("unknown contender %q", contender)
}

type stileConnection struct {
	store      store.Store
	disconnect func()
}

func (c stileConnection) close() { c.disconnect() }

func (c stileConnection) open(_ context.Context, ttl time.Duration) (session, error) {
	return c.openWith(&stile.Options{TTL: ttl})
}

func (c stileConnection) openWith(opts *stile.Options) (*stileSession, error) {
	client, err := stile.New(c.store, opts)
	if err != nil {
		return nil, err
	}
	return &stileSession{client}, nil
}

type stileSession struct{ client *stile.Client }

func (s *stileSession) lock(ctx context.Context, name string) (held, error) {
	hold, err := s.client.Mutex(name).Lock(ctx)
	if err != nil {
		return nil, err
	}
	return stileHeld{hold}, nil
}

func (s *stileSession) close(ctx context.Context) error { return s.client.Close(ctx) }

type stileHeld struct{ *stile.Hold }

func (h stileHeld) release(ctx context.Context) error { return h.Release(ctx) }

type etcdConnection struct{ cli *clientv3.Client }

func (c etcdConnection) close() { _ = c.cli.Close() }

func (c etcdConnection) open(ctx context.Context, ttl time.Duration) (session, error) {
	s, err := concurrency.NewSession(c.cli, concurrency.WithTTL(int(ttl.Seconds())), concurrency.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	return etcdSession{s}, nil
}

type etcdSession struct{ session *concurrency.Session }

func (s etcdSession) lock(ctx context.Context, name string) (held, error) {
	m := concurrency.NewMutex(s.session, name)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return etcdHeld{m}, nil
}

func (s etcdSession) close(context.Context) error { return s.session.Close() }

type etcdHeld struct{ mutex *concurrency.Mutex }

func (h etcdHeld) release(ctx context.Context) error { return h.mutex.Unlock(ctx) }

type zkConnection struct{ addrs []string }

func (c zkConnection) close() {}

func (c zkConnection) open(ctx context.Context, ttl time.Duration) (session, error) {
	conn, err := connectZooKeeper(ctx, c.addrs, ttl)
	if err != nil {
		return nil, err
	}
	return zkSession{conn}, nil
}

type zkSession struct{ conn *zk.Conn }

func (s zkSession) lock(_ context.Context, name string) (held, error) {
	l := zk.NewLock(s.conn, "/"+name, zk.WorldACL(zk.PermAll))
	if err := l.Lock(); err != nil {
		return nil, err
	}
	return zkHeld{l}, nil
}

func (s zkSession) close(context.Context) error {
	s.conn.Close()
	return nil
}

type zkHeld struct{ lock *zk.Lock }

func (h zkHeld) release(context.Context) error { return h.lock.Unlock() }

// lockOnce acquires a lock with a session of its own. unlock releases it and closes the session.
func lockOnce(ctx context.Context, c connection, name string) (unlock func(context.Context) error, err error) {
	s, err := c.open(ctx, ttl)
	if err != nil {
		return nil, err
	}
	h, err := s.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return errors.Join(h.release(ctx), s.close(ctx)) }, nil
}
