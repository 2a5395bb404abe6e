package stile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store/memstore"
)

// An unreachable store sends no notification, so the watch must read at intervals even without
// changes.
func TestWatch_noticesOutageWithoutChanges(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		outage := errors.New("no route to host")
		var began time.Time
		time.AfterFunc(time.Minute, func() { // by then the watch has yielded all changes
			began = time.Now()
			w.faults(memstore.Fault{Err: outage}, on(memstore.Read))
		})
		for _, err := range w.client("ann").WatchLines(ctx, "") {
			if err == nil {
				continue
			}
			expectError(t, err, outage)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("the outage was yielded after %v, want 10s at most", took)
			}
			return
		}
		t.Error("the outage was not yielded")
	})
}

// openSession has the client open a session, if it has none, and returns how long that took.
func openSession(t *testing.T, c *stile.Client) time.Duration {
	t.Helper()
	start := time.Now()
	if _, err := c.Terms(t.Context()); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

// A store that was slow for a TTL loses all sessions at once. If all clients opened others at once, and again
// and again, it could stay slow.
func TestClient_spreadsSessions(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm))
		var anns, bobs []time.Duration
		for _, most := range []time.Duration{0, 0, 4 * ttl, 8 * ttl, 8 * ttl} {
			took := openSession(t, ann)
			if took > most || most > 0 && took == 0 {
				t.Errorf("after %v: a session was opened after %v, want a random part of %v", anns, took, most)
			}
			anns = append(anns, took)
			time.Sleep(validFor)
		}
		for range anns {
			bobs = append(bobs, openSession(t, bob))
			time.Sleep(validFor)
		}
		if slices.Equal(anns, bobs) {
			t.Errorf("two clients opened their sessions at the same times: %v", anns)
		}

		w.heal()
		openSession(t, ann)
		time.Sleep(4 * ttl)
		w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm))
		for i, most := range []time.Duration{0, 0, 4 * ttl} {
			time.Sleep(ttl)
			if took := openSession(t, ann); took > most {
				t.Errorf("session %d after a long-lived one took %v to open, want %v at most", i, took, most)
			}
		}
	})
}

// A store that serves one request after the other. To open a session, to add an entry and to end the session
// takes it thirty times as long as to renew one. For all clients together that is longer than a session is valid.
func TestClient_storeRecovers(t *testing.T) {
	const clients = 400
	cost := map[memstore.Op]time.Duration{
		memstore.Open: 10 * time.Millisecond, memstore.Enqueue: 10 * time.Millisecond, memstore.Close: 10 * time.Millisecond,
		memstore.Confirm: time.Millisecond,
	}
	scenario(t, func(t *testing.T, w *testEnv) {
		var mu sync.Mutex
		free := time.Now() // when the store has served all requests
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			mu.Lock()
			defer mu.Unlock()
			free = later(free, time.Now()).Add(cost[c.Op])
			return memstore.Fault{Delay: time.Until(free)}
		})
		var held atomic.Int64
		for i := range clients {
			name := fmt.Sprint("client ", i)
			c := w.client(name)
			go func() {
				for {
					h, err := c.Mutex(name).Lock(t.Context())
					switch {
					case t.Context().Err() != nil:
						return
					case err == nil:
						held.Add(1)
						<-h.Lost()
						held.Add(-1)
					}
				}
			}()
			time.Sleep(2 * cost[memstore.Open]) // so that the store keeps up
		}
		time.Sleep(time.Minute)
		if n := held.Load(); n != clients {
			t.Fatalf("before the outage %d of %d locks are held", n, clients)
		}
		mu.Lock()
		free = time.Now().Add(validFor)
		mu.Unlock()
		time.Sleep(validFor + time.Second)
		if n := held.Load(); n > clients/10 {
			t.Fatalf("after the outage %d of %d locks are held: it was too short", n, clients)
		}
		for range 10 {
			time.Sleep(time.Minute)
			if held.Load() == clients {
				return
			}
		}
		t.Errorf("ten minutes after the outage %d of %d locks are held", held.Load(), clients)
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A call that gives up during the wait for a session says why it waited, and another one goes on waiting. There is
// one warning for each wait.
func TestClient_spreadsSessions_givenUp(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		l := &logRecorder{}
		ann := w.client("ann", func(o *stile.Options) { o.Logger = slog.New(l) })
		w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm))
		for range 5 {
			openSession(t, ann)
			time.Sleep(validFor)
		}
		w.heal()
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		hasty, patient := wait(ctx, t, ann, "a"), wait(t.Context(), t, ann, "b")
		time.Sleep(time.Nanosecond)
		hasty.expectFailure(context.DeadlineExceeded)
		if !strings.Contains(hasty.err.Error(), "the last 5 sessions were lost soon after they were opened") {
			t.Errorf("got %q, want an error that says why no session was opened", hasty.err)
		}
		patient.expectHoldWithin(8 * ttl)
		warnings := slices.DeleteFunc(l.aboveDebug(), func(line string) bool {
			return !strings.Contains(line, "waiting before the next one")
		})
		if len(warnings) != 4 { // none after the first loss
			t.Errorf("got warnings %q, want 4", warnings)
		}
	})
}
