package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/zkstore"
)

// ttl is the same for all sessions.
const ttl = 40 * time.Second

// lock is one client's way to one lock. It is used by one goroutine. *zk.Lock is one.
type lock interface {
	Lock() error
	Unlock() error
}

// client is one user of locks, with a connection and a session of its own.
type client interface {
	lock(name string) lock
	close()
}

func connectZK(server string) (*zk.Conn, error) {
	conn, events, err := zk.Connect([]string{server}, ttl, zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	for ev := range events {
		if ev.State == zk.StateHasSession {
			break
		}
	}
	return conn, nil
}

var everybody = zk.WorldACL(zk.PermAll)

// rawClient makes the requests that no lock can do without, and nothing else: it creates a node and deletes it.
type rawClient struct{ conn *zk.Conn }

func connectRaw(_ context.Context, server string) (client, error) {
	conn, err := connectZK(server)
	return rawClient{conn}, err
}

func (c rawClient) close() { c.conn.Close() }

func (c rawClient) lock(name string) lock { return &rawLock{conn: c.conn, dir: "/" + name} }

type rawLock struct {
	conn *zk.Conn
	dir  string
	made bool
	node string
}

func (l *rawLock) Lock() (err error) {
	if !l.made {
		l.made = true
		if _, err := l.conn.Create(l.dir, nil, zk.FlagPersistent, everybody); err != nil {
			return err
		}
	}
	l.node, err = l.conn.Create(l.dir+"/lock-", nil, zk.FlagEphemeralSequential, everybody)
	return err
}

func (l *rawLock) Unlock() error { return l.conn.Delete(l.node, -1) }

// stockClient takes locks with go-zookeeper's Lock.
type stockClient struct{ conn *zk.Conn }

func connectStock(_ context.Context, server string) (client, error) {
	conn, err := connectZK(server)
	return stockClient{conn}, err
}

func (c stockClient) close() { c.conn.Close() }

func (c stockClient) lock(name string) lock { return zk.NewLock(c.conn, "/"+name, everybody) }

// stileClient takes locks with Stile, with default options but for the TTL.
type stileClient struct {
	client *stile.Client
	store  *zkstore.Store
}

func connectStile(ctx context.Context, server string) (client, error) {
	st, err := zkstore.New([]string{server}, nil)
	if err != nil {
		return nil, err
	}
	c, err := stile.New(st, &stile.Options{TTL: ttl})
	if err != nil {
		return nil, err
	}
	// The session is opened with the first lock.
	hold, err := c.Mutex(fmt.Sprintf("connect/%p", c)).Lock(ctx)
	if err != nil {
		return nil, err
	}
	return stileClient{c, st}, hold.Release(ctx)
}

func (c stileClient) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.client.Close(ctx) // it goes with its server otherwise
	_ = c.store.Close()
}

func (c stileClient) lock(name string) lock { return &stileLock{mutex: c.client.Mutex(name)} }

type stileLock struct {
	mutex *stile.Mutex
	hold  *stile.Hold
}

func (l *stileLock) Lock() (err error) {
	l.hold, err = l.mutex.Lock(context.Background())
	return err
}

func (l *stileLock) Unlock() error { return l.hold.Release(context.Background()) }
