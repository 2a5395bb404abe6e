package redisstore_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// After a failover an address, such as a DNS name or a proxy, leads to another server. Existing
// connections stay with the old server, which continues as a replica.
// Promise: P7
func TestServer_leavesDemotedMaster(t *testing.T) {
	t.Parallel()
	for what, demote := range map[string]func(old, now *testservers.Redis){
		"a replica": func(old, now *testservers.Redis) { old.ReplicaOf(now) },
		"a replica without its master": func(old, _ *testservers.Redis) {
			old.Do("CONFIG", "SET", "replica-serve-stale-data", "no")
			old.Do("REPLICAOF", "127.0.0.1", "1")
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, 2)
			old, now := servers[0], servers[1]
			var address atomic.Value
			address.Store(old.Addr())
			options := redisstore.ClientOptions("moves:6379")
			options.ConnWriteTimeout = testTimeout // only the store closes a connection
			options.DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return d.DialContext(ctx, "tcp", address.Load().(string))
			}
			st := newStore(t, connectWith(t, options), nil)
			st.DisablePolling()
			se := open(t, st, longTTL)
			hold(t, se, newName(t)).leave(t)
			now.ReplicaOf(old)
			eventually(t, "the replica knows the session", func() bool {
				n, err := now.Do("EXISTS", "//session/"+se.ID()).AsInt64()
				return err == nil && n == 1
			})
			now.ReplicaOf(nil)
			address.Store(now.Addr())
			demote(old, now)
			// A request on a connection made after the address has moved succeeds. The next one, on
			// another connection, detects the failover.
			eventually(t, "the session is confirmed and the client subscribed at the new master", func() bool {
				channels, err := now.Do("PUBSUB", "CHANNELS").AsStrSlice()
				return se.Confirm(t.Context()) == nil && err == nil && len(channels) > 0
			})

			name := newName(t)
			holder := hold(t, open(t, storeAt(t, now.Addr()), longTTL), name)
			waiter := join(t, se, name, line.Exclusive)
			waiter.checkWaits(t)
			holder.leave(t)
			waiter.await(t, store.Admitted) // polling is disabled
		})
	}
}

// A master is demoted while it waits for its replicas, and promoted again. Like any failover that
// only delays requests.
// Promise: P7
func TestWaitReplicas_demotionDuringWait(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	master, replica := servers[0], servers[1]
	replica.ReplicaOf(master)
	st := newStore(t, connect(t, master.Addr()), &redisstore.Options{WaitReplicas: 1, WaitTimeout: testTimeout})
	se := open(t, st, longTTL)
	hold(t, se, newName(t)).leave(t) // loads the script
	replica.Pause()
	joined := make(chan error, 1)
	var s *testEntry
	go func() {
		var err error
		s, err = tryJoin(t.Context(), se, newName(t), line.Exclusive)
		joined <- err
	}()
	eventually(t, "the master waits for its replica, and is demoted", func() bool {
		if info, _ := master.Do("INFO", "clients").ToString(); strings.Contains(info, "blocked_clients:0") {
			return false
		}
		master.Do("REPLICAOF", "127.0.0.1", "1")
		defer master.Do("REPLICAOF", "NO", "ONE")
		return errorStat(t, master, "UNBLOCKED") != ""
	})
	replica.Resume()
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	s.await(t, store.Admitted)
}

// oldVersionConn is a connection to a server that seems to have version 6.
type oldVersionConn struct {
	net.Conn
	version string
}

func (c oldVersionConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	copy(p, bytes.ReplaceAll(p[:n], []byte("\r\n"+c.version+"\r\n"), []byte("\r\n6"+c.version[1:]+"\r\n")))
	return n, err
}

func TestOpen_serverTooOld(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	info, err := server.Do("INFO", "server").ToString()
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(info, "redis_version:")
	version, _, _ := strings.Cut(after, "\r")
	options := redisstore.ClientOptions(server.Addr())
	options.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		return oldVersionConn{conn, version}, err
	}
	_, err = newStore(t, connectWith(t, options), nil).Open(t.Context(), store.SessionOptions{TTL: longTTL})
	if want := "Redis 6" + version[1:] + "; Stile needs 7.0 or newer"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Open: got %v, want %q", err, want)
	}
}

func TestCheckSupported(t *testing.T) {
	t.Parallel()
	for version, tooOld := range map[string]bool{
		"6.2.14": true, "5.0": true, "6": true, "7.0.0": false, "7.2.4": false, "8.0.1": false, "10.1": false, "": false, "unstable": false,
	} {
		if err := redisstore.CheckSupported(version); (err != nil) != tooOld {
			t.Errorf("version %q: %v", version, err)
		}
	}
}

// A proxy may hide the server's version.
func TestOpen_serverWithoutVersion(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	st := newStore(t, noHello{connect(t, server.Addr())}, nil)
	hold(t, open(t, st, longTTL), newName(t)).leave(t)
}

// noHello is a Redis client of servers without HELLO.
type noHello struct{ rueidis.Client }

func (c noHello) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	if multi[0].Commands()[0] == "HELLO" {
		multi[0] = c.B().Arbitrary("OLLEH").Build()
	}
	return c.Client.DoMulti(ctx, multi...)
}

// The errors of Redis 7.0, later versions and Valkey if the user lacks a permission that the script
// needs.
func TestDenied(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"ERR The user executing the script can't run this command or subcommand script: 8d0",
		"ERR ACL failure in script: User stile has no permissions to run the 'publish' command script: 8d0",
	} {
		if !redisstore.Denied(text) {
			t.Errorf("%q: got false, want true", text)
		}
	}
	if redisstore.Denied("ERR value is not an integer") {
		t.Error("another error: got true, want false")
	}
}

// The client has several connections and uses any of them. All connections to the old master must
// be closed.
// Promise: P7
func TestServer_closesAllConnectionsToDemotedMaster(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	old, now := servers[0], servers[1]
	now.ReplicaOf(old)
	var address atomic.Value
	address.Store(old.Addr())
	options := redisstore.ClientOptions("moves:6379")
	options.PipelineMultiplex = 2 // the client's default on four processors or more
	options.DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", address.Load().(string))
	}
	se := open(t, newStore(t, connectWith(t, options), nil), longTTL)
	for range 20 { // to establish all connections
		hold(t, se, newName(t)).leave(t)
	}
	eventually(t, "the replica has the session", func() bool {
		n, err := now.Do("EXISTS", "//session/"+se.ID()).AsInt64()
		return err == nil && n == 1
	})
	now.ReplicaOf(nil)
	address.Store(now.Addr())
	old.ReplicaOf(now)
	inARow := 0
	eventually(t, "forty confirmations in a row succeed", func() bool {
		if inARow++; se.Confirm(t.Context()) != nil {
			inARow = 0
		}
		return inARow == 40
	})
}

// The store closes its connections to a replica, because the address may lead to another server by
// now. The requests in flight that this fails must not hide the reason.
func TestOpen_atReplica(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	servers[1].ReplicaOf(servers[0])
	st := storeAt(t, servers[1].Addr())
	explained := 0
	// The timeouts end requests at all stages of a reconnection.
	for d := time.Millisecond; explained < 30; d = d%(100*time.Millisecond) + time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		_, err := st.Open(ctx, store.SessionOptions{TTL: longTTL})
		cancel()
		if err == nil || strings.Contains(err.Error(), "EOF") {
			t.Fatalf("Open within %v: got %v, want the server's reply", d, err)
		}
		if strings.Contains(err.Error(), "READONLY") && strings.Contains(err.Error(), "it is a replica") {
			explained++
		}
	}
}

// A request whose connection the store closed may have been carried out, though its error names the
// reply that refused another request. If it counted as not carried out, Withdraw would report that
// another client removed an entry that this request removed.
// Promise: P5
func TestReconnectError_outcomeUnknown(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	servers[1].ReplicaOf(servers[0])
	cli := connect(t, servers[1].Addr())
	readonly := cli.Do(t.Context(), cli.B().Set().Key("k").Value("v").Build()).Error()
	if !redisstore.NotExecuted(readonly) {
		t.Fatalf("SET at a replica: got %v, want an error of a request that was not carried out", readonly)
	}
	if err := redisstore.ReconnectError(readonly, io.EOF); redisstore.NotExecuted(err) {
		t.Errorf("%v: counted as not carried out", err)
	}
}

// Depending on when the server closes a connection, a read or a write fails.
func TestBrokeOff(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{&net.OpError{Op: "write", Err: errors.New("broken pipe")}, true},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, false},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, false},
		{context.DeadlineExceeded, false},
		{nil, false},
	} {
		if got := redisstore.BrokeOff(of.err); got != of.want {
			t.Errorf("%v: got %v, want %v", of.err, got, of.want)
		}
	}
}

// A client that is still subscribed at the old master, now a replica, must not receive messages of
// the new master. The new master does not count it as a receiver, so it admits another entry.
// Promise: P1
func TestWakeups_notReplicated(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2)
	old, now := servers[0], servers[1]
	now.ReplicaOf(old)
	name := newName(t)
	away := storeAt(t, old.Addr())
	away.DisablePolling() // no polling
	held := hold(t, open(t, storeAt(t, old.Addr()), longTTL), name)
	standing, _, _ := held.standing()
	waiter := join(t, open(t, away, longTTL), name, line.Exclusive)
	waiter.checkWaits(t)
	lines := func(server *testservers.Redis) int64 {
		n, err := server.Do("ZCARD", redisstore.Keys("", name)[1]).AsInt64()
		if err != nil {
			t.Error(err)
		}
		return n
	}
	eventually(t, "the replica has the waiter", func() bool { return lines(now) == 1 })
	now.ReplicaOf(nil)
	old.ReplicaOf(now)
	st := storeAt(t, now.Addr())
	next := join(t, open(t, st, longTTL), name, line.Exclusive)
	eventually(t, "the old master has the next waiter", func() bool { return lines(old) == 2 })
	if _, err := st.Break(t.Context(), name, standing.Order); err != nil {
		t.Fatal(err)
	}
	next.await(t, store.Admitted)
	eventually(t, "the old master has the admission", func() bool { return lines(old) == 1 })
	if st, _, _ := waiter.standing(); st.State == store.Admitted {
		t.Error("two entries are admitted")
	}
}
