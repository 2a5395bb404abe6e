package etcdstore_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
)

// A foreignClient is another kind of lock client on etcd. join joins the line of a lock, closes
// acquired when the lock is acquired, and releases it, or leaves the line, when release is called.
type foreignClient struct {
	name string
	join func(t *testing.T, name string) (acquired <-chan struct{}, release func())
}

func foreignClients() []foreignClient {
	return []foreignClient{
		{"concurrency.Mutex", joinStock},
		{"concurrency.Election", joinElection},
		{"etcdctl lock", joinEtcdctl},
		{"lock service", joinLockService},
	}
}

func joinStock(t *testing.T, name string) (<-chan struct{}, func()) {
	session, err := concurrency.NewSession(server(t).Client(t), concurrency.WithTTL(int(longTTL.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	m := concurrency.NewMutex(session, name)
	acquired, ctx := make(chan struct{}), t.Context()
	go func() {
		if err := m.Lock(ctx); err == nil {
			close(acquired)
		} else if ctx.Err() == nil {
			t.Errorf("concurrency.Mutex: %v", err)
		}
	}()
	return acquired, func() {
		if err := m.Unlock(ctx); err != nil {
			t.Errorf("concurrency.Mutex: %v", err)
		}
	}
}

// joinElection campaigns with etcd's own election. It and Stile exclude each other; its observers cannot
// read Stile's values.
func joinElection(t *testing.T, name string) (<-chan struct{}, func()) {
	session, err := concurrency.NewSession(server(t).Client(t), concurrency.WithTTL(int(longTTL.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	e := concurrency.NewElection(session, name)
	acquired, ctx := make(chan struct{}), t.Context()
	go func() {
		if err := e.Campaign(ctx, "theirs"); err == nil {
			close(acquired)
		} else if ctx.Err() == nil {
			t.Errorf("concurrency.Election: %v", err)
		}
	}()
	return acquired, func() {
		if err := e.Resign(ctx); err != nil {
			t.Errorf("concurrency.Election: %v", err)
		}
	}
}

func joinEtcdctl(t *testing.T, name string) (<-chan struct{}, func()) {
	var stderr bytes.Buffer
	cmd := exec.Command(testservers.Binary(t, "etcdctl"), "--endpoints", server(t).Endpoint(),
		"--dial-timeout=3m", "--command-timeout=3m", "lock", fmt.Sprintf("--ttl=%d", int(longTTL.Seconds())), name)
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("etcdctl lock: %v: %s", err, stderr.String())
		}
	})
	t.Cleanup(end)
	acquired := make(chan struct{})
	go func() {
		if bufio.NewScanner(out).Scan() { // the key
			close(acquired)
		}
	}()
	return acquired, end
}

// joinLockService uses the server's lock service, as clients in other languages do.
func joinLockService(t *testing.T, name string) (<-chan struct{}, func()) {
	lease, err := server(t).Client(t).Grant(t.Context(), int64(longTTL.Seconds()))
	if err != nil {
		t.Fatal(err)
	}
	acquired, key := make(chan struct{}), make(chan []byte, 1)
	ctx := t.Context()
	go func() {
		var locked struct{ Key []byte }
		err := post(ctx, server(t).Endpoint(), "/v3/lock/lock",
			map[string]any{"name": []byte(name), "lease": fmt.Sprint(int64(lease.ID))}, &locked)
		if err == nil {
			key <- locked.Key
			close(acquired)
		} else if ctx.Err() == nil {
			t.Errorf("lock service: %v", err)
		}
	}()
	return acquired, func() {
		err := post(ctx, server(t).Endpoint(), "/v3/lock/unlock", map[string]any{"key": <-key}, &struct{}{})
		if err != nil {
			t.Errorf("lock service: %v", err)
		}
	}
}

func post(ctx context.Context, endpoint, path string, request map[string]any, reply any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+endpoint+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return json.NewDecoder(res.Body).Decode(reply)
}

func forEachForeignClient(t *testing.T, f func(t *testing.T, r foreignClient, c *stile.Client, name string)) {
	t.Parallel()
	for _, r := range foreignClients() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			f(t, r, newClient(t, server(t).Client(t), longTTL), newName(t))
		})
	}
}

func wait(t *testing.T, event <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(testTimeout):
		t.Fatalf("not within %v: %s", testTimeout, what)
	}
}

// Promise: P1
func TestInterop_stileWaitsForForeignClient(t *testing.T) {
	forEachForeignClient(t, func(t *testing.T, r foreignClient, c *stile.Client, name string) {
		acquired, release := r.join(t, name)
		wait(t, acquired, "the foreign client acquires the lock")

		_, err := c.Mutex(name).TryLock(t.Context())
		var held *stile.HeldError
		if !errors.As(err, &held) || held.Holder == nil || !held.Holder.Foreign {
			t.Errorf("TryLock: got %v, want a HeldError with a foreign holder", err)
		}
		place := join(t, c, name)
		if got := place.Ahead(); got != 1 {
			t.Errorf("%d entries are ahead of the waiter, want 1", got)
		}
		l, err := c.Line(t.Context(), name)
		if err != nil || len(l.Holders) != 1 || !l.Holders[0].Foreign || len(l.Waiters) != 1 || l.Waiters[0].Foreign {
			t.Errorf("got line %+v, %v; want a foreign holder and a Stile waiter", l, err)
		}
		select {
		case <-place.Ready():
			t.Fatal("Stile and the foreign client both hold the lock")
		default:
		}
		release()
		awaitHold(t, place)
	})
}

// Promise: P1
func TestInterop_foreignClientWaitsForStile(t *testing.T) {
	forEachForeignClient(t, func(t *testing.T, r foreignClient, c *stile.Client, name string) {
		hold := lock(t, c, name)
		acquired, leave := r.join(t, name)
		eventually(t, "the foreign client is in the line", func() bool {
			l, err := c.Line(t.Context(), name)
			return err == nil && len(l.Waiters) == 1 && l.Waiters[0].Foreign
		})
		select {
		case <-acquired:
			t.Fatal("Stile and the foreign client both hold the lock")
		case <-hold.Lost():
			t.Fatal(hold.Err())
		default:
		}
		release(t, hold)
		wait(t, acquired, "the foreign client acquires the lock")
		if _, err := c.Mutex(name).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock: got %v, want ErrHeld: the foreign client has the lock", err)
		}
		leave()
	})
}

// A waiter of either kind keeps its place between waiters of the other kind.
// Promise: P3
func TestInterop_admissionFollowsArrival(t *testing.T) {
	forEachForeignClient(t, func(t *testing.T, r foreignClient, c *stile.Client, name string) {
		first := lock(t, c, name)
		acquired, leave := r.join(t, name)
		eventually(t, "the foreign client is in the line", func() bool {
			l, err := c.Line(t.Context(), name)
			return err == nil && len(l.Waiters) == 1
		})
		last := join(t, newClient(t, server(t).Client(t), longTTL), name)
		release(t, first)
		wait(t, acquired, "the foreign client acquires the lock")
		if last.Ahead() > 1 {
			// The event of the release may be in flight. The number ahead falls from two to one,
			// and never to zero.
			eventually(t, "the waiter is notified of the release", func() bool { return last.Ahead() == 1 })
		}
		select {
		case <-last.Ready():
			t.Fatal("the last entry was admitted before the foreign client had left")
		default:
		}
		leave()
		if h := awaitHold(t, last); h.Token() <= first.Token() {
			t.Errorf("got token %d after %d", h.Token(), first.Token())
		}
	})
}

// Promise: P1
func TestInterop_contention(t *testing.T) {
	t.Parallel()
	const rounds = 8 // the stock mutex takes a tenth of a second for each
	name, inside := newName(t), atomic.Int32{}
	critical := func(client string) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%s holds the lock together with %d others", client, n-1)
		}
		time.Sleep(time.Millisecond)
		inside.Add(-1)
	}
	var working sync.WaitGroup
	for range 2 {
		c := newClient(t, server(t).Client(t), longTTL)
		working.Go(func() {
			for range rounds {
				err := c.Mutex(name).Do(t.Context(), func(context.Context, *stile.Hold) error {
					critical("Stile")
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
		session, err := concurrency.NewSession(server(t).Client(t), concurrency.WithTTL(int(longTTL.Seconds())))
		if err != nil {
			t.Fatal(err)
		}
		working.Go(func() {
			m := concurrency.NewMutex(session, name)
			for range rounds {
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				critical("concurrency.Mutex")
				if err := m.Unlock(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	working.Wait()
}

// The stock mutex accepts a negative lease id, if the caller requests one, and writes it with its
// sign.
func TestInterop_negativeLeaseID(t *testing.T) {
	t.Parallel()
	cli, name := server(t).Client(t), newName(t)
	lease := clientv3.LeaseID(-time.Now().UnixNano())
	if _, err := clientv3.RetryLeaseClient(cli).LeaseGrant(t.Context(), leaseRequest(lease, int64(longTTL.Seconds()))); err != nil {
		t.Fatal(err)
	}
	session, err := concurrency.NewSession(cli, concurrency.WithLease(lease))
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewMutex(session, name).Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, server(t).Client(t), longTTL)
	if _, err := c.Mutex(name).TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
		t.Errorf("TryLock: got %v, want ErrHeld", err)
	}
}

// etcd's recipe of a read-write lock has its keys one level deeper than Stile, under name/read and
// name/write. So the two do not exclude each other on the same name, and neither gets stuck on the
// other's keys.
func TestInterop_recipeRWMutex(t *testing.T) {
	t.Parallel()
	cli, name := server(t).Client(t), newName(t)
	c := newClient(t, cli, longTTL)
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(int(longTTL.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	theirs := recipe.NewRWMutex(session, name)
	locked := func(lock func() error) <-chan struct{} {
		acquired := make(chan struct{})
		go func() {
			if err := lock(); err != nil {
				t.Error(err)
			}
			close(acquired)
		}()
		return acquired
	}

	wait(t, locked(theirs.Lock), "the recipe's writer on a free lock")
	for _, n := range []string{name, name + "/read", name + "/write"} {
		hold, err := c.RWMutex(n).TryLock(t.Context())
		if err != nil {
			t.Errorf("TryLock of %q beside the recipe's writer: %v", n, err)
			continue
		}
		release(t, hold)
	}
	if err := theirs.Unlock(); err != nil {
		t.Error(err)
	}

	hold := lock(t, c, name)
	wait(t, locked(theirs.RLock), "the recipe's reader beside a holder")
	if err := theirs.RUnlock(); err != nil {
		t.Error(err)
	}
	acquired := locked(theirs.Lock) // may wait for the holder, whose key is below the name too
	release(t, hold)
	wait(t, acquired, "the recipe's writer after a release")
	if l, err := c.Line(t.Context(), name); err != nil || len(l.Holders)+len(l.Waiters) > 0 {
		t.Errorf("got the line %+v, %v; want the recipe's keys ignored", l, err)
	}
	if err := theirs.Unlock(); err != nil {
		t.Error(err)
	}
}
