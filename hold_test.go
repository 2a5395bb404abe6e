package stile_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// approxEqual allows for the difference between the fake clock and bootclock, which also reads a
// real clock.
func approxEqual(a, b time.Time) bool { return a.Sub(b).Abs() < 50*time.Millisecond }

func TestDeadline_movesWithEachRenewal(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		start := time.Now()
		h := lock(t, w.client("ann"), "a")
		if d := h.Deadline(); !approxEqual(d, start.Add(validFor)) {
			t.Errorf("deadline after the request for the session: got %v, want %v", d.Sub(start), validFor)
		}
		time.Sleep(renewInterval - time.Millisecond)
		if d := h.Deadline(); !approxEqual(d, start.Add(validFor)) {
			t.Errorf("deadline before the renewal: got %v, want %v", d.Sub(start), validFor)
		}
		time.Sleep(2 * time.Millisecond)
		if d := h.Deadline(); !approxEqual(d, start.Add(renewInterval+validFor)) {
			t.Errorf("deadline after the renewal: got %v, want %v", d.Sub(start), renewInterval+validFor)
		}
	})
}

// The deadline counts from the request, because the store counts the TTL from before it sent the
// reply.
// Promise: P6
func TestDeadline_countsFromTheRequest(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.faults(memstore.Fault{ReplyDelay: time.Second}, on(memstore.Open, memstore.Confirm, memstore.Enqueue))
		start := time.Now()
		h := wait(t.Context(), t, w.client("ann"), "a").expectHold()
		if d := h.Deadline(); !approxEqual(d, start.Add(validFor)) {
			t.Errorf("deadline after the request for the session: got %v, want %v", d.Sub(start), validFor)
		}
		time.Sleep(time.Until(start.Add(renewInterval + 3*time.Second/2)))
		if d := h.Deadline(); !approxEqual(d, start.Add(renewInterval+validFor)) {
			t.Errorf("deadline: got %v, want %v after the renewal request at %v", d.Sub(start), validFor, renewInterval)
		}
	})
}

func TestLoss_byDeadline(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		start := time.Now()
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		w.cut(w.session("ann"))

		time.Sleep(validFor - time.Millisecond)
		expectHeld(t, h)
		deadline := h.Deadline()
		if !closesWithin(h.Lost(), time.Second) || time.Since(start) != validFor {
			t.Fatalf("time to the loss: got %v, want %v", time.Since(start), validFor)
		}
		if !approxEqual(deadline, time.Now()) {
			t.Errorf("Deadline before the loss: got %v, want the time of the loss", deadline.Sub(start))
		}
		lost := expectLost(t, h, stile.LostDeadline)
		expectError(t, lost, context.DeadlineExceeded) // of the last renewal
		if s := lost.Error(); !strings.Contains(s, `"a"`) || !strings.Contains(s, "not confirmed in time") {
			t.Errorf("the error %q lacks the name of the lock or the reason", s)
		}
		wt.expectWaiting() // until the store ends the session
		wt.expectHoldWithin(ttl - validFor)
	})
}

func TestLoss_byExpiry(t *testing.T) {
	for what, f := range map[string]memstore.Fault{
		"the entry is notified":               {},
		"the next renewal's reply reports it": {Delay: time.Hour},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			c := w.client("ann")
			h := lock(t, c, "a")
			w.faults(f, on(memstore.Notify))
			w.store.Expire(w.session("ann"))
			if !closesWithin(h.Lost(), renewInterval) {
				t.Fatalf("%s: not lost within %v", what, renewInterval)
			}
			lost := expectLost(t, h, stile.LostExpired)
			expectError(t, lost, store.ErrSessionLost)
			time.Sleep(2 * time.Hour) // until all notifications have arrived
		})
	}
}

// Bug: CURATOR-171
func TestLoss_byEviction(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h, other := lock(t, ann, "a"), lock(t, ann, "b")
		if _, err := bob.Break(t.Context(), "a", h.Token()); err != nil {
			t.Fatal(err)
		}
		lost := expectLost(t, h, stile.LostEvicted)
		expectError(t, lost, stile.ErrGone)
		expectHeld(t, other) // the session continues
		w.expectLine("b", "ann")
	})
}

// A hold in any mode is lost when its entry is deleted, a waiter goes on with a new entry, and the next
// holder has another token.
// Promise: P6
// Bug: CURATOR-171
func TestLoss_byEvictionInEveryMode(t *testing.T) {
	for kind, method := range everyKind {
		t.Run(kind, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann, bob := w.client("ann"), w.client("bob")
				acquire := func(c *stile.Client) func() (*stile.Hold, error) {
					return func() (*stile.Hold, error) { return method(t.Context(), c, stile.LockOptions{}) }
				}
				h := waitWith(t, acquire(ann)).expectHoldNow()
				next := waitWith(t, acquire(bob))
				w.evict("a", "ann")
				expectLost(t, h, stile.LostEvicted)
				again := next.expectHoldNow()
				if again.Token() <= h.Token() {
					t.Errorf("tokens: got %d after %d, want an increase", again.Token(), h.Token())
				}
				release(t, again)
			})
		})
	}
}

func TestLoss_reasons(t *testing.T) {
	seen := map[stile.Reason]bool{}
	for _, r := range []stile.Reason{stile.LostDeadline, stile.LostExpired, stile.LostEvicted, stile.LostClosed} {
		if seen[r] || r == 0 || strings.Contains(r.String(), "unknown") {
			t.Errorf("reason %d (%v) is zero, a duplicate or has no text", r, r)
		}
		seen[r] = true
	}
}

// When the next client is admitted, the holder that lost has been notified (promise P6). For the
// reasons LostDeadline and LostClosed, the loser's own request ends the session in the store, so
// that the loss and the admission are close together.
// Promise: P6
func TestLoss_loserIsNotifiedBeforeTheNextAdmission(t *testing.T) {
	for reason, lose := range map[stile.Reason]func(t *testing.T, w *testEnv, ann *stile.Client, session string){
		stile.LostDeadline: func(_ *testing.T, w *testEnv, _ *stile.Client, session string) {
			w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm), session)
		},
		stile.LostClosed: func(t *testing.T, w *testEnv, ann *stile.Client, session string) {
			w.faults(memstore.Fault{Delay: time.Minute}, on(memstore.Notify), session) // it must not depend on a notification
			if err := ann.Close(t.Context()); err != nil {
				t.Error(err)
			}
		},
		stile.LostExpired: func(_ *testing.T, w *testEnv, _ *stile.Client, session string) { w.store.Expire(session) },
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			tooEarly := 0
			for range 300 {
				ann, bob := w.client("ann"), w.client("bob")
				h := lock(t, ann, "a")
				next := make(chan *stile.Hold)
				go func() {
					hold, err := bob.Mutex("a").Lock(t.Context())
					if err != nil {
						t.Error(err)
					}
					if h.Valid() || h.Context().Err() == nil || h.Err() == nil {
						tooEarly++
					}
					next <- hold
				}()
				synctest.Wait()
				session := w.session("ann")
				lose(t, w, ann, session)
				release(t, <-next)
				expectLost(t, h, reason)
				w.heal()
				if err := errors.Join(ann.Close(t.Context()), bob.Close(t.Context())); err != nil {
					t.Fatal(err)
				}
			}
			if tooEarly > 0 {
				t.Errorf("lost because %v: in %d of 300 rounds the next client was admitted before the loser was notified", reason, tooEarly)
			}
		})
	}
}

func TestLoss_notByShortOutage(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var atRisk record[stile.RiskEvent]
		var recovered record[stile.SessionEvent]
		ann := w.client("ann", func(o *stile.Options) {
			o.Hooks.SessionAtRisk, o.Hooks.SessionRecovered = atRisk.add, recovered.add
		})
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, ann, "a")
		bob := wait(t.Context(), t, w.client("bob"), "a")
		w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm), w.session("ann"))
		time.Sleep(overdueAfter - time.Millisecond)
		synctest.Wait()
		if got := atRisk.all(); len(got) > 0 {
			t.Errorf("SessionAtRisk before renewal was overdue: %v", got)
		}
		time.Sleep(2 * time.Second)
		expectHeld(t, h)
		if got := atRisk.all(); len(got) != 1 || (got[0].Left-overdueAfter).Abs() > 50*time.Millisecond {
			t.Errorf("SessionAtRisk: got %+v, want one call with %v left", got, overdueAfter)
		}
		w.heal()
		time.Sleep(time.Hour)
		expectHeld(t, h)
		if n, m := len(atRisk.all()), len(recovered.all()); n != 1 || m != 1 {
			t.Errorf("got %d calls of SessionAtRisk and %d of SessionRecovered, want one each", n, m)
		}
		wt.expectWaiting()
		bob.expectWaiting()
		release(t, h)
		release(t, bob.expectHoldNow())
	})
}

// All requests are dropped for two fifths of the TTL. The outages start at different times between
// two renewals.
func TestLoss_notByOutageOfTwoFifthsOfTheTTL(t *testing.T) {
	for offset := time.Duration(0); offset <= renewInterval; offset += renewInterval / 20 {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann"), "a")
			time.Sleep(offset)
			w.cut(w.session("ann"))
			time.Sleep(ttl * 2 / 5)
			w.heal()
			time.Sleep(ttl)
			if !h.Valid() {
				t.Errorf("outage from %v after the last renewal: the hold is lost: %v", offset, h.Err())
			}
		})
	}
}

// The first reply or notification that reports the end of the session ends all its holds. They do
// not wait for the next renewal.
// Bug: CURATOR-653
func TestLoss_firstReportEndsAllHolds(t *testing.T) {
	for what, learn := range map[string]func(t *testing.T, w *testEnv, ann *stile.Client){
		"a Lock": func(t *testing.T, w *testEnv, ann *stile.Client) {
			w.store.Expire(w.session("ann"))
			lock(t, ann, "b")
		},
		"a TryLock": func(t *testing.T, w *testEnv, ann *stile.Client) {
			w.store.Expire(w.session("ann"))
			if _, err := ann.Mutex("b").TryLock(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"a release": func(t *testing.T, w *testEnv, ann *stile.Client) {
			h := lock(t, ann, "b")
			w.delayNotifications("a", "b")
			w.store.Expire(w.session("ann"))
			asLost(t, h.Release(t.Context()))
		},
		"a waiter": func(t *testing.T, w *testEnv, ann *stile.Client) {
			lock(t, w.client("bob"), "b")
			wt := wait(t.Context(), t, ann, "b")
			w.store.Expire(w.session("ann"))
			w.expectLine("b", "bob", "ann") // the entry of the new session
			wt.expectWaiting()
		},
		"a holder": func(t *testing.T, w *testEnv, ann *stile.Client) {
			h := lock(t, ann, "b")
			w.store.Expire(w.session("ann"))
			expectLost(t, h, stile.LostExpired)
		},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann")
			h := lock(t, ann, "a")
			w.delayNotifications("a")
			before := time.Now()
			t.Log(what)
			learn(t, w, ann)
			expectLost(t, h, stile.LostExpired)
			if d := time.Since(before); d != 0 {
				t.Errorf("time to the loss: got %v, want 0", d)
			}
			time.Sleep(2 * time.Hour) // until all notifications have arrived
		})
	}
}

func TestLoss_clientOpensNewSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		h := lock(t, c, "a")
		before := w.session("ann")
		w.cut(before)
		time.Sleep(validFor)
		expectLost(t, h, stile.LostDeadline)
		w.heal()
		h = wait(t.Context(), t, c, "a").expectHold() // after the entry of the old session has expired
		if now := w.session("ann"); now == before {
			t.Errorf("the session is still %s, want a new one", now)
		}
		expectHeld(t, h)
	})
}

// A session loss moves waiters to the end of the line; their calls continue.
// Promise: P7
func TestWaiters_rejoinAtTheEndAfterSessionLoss(t *testing.T) {
	for what, lose := range map[string]func(w *testEnv){
		"deadline": func(w *testEnv) { w.cut(w.session("ann")); time.Sleep(ttl) },
		"expiry":   func(w *testEnv) { w.store.Expire(w.session("ann")); time.Sleep(renewInterval) },
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
			h := lock(t, bob, "a")
			first := wait(t.Context(), t, ann, "a")
			second := wait(t.Context(), t, ann, "a")
			other := wait(t.Context(), t, cid, "a")
			w.expectLine("a", "bob", "ann", "cid")
			t.Log(what)
			lose(w)
			w.expectLine("a", "bob", "cid", "ann")
			release(t, h)
			release(t, other.expectHoldNow())
			h = first.expectHoldNow()
			second.expectWaiting()
			release(t, h)
			release(t, second.expectHoldNow())
		})
	}
}

// Waiters rejoin at the deadline without a notification from the store, which may be unreachable.
func TestWaiters_rejoinAtTheDeadline(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, bob, "a")
		wt := wait(t.Context(), t, ann, "a")
		session := w.session("ann")
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			switch {
			case c.Session == session && c.Op == memstore.Notify:
				return memstore.Fault{Delay: time.Hour}
			case c.Session == session:
				return memstore.Fault{Drop: true}
			default:
				return memstore.Fault{}
			}
		})
		time.Sleep(validFor)
		w.expectLine("a", "bob", "ann", "ann")
		time.Sleep(ttl - validFor)
		w.expectLine("a", "bob", "ann")
		release(t, h)
		release(t, wt.expectHoldNow())
		time.Sleep(2 * time.Hour) // until all notifications have arrived
	})
}

// Promise: P7
func TestWaiters_rejoinAtTheEndAfterBreak(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h := lock(t, ann, "a")
		broken := wait(t.Context(), t, bob, "a")
		other := wait(t.Context(), t, cid, "a")
		l, err := ann.Line(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ann.Break(t.Context(), "a", l.Waiters[0].Token); err != nil {
			t.Fatal(err)
		}
		w.expectLine("a", "ann", "cid", "bob")
		broken.expectWaiting()
		release(t, h)
		release(t, other.expectHoldNow())
		release(t, broken.expectHoldNow())
	})
}

func TestLoss_isFinal(t *testing.T) {
	for what, lose := range map[string]func(t *testing.T, w *testEnv, c *stile.Client){
		"deadline": func(_ *testing.T, w *testEnv, _ *stile.Client) { w.cut(w.session("ann")); time.Sleep(ttl); w.heal() },
		"expiry":   func(_ *testing.T, w *testEnv, _ *stile.Client) { w.store.Expire(w.session("ann")) },
		"eviction": func(t *testing.T, _ *testEnv, c *stile.Client) {
			l, err := c.Line(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Break(t.Context(), "a", l.Holders[0].Token); err != nil {
				t.Fatal(err)
			}
		},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			c := w.client("ann")
			h := lock(t, c, "a")
			lose(t, w, c)
			t.Log(what)
			for range 100 {
				if h.Valid() {
					t.Fatal("Valid of a lost hold: got true")
				}
				w.expectLine("a")
				time.Sleep(time.Minute)
			}
			asLost(t, h.Err())
		})
	}
}

// Promise: P7
func TestLoss_admitsTheNextInTheQueue(t *testing.T) {
	for what, lose := range map[string]func(t *testing.T, w *testEnv, h *stile.Hold){
		"deadline": func(_ *testing.T, w *testEnv, _ *stile.Hold) { w.cut(w.session("ann")) },
		"expiry":   func(_ *testing.T, w *testEnv, _ *stile.Hold) { w.store.Expire(w.session("ann")) },
		"eviction": func(t *testing.T, w *testEnv, h *stile.Hold) {
			if _, err := w.client("bob").Break(t.Context(), "a", h.Token()); err != nil {
				t.Error(err)
			}
		},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			c := w.client("ann")
			h := lock(t, c, "a")
			first := wait(t.Context(), t, c, "a")
			second := wait(t.Context(), t, c, "a")
			t.Log(what)
			lose(t, w, h)
			next := first.expectHoldWithin(ttl)
			second.expectWaiting()
			asLost(t, h.Release(t.Context()))
			second.expectWaiting() // the release of the lost hold must not release the next one
			expectHeld(t, next)
			w.expectLine("a", "ann")
			release(t, next)
			release(t, second.expectHoldNow())
		})
	}
}

// When the holder is notified of the loss, the lost hold no longer blocks its own process.
func TestLoss_loserMayTryAtOnce(t *testing.T) {
	for what, notification := range map[string]func(*stile.Hold) <-chan struct{}{
		"by the channel": (*stile.Hold).Lost,
		"by the context": func(h *stile.Hold) <-chan struct{} { return h.Context().Done() },
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			c := w.client("ann")
			for i := range 200 {
				h := lock(t, c, "a")
				result := make(chan error)
				go func() {
					<-notification(h)
					next, err := c.Mutex("a").TryLock(context.Background())
					if err == nil {
						err = next.Release(context.Background())
					}
					result <- err
				}()
				if _, err := w.store.Break(t.Context(), "a", h.Token()>>11); err != nil {
					t.Fatal(err)
				}
				if err := <-result; err != nil {
					t.Fatalf("notified %s, round %d: TryLock or Release: %v", what, i, err)
				}
			}
		})
	}
}

func TestRelease_twice(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		release(t, h)
		again := lock(t, ann, "a")
		release(t, h)
		expectHeld(t, again)
		release(t, again)
		next := lock(t, bob, "a")
		release(t, h)
		expectHeld(t, next)
		w.expectLine("a", "bob")
	})
}

func TestRelease_lostHold(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		if _, err := bob.Break(t.Context(), "a", h.Token()); err != nil {
			t.Fatal(err)
		}
		next := lock(t, bob, "a")
		if err := h.Release(t.Context()); err != error(asLost(t, h.Err())) {
			t.Errorf("Release: got %v, want %v", err, h.Err())
		}
		release(t, h)
		expectHeld(t, next)
	})
}

// The entry is gone in the store and its notification has not arrived. The release reports the
// loss.
func TestRelease_lossNotKnownYet(t *testing.T) {
	for reason, lose := range map[stile.Reason]func(*testing.T, *testEnv, *stile.Hold){
		stile.LostEvicted: func(t *testing.T, w *testEnv, h *stile.Hold) {
			if _, err := w.client("bob").Break(t.Context(), "a", h.Token()); err != nil {
				t.Error(err)
			}
		},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			h := lock(t, w.client("ann"), "a")
			w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Notify))
			lose(t, w, h)
			expectHeld(t, h)
			lost := asLost(t, h.Release(t.Context()))
			if lost.Reason != reason || lost.Name != "a" || lost.Token != h.Token() {
				t.Errorf("Release: got %+v, want the reason %v", lost, reason)
			}
			time.Sleep(2 * time.Second)
			if closed(h.Lost()) || h.Err() != nil {
				t.Error("the hold was reported as lost after its release")
			}
		})
	}
}

// A release during Close either succeeds or reports a loss with LostClosed.
func TestRelease_whileClientCloses(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		for range 300 {
			c := w.client("ann")
			h := lock(t, c, "a")
			done := make(chan error)
			go func() { done <- h.Release(t.Context()) }()
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			err := <-done
			var lost *stile.LostError
			if errors.As(err, &lost) && lost.Reason != stile.LostClosed {
				t.Fatalf("Release during Close: got %v, want the reason LostClosed", err)
			}
			w.expectLine("a")
		}
	})
}

func TestRelease_endedContext(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		if err := h.Release(ended); err != nil {
			t.Errorf("Release with an ended context: %v", err)
		}
		release(t, wt.expectHoldNow())

		h = lock(t, ann, "a")
		w.faults(memstore.Fault{Drop: true}, on(memstore.Withdraw))
		before := time.Now()
		if err := h.Release(ended); err == nil {
			t.Error("Release without the store: got nil, want an error")
		}
		if d := time.Since(before); d != 2*time.Second {
			t.Errorf("Release without the store took %v, want 2s", d)
		}
	})
}

// A context that comes from the hold ends when the release begins. The release goes on for two seconds more,
// in a function run by Do too.
func TestRelease_contextOfTheHold(t *testing.T) {
	contexts := map[string]func(ctx context.Context, h *stile.Hold) context.Context{
		"of Do":   func(ctx context.Context, _ *stile.Hold) context.Context { return ctx },
		"of Hold": func(_ context.Context, h *stile.Hold) context.Context { return h.Context() },
		"derived": func(ctx context.Context, _ *stile.Hold) context.Context { return context.WithValue(ctx, key{}, 1) },
	}
	methods := map[string]func(ctx context.Context, h *stile.Hold) error{
		"Release":      func(ctx context.Context, h *stile.Hold) error { return h.Release(ctx) },
		"ReleaseAfter": func(ctx context.Context, h *stile.Hold) error { return h.ReleaseAfter(ctx, time.Minute) },
	}
	for method, giveUp := range methods {
		for name, from := range contexts {
			t.Run(method+" with a context "+name, func(t *testing.T) {
				scenario(t, func(t *testing.T, w *testEnv) {
					ann := w.client("ann")
					do := func(fault memstore.Fault, f func(ctx context.Context, h *stile.Hold)) {
						w.faults(fault, on(memstore.Withdraw))
						_ = ann.Mutex("a").Do(t.Context(), func(ctx context.Context, h *stile.Hold) error {
							f(from(ctx, h), h)
							return nil
						})
						w.heal()
						time.Sleep(2 * time.Minute) // then ReleaseAfter does not keep the lock closed any more
					}
					do(memstore.Fault{Delay: 2*time.Second - 1}, func(ctx context.Context, h *stile.Hold) {
						if err := giveUp(ctx, h); err != nil {
							t.Errorf("the store answers within two seconds: got %v, want nil", err)
						}
					})
					do(memstore.Fault{Drop: true}, func(ctx context.Context, h *stile.Hold) {
						start := time.Now()
						expectError(t, giveUp(ctx, h), context.Canceled)
						if took := time.Since(start); took != 2*time.Second {
							t.Errorf("the store does not answer: the release took %v, want 2s", took)
						}
					})
					do(memstore.Fault{Drop: true}, func(ctx context.Context, h *stile.Hold) {
						ctx, cancel := context.WithTimeout(ctx, time.Second)
						defer cancel()
						start := time.Now()
						expectError(t, giveUp(ctx, h), context.DeadlineExceeded)
						if took := time.Since(start); took != time.Second {
							t.Errorf("with a timeout of its own, the release took %v, want 1s", took)
						}
					})
				})
			})
		}
	}
}

// The hold ends at once. The release continues in the background and frees the lock when the store
// is reachable again.
// Promise: P5
// Bug: etcd #22123
func TestRelease_storeUnreachable(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", strict), w.client("bob")
		h := lock(t, ann, "a")
		behind := wait(t.Context(), t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		w.faults(memstore.Fault{Drop: true}, on(memstore.Withdraw, memstore.Requeue))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		done := make(chan error)
		go func() { done <- h.Release(ctx) }()
		synctest.Wait()
		if h.Valid() || h.Context().Err() == nil {
			t.Error("the hold is valid during its release")
		}
		err := <-done
		expectError(t, err, context.DeadlineExceeded)
		if errors.Is(err, stile.ErrLost) || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), "background") {
			t.Errorf("the error %q must name the lock, report that the release continues in the background, and report no loss", err)
		}
		wt.expectWaiting()
		w.heal()
		next := wt.expectHoldWithin(3 * time.Second)
		behind.expectWaiting()
		release(t, next)
		release(t, behind.expectHoldNow())
	})
}

func TestRelease_replyLost(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		w.faults(memstore.Fault{LoseReply: true}, on(memstore.Withdraw), w.session("ann"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := h.Release(ctx)
		expectError(t, err, context.DeadlineExceeded)
		if errors.Is(err, stile.ErrLost) {
			t.Errorf("Release: got %v, which reports a loss that is not known", err)
		}
		next := wt.expectHoldNow()
		time.Sleep(time.Minute)
		expectHeld(t, next)
		w.expectLine("a", "bob")
	})
}

// The store had to repeat the request, and the repetition found no entry.
// Promise: P5
func TestRelease_notKnown(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		w.faults(memstore.Fault{LoseReply: true, Err: store.ErrNotKnown}, on(memstore.Withdraw), w.session("ann"))
		err := h.Release(t.Context())
		expectError(t, err, stile.ErrNotKnown)
		if errors.Is(err, stile.ErrLost) {
			t.Errorf("Release: got %v, which reports a loss that is not known", err)
		}
		if strings.Contains(err.Error(), "background") {
			t.Errorf("Release: got %v, which reports a background release although none is needed", err)
		}
		release(t, wt.expectHoldNow())
	})
}

// A release whose context does not end returns when the session ends, which frees the lock in any
// case.
func TestRelease_endsWithTheSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", strict)
		start := time.Now()
		h := lock(t, ann, "a")
		behind := wait(t.Context(), t, ann, "a")
		w.cut(w.session("ann"))
		done := make(chan error)
		go func() { done <- h.Release(t.Context()) }()
		err := <-done
		if d := time.Since(start); err == nil || d > ttl {
			t.Errorf("Release: got %v after %v, want an error within the TTL", err, d)
		}
		release(t, behind.expectHold())
	})
}

// A request to enqueue also ends with the session; the waiter then uses a new one.
func TestLock_enqueueEndsWithTheSession(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		lock(t, ann, "b")
		w.cut(w.session("ann"))
		wt := wait(t.Context(), t, ann, "a")
		wt.expectWaiting()
		wt.expectHoldWithin(ttl) // with a new session, whose requests are not dropped
	})
}

func TestLoss_allHoldsOfASessionTogether(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		var holds []*stile.Hold
		for _, name := range []string{"a", "b", "c"} {
			holds = append(holds, lock(t, c, name))
		}
		w.cut(w.session("ann"))
		time.Sleep(validFor)
		for _, h := range holds {
			expectLost(t, h, stile.LostDeadline)
		}
	})
}

// Bug: CURATOR-696
func TestLoss_oldSessionDoesNotAffectNew(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		old := lock(t, c, "a")
		w.store.Expire(w.session("ann"))
		expectLost(t, old, stile.LostExpired)
		h := wait(t.Context(), t, c, "b").expectHold()
		time.Sleep(time.Hour)
		expectHeld(t, h)
	})
}

// If a hold is evicted before its caller gets it, the caller gets a lost hold or a later hold.
func TestLoss_evictionDuringAdmission(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		for range 300 {
			h := lock(t, ann, "a")
			wt := wait(t.Context(), t, bob, "a")
			l, err := ann.Line(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			token := l.Waiters[0].Token
			go func() { _, _ = ann.Break(t.Context(), "a", token) }()
			release(t, h)
			got := wt.expectHoldNow()
			synctest.Wait()
			if got.Token() == token {
				expectLost(t, got, stile.LostEvicted)
				w.expectLine("a")
			} else {
				expectHeld(t, got)
				release(t, got)
			}
		}
	})
}

// Promise: P5
func TestReleaseAfter_keepsLockClosed(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		const d = time.Hour
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		start := time.Now()
		if err := h.ReleaseAfter(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if h.Valid() || !errors.Is(context.Cause(h.Context()), stile.ErrReleased) || h.Err() != nil || closed(h.Lost()) {
			t.Errorf("after ReleaseAfter: got valid %v, context %v, error %v, want a released hold", h.Valid(), context.Cause(h.Context()), h.Err())
		}
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		l, err := bob.Line(t.Context(), "a")
		if err != nil || commands(l.Holders) != "ann" || l.Holders[0].Token != h.Token() || l.Holders[0].Remaining != d {
			t.Errorf("Line: got %+v, %v, want ann with token %d for one hour", l, err, h.Token())
		}
		time.Sleep(d - time.Nanosecond)
		wt.expectWaiting()
		next := wt.expectHoldWithin(time.Nanosecond)
		if since := time.Since(start); since != d {
			t.Errorf("time to the next admission: got %v, want %v", since, d)
		}
		if next.Token() <= h.Token() {
			t.Errorf("token: got %d, want more than %d", next.Token(), h.Token())
		}
		if h.Err() != nil || closed(h.Lost()) {
			t.Error("the hold was reported as lost after its release")
		}
		release(t, next)
	})
}

// ReleaseAfter also keeps out the goroutines of its own process.
func TestReleaseAfter_keepsOwnProcessOut(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		h := lock(t, ann, "a")
		behind := wait(t.Context(), t, ann, "a")
		if err := h.ReleaseAfter(t.Context(), ttl); err != nil {
			t.Fatal(err)
		}
		if _, err := ann.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Errorf("TryLock: got %v, want ErrHeld", err)
		}
		time.Sleep(ttl - time.Second)
		behind.expectWaiting()
		w.expectLine("a", "ann", "ann")
		next := behind.expectHoldWithin(time.Second)
		w.expectLine("a", "ann")
		expectHeld(t, next)
		release(t, next)
	})
}

func TestReleaseAfter_zeroIsRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		for _, d := range []time.Duration{0, -time.Second} {
			h := lock(t, ann, "a")
			if err := h.ReleaseAfter(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			release(t, lock(t, bob, "a"))
		}
	})
}

func TestReleaseAfter_canBeBroken(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		if err := h.ReleaseAfter(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		e, err := bob.Break(t.Context(), "a", h.Token())
		if err != nil || e.Owner.Command != "ann" {
			t.Errorf("Break: got %+v, %v, want ann's entry", e, err)
		}
		release(t, wt.expectHoldNow())
	})
}

// noReleaseAfterStore is a store without the capability ReleaseAfter.
type noReleaseAfterStore struct{ *memstore.Store }

func (s noReleaseAfterStore) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.ReleaseAfter = false
	return caps
}

func TestReleaseAfter_unsupported(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c, err := stile.New(noReleaseAfterStore{w.store}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		h := lock(t, c, "a")
		err = h.ReleaseAfter(t.Context(), time.Second)
		expectError(t, err, stile.ErrUnsupported)
		if err != nil && (!strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), "memory")) {
			t.Errorf("the error %q lacks the name of the lock or the kind of store", err)
		}
		time.Sleep(time.Minute)
		expectHeld(t, h)
		if err := h.ReleaseAfter(t.Context(), 0); err != nil {
			t.Errorf("ReleaseAfter with a duration of 0: %v", err)
		}
		w.expectLine("a")
	})
}

func TestReleaseAfter_lostHold(t *testing.T) {
	for _, known := range []bool{true, false} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann, bob := w.client("ann"), w.client("bob")
			h := lock(t, ann, "a")
			if !known {
				w.faults(memstore.Fault{Delay: time.Second}, on(memstore.Notify), w.session("ann"))
			}
			if _, err := bob.Break(t.Context(), "a", h.Token()); err != nil {
				t.Fatal(err)
			}
			next := lock(t, bob, "a")
			lost := asLost(t, h.ReleaseAfter(t.Context(), time.Hour))
			if lost.Reason != stile.LostEvicted || lost.Token != h.Token() {
				t.Errorf("ReleaseAfter of a lost hold: got %+v, want the reason LostEvicted", lost)
			}
			if err := h.ReleaseAfter(t.Context(), time.Hour); err != nil {
				t.Errorf("second ReleaseAfter: %v", err)
			}
			expectHeld(t, next)
			w.expectLine("a", "bob")
		})
	}
}

// The hold ends at once. The request continues in the background and keeps the lock closed once it
// reaches the store.
// Promise: P5
func TestReleaseAfter_storeUnreachable(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		const d = ttl / 2
		ann, bob := w.client("ann"), w.client("bob")
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		w.faults(memstore.Fault{Drop: true}, on(memstore.Withdraw))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := h.ReleaseAfter(ctx, d)
		expectError(t, err, context.DeadlineExceeded)
		if errors.Is(err, stile.ErrLost) || err != nil && !strings.Contains(err.Error(), "background") {
			t.Errorf("the error %q must report that the release continues in the background, and no loss", err)
		}
		w.heal()
		next := wt.expectHoldWithin(d)
		if since := time.Since(start); since != d {
			t.Errorf("time to the next admission: got %v, want %v", since, d)
		}
		release(t, next)
	})
}

// A released hold is garbage collected while its client's session continues.
func TestRelease_freesMemory(t *testing.T) {
	c, err := stile.New(memstore.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	hold, tenure := func() (weak.Pointer[stile.Hold], weak.Pointer[stile.Tenure]) {
		h := lock(t, c, "a")
		release(t, h)
		return weak.Make(h), weak.Make(h.Tenure())
	}()
	for end := time.Now().Add(time.Minute); hold.Value() != nil || tenure.Value() != nil; runtime.GC() {
		if time.Now().After(end) {
			t.Fatal("the released hold or its tenure was not garbage collected within a minute")
		}
	}
}
