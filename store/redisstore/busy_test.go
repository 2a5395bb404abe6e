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

// A server that has been in one script for longer than its busy-reply-threshold refuses nearly everything, what ends a
// subscription among it; and if it is asked for that the Redis client panics, with the whole process.

const atOnce = "lua-time-limit 1" // millisecond

// keepBusy makes a server run a script until end is called. Afterwards the server answers requests again.
func keepBusy(t *testing.T, server *testservers.Redis) (end func()) {
	t.Helper()
	runs, asks := direct(t, server), direct(t, server)
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

func TestSessionThatIsOpenedWhileTheServerIsBusy(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, atOnce)
	refusals := make(logLines, 100)
	st := newStore(t, connect(t, server.Addr()), &redisstore.Options{Logger: slog.New(slog.NewTextHandler(refusals, nil))})
	end := keepBusy(t, server)
	opened := make(chan error, 1)
	go func() {
		se, err := st.Open(t.Context(), store.SessionOptions{TTL: lasting})
		if err == nil {
			err = se.Close(t.Context())
		}
		opened <- err
	}()
	for range 2 {
		if said := <-refusals; !strings.Contains(said, "BUSY") {
			t.Errorf("the log says %s", said)
		}
	}
	end()
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// logLines are the lines of a log.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestSessionThatIsClosedWhileTheServerIsBusy(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, atOnce)
	se := open(t, storeAt(t, server.Addr()), lasting)
	hold(t, se, newName(t))
	end := keepBusy(t, server)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := se.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing can have been carried out, and closing says %v", err)
	}
	end()
	if err := se.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWatchThatEndsWhileTheServerIsBusy(t *testing.T) {
	t.Parallel()
	server := testservers.StartRedis(t, atOnce)
	ctx, cancel := context.WithCancel(t.Context())
	stands, watched := make(chan struct{}, 100), make(chan error, 1)
	st := storeAt(t, server.Addr())
	go func() { watched <- st.Watch(ctx, "", func() { stands <- struct{}{} }) }()
	<-stands
	end := keepBusy(t, server)
	defer end()
	cancel()
	if err := <-watched; !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended with %v", err)
	}
}

// What waits for replicas goes over connections of its own.
func TestConfirmationWithReplicasWhileTheServerIsBusy(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 2, atOnce)
	servers[1].ReplicaOf(servers[0])
	se := open(t, newStore(t, connect(t, servers[0].Addr()), &redisstore.Options{WaitReplicas: 1, WaitTimeout: soon}), lasting)
	end := keepBusy(t, servers[0])
	for range 3 {
		if err := se.Confirm(t.Context()); err == nil || !strings.Contains(err.Error(), "BUSY") {
			t.Errorf("the server is busy, and a confirmation says %v", err)
		}
	}
	end()
	// For a moment it may still say that it is busy: it has killed the script, and not yet said goodbye to it.
	eventually(t, "the session is confirmed", func() bool { return se.Confirm(t.Context()) == nil })
}
