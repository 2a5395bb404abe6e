package redisstore_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// A server that has run one script for longer than its busy-reply-threshold refuses nearly
// everything, including UNSUBSCRIBE. If that is refused the Redis client panics, and with it the
// process.

const atOnce = "lua-time-limit 1" // millisecond

// keepBusy makes a server run a script until end is called. Afterwards the server answers requests
// again.
func keepBusy(t *testing.T, server *testservers.Redis) (end func()) {
	t.Helper()
	runs, asks := adminClient(t, server), adminClient(t, server)
	go runs.Do(context.WithoutCancel(t.Context()), runs.B().Arbitrary("EVAL", "while true do end", "0").Build())
	busy := func() bool {
		err := asks.Do(t.Context(), asks.B().Arbitrary("GET", "a").Build()).Error()
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	}
	eventually(t, "the server is busy", busy)
	return func() {
		server.Do("SCRIPT", "KILL") // replies before the script has ended
		eventually(t, "the server is not busy", func() bool { return !busy() })
	}
}

func TestOpen_whileServerIsBusy(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, atOnce)
	refusals := make(logLines, 100)
	st := newStore(t, connect(t, server.Addr()), &redisstore.Options{Logger: slog.New(slog.NewTextHandler(refusals, nil))})
	end := keepBusy(t, server)
	opened := make(chan error, 1)
	go func() {
		se, err := st.Open(t.Context(), store.SessionOptions{TTL: longTTL})
		if err == nil {
			err = se.Close(t.Context())
		}
		opened <- err
	}()
	for range 2 {
		if reply := <-refusals; !strings.Contains(reply, "BUSY") {
			t.Errorf("got log line %s, want BUSY", reply)
		}
	}
	end()
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// logLines receives the lines of a log.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestClose_whileServerIsBusy(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, atOnce)
	se := open(t, storeAt(t, server.Addr()), longTTL)
	hold(t, se, newName(t))
	end := keepBusy(t, server)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := se.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: got %v, want DeadlineExceeded", err)
	}
	end()
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWatch_endsWhileServerIsBusy(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, atOnce)
	ctx, cancel := context.WithCancel(t.Context())
	stands, watched := make(chan struct{}, 100), make(chan error, 1)
	st := storeAt(t, server.Addr())
	go func() { watched <- st.Watch(ctx, "", func([]string) { stands <- struct{}{} }) }()
	<-stands
	end := keepBusy(t, server)
	defer end()
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: got %v, want Canceled", err)
	}
}

// Without the server nothing is published, and nobody knows which lines will have changed. So the calls go on, and
// their reader notices the outage.
func TestWatch_callsWithoutServer(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t)
	ctx, cancel := context.WithCancel(t.Context())
	calls, watched := make(chan []string, 1000), make(chan error, 1)
	st := storeAt(t, server.Addr())
	go func() { watched <- st.Watch(ctx, "", func(names []string) { calls <- names }) }()
	<-calls
	server.Kill()
	for range 3 { // one or two may have been under way
		select {
		case names := <-calls:
			if names != nil {
				t.Errorf("got a call with the names %q, want none", names)
			}
		case <-time.After(testTimeout):
			t.Fatal("no call after the server was killed")
		}
	}
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Errorf("Watch: got %v, want Canceled", err)
	}
}

// Requests that wait for replicas use separate connections.
func TestConfirm_withReplicasWhileServerIsBusy(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2, atOnce)
	servers[1].ReplicaOf(servers[0])
	se := open(t, newStore(t, connect(t, servers[0].Addr()), &redisstore.Options{WaitReplicas: 1, WaitTimeout: testTimeout}), longTTL)
	end := keepBusy(t, servers[0])
	for range 3 {
		if err := se.Confirm(t.Context()); err == nil || !strings.Contains(err.Error(), "BUSY") {
			t.Errorf("Confirm: got %v, want BUSY", err)
		}
	}
	end()
	// The server may reply BUSY a moment longer, while it ends the killed script.
	eventually(t, "the session is confirmed", func() bool { return se.Confirm(t.Context()) == nil })
}
