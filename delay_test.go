package stile_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// lockDelay is the LockDelay of the scenarios; withLockDelay sets it for a client.
const lockDelay = ttl + ttl/2

func withLockDelay(o *stile.Options) { o.LockDelay = lockDelay }

// waitForHead waits until owner's entry is the first in the line of name and returns that time.
func (w *testEnv) waitForHead(owner, name string) time.Time {
	w.t.Helper()
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(time.Second / 10) {
		synctest.Wait()
		if l := w.line(name); len(l) > 0 && l[0] == owner {
			return time.Now()
		}
	}
	w.t.Fatalf("%s has not reached the head of the line of %q within two TTLs", owner, name)
	panic("unreachable")
}

// loseUnreleased acquires the lock with a client that leaves markers and makes the store end its
// session too early.
func (w *testEnv) loseUnreleased(name string) (lost *stile.Hold) {
	w.t.Helper()
	h := lock(w.t, w.client("ann", withLockDelay), name)
	w.store.Expire(w.session("ann"))
	w.expectLine(name)
	return h
}

// expectHoldAfter checks that the call returns a hold exactly d after the given time.
func (w *waiter) expectHoldAfter(d time.Duration, since time.Time) *stile.Hold {
	w.t.Helper()
	w.expectWaiting()
	h := w.expectHoldWithin(d)
	if after := time.Since(since); after != d {
		w.t.Errorf("Lock returned after %v, want %v", after, d)
	}
	expectHeld(w.t, h)
	return h
}

// expireUnnoticed makes the store end the last of the sessions too early, and drops all messages of
// the sessions, so that their clients do not notice. A later call must list the sessions of earlier
// calls, too.
func (w *testEnv) expireUnnoticed(sessions ...string) {
	w.store.SetFaults(func(c memstore.Call) memstore.Fault {
		switch {
		case !slices.Contains(sessions, c.Session):
			return memstore.Fault{}
		case c.Op == memstore.Notify:
			return memstore.Fault{Delay: time.Hour}
		default:
			return memstore.Fault{Drop: true}
		}
	})
	w.store.Expire(sessions[len(sessions)-1])
}

func expectClosed(t *testing.T, c *stile.Client, name string, closed time.Duration) {
	t.Helper()
	before := time.Now()
	h, err := c.Mutex(name).TryLock(t.Context())
	held, ok := errors.AsType[*stile.HeldError](err)
	if h != nil || !ok || !errors.Is(err, stile.ErrHeld) {
		t.Fatalf("TryLock: got %v, %v, want a HeldError that matches ErrHeld", h, err)
	}
	if held.ClosedFor != closed {
		t.Errorf("ClosedFor: got %v, want %v", held.ClosedFor, closed)
	}
	if d := time.Since(before); d != 0 {
		t.Errorf("TryLock took %v, want 0", d)
	}
}

func tryLock(t *testing.T, c *stile.Client, name string) *stile.Hold {
	t.Helper()
	h, err := c.Mutex(name).TryLock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Promise: LockDelay
func TestLockDelay_noneAfterCleanEnd(t *testing.T) {
	ends := map[string]func(*testing.T, *testEnv, *stile.Client){
		"released": func(t *testing.T, _ *testEnv, ann *stile.Client) { release(t, lock(t, ann, "a")) },
		"place left": func(t *testing.T, _ *testEnv, ann *stile.Client) {
			p := join(t.Context(), t, ann, "a")
			expectReady(t, p)
			if err := p.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"Do": func(t *testing.T, _ *testEnv, ann *stile.Client) {
			if err := ann.Mutex("a").Do(t.Context(), func(context.Context, *stile.Hold) error { return nil }); err != nil {
				t.Fatal(err)
			}
		},
		"released in the background": func(t *testing.T, w *testEnv, ann *stile.Client) {
			h := lock(t, ann, "a")
			w.faults(memstore.Fault{Drop: true}, on(memstore.Withdraw))
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			expectError(t, h.Release(ctx), context.DeadlineExceeded)
			w.heal()
			time.Sleep(2 * time.Second)
		},
		"ReleaseAfter": func(t *testing.T, _ *testEnv, ann *stile.Client) {
			if err := lock(t, ann, "a").ReleaseAfter(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
			if err := ann.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		},
		"waiter crashed": func(t *testing.T, w *testEnv, ann *stile.Client) {
			h := lock(t, ann, "a")
			dan := w.client("dan", withLockDelay)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			wait(ctx, t, dan, "a")
			w.store.Expire(w.session("dan"))
			cancel()
			release(t, h)
		},
	}
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann, bob := w.client("ann", withLockDelay), w.client("bob", withLockDelay)
				end(t, w, ann)
				release(t, wait(t.Context(), t, bob, "a").expectHoldNow())
				release(t, tryLock(t, bob, "a"))
			})
		})
	}
}

// Promise: LockDelay
func TestLockDelay_noneAfterRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", withLockDelay, strict), w.client("bob", withLockDelay, strict)
		h := lock(t, ann, "a")
		first, second := wait(t.Context(), t, bob, "a"), wait(t.Context(), t, ann, "a")
		release(t, h)
		release(t, first.expectHoldNow())
		release(t, second.expectHoldNow())
	})
}

// Promise: LockDelay
func TestLockDelay_afterUnreleasedHold(t *testing.T) {
	ends := map[string]func(*testing.T, *testEnv, *stile.Client, *stile.Hold){
		"session ended too early": func(_ *testing.T, w *testEnv, _ *stile.Client, _ *stile.Hold) {
			w.store.Expire(w.session("ann"))
		},
		"session expired": func(_ *testing.T, w *testEnv, _ *stile.Client, _ *stile.Hold) {
			w.cut(w.session("ann"))
		},
		"hold broken": func(t *testing.T, w *testEnv, _ *stile.Client, h *stile.Hold) {
			if _, err := w.client("cid").Break(t.Context(), "a", h.Token()); err != nil {
				t.Fatal(err)
			}
		},
		"client closed": func(t *testing.T, _ *testEnv, ann *stile.Client, _ *stile.Hold) {
			if err := ann.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	}
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				ann, bob, dan := w.client("ann", withLockDelay), w.client("bob", withLockDelay), w.client("dan", withLockDelay)
				h := lock(t, ann, "a")
				wt := wait(t.Context(), t, bob, "a")
				next := wait(t.Context(), t, dan, "a")
				end(t, w, ann, h)
				since := w.waitForHead("bob", "a")
				time.Sleep(lockDelay / 2)
				w.expectLine("a", "bob", "dan") // bob's entry keeps others out
				release(t, wt.expectHoldAfter(lockDelay, since))
				release(t, next.expectHoldNow()) // the delay applies only once
			})
		})
	}
}

// The delay starts when a client notices the unreleased hold, however long ago it ended.
// Promise: LockDelay
func TestLockDelay_startsWhenNoticed(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.loseUnreleased("a")
		time.Sleep(time.Hour)
		wait(t.Context(), t, w.client("bob", withLockDelay), "a").expectHoldAfter(lockDelay, time.Now())
	})
}

// The store ends the session of an unreachable holder too early. With a LockDelay of a TTL, the
// holder has lost before the next one is admitted.
// Promise: LockDelay
func TestLockDelay_unreachableHolderHasLostBefore(t *testing.T) {
	for _, with := range []time.Duration{0, ttl} {
		scenario(t, func(t *testing.T, w *testEnv) {
			set := func(o *stile.Options) { o.LockDelay = with }
			h := lock(t, w.client("ann", set), "a")
			wt := wait(t.Context(), t, w.client("bob", set), "a")
			w.expireUnnoticed(w.session("ann"))
			wt.expectHoldWithin(with)
			if overlap := h.Valid(); overlap != (with == 0) {
				t.Errorf("LockDelay %v: first hold valid during the second: got %v", with, overlap)
			}
		})
	}
}

// A waiter that ends during the delay leaves no marker that would delay the next one.
// Promise: LockDelay
func TestLockDelay_passesToTheNextWaiter(t *testing.T) {
	causes := map[string]func(*testing.T, *testEnv, *stile.Client){
		"closed": func(t *testing.T, _ *testEnv, bob *stile.Client) {
			if err := bob.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"crashed": func(_ *testing.T, w *testEnv, _ *stile.Client) {
			session := w.session("bob")
			w.store.SetFaults(func(c memstore.Call) memstore.Fault {
				// Drops all requests of bob's session, and the Open and ClearMarks that bob would
				// send after the delay. The other clients that wait have sessions already, and
				// clear markers only after the faults have ended.
				return memstore.Fault{Drop: c.Session == session || c.Op == memstore.ClearMarks || c.Op == memstore.Open}
			})
			w.store.Expire(session)
			time.AfterFunc(lockDelay-time.Second, w.heal)
		},
	}
	for how, leave := range causes {
		t.Run(how, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				bob, cid, dan := w.client("bob", withLockDelay), w.client("cid", withLockDelay), w.client("dan", withLockDelay)
				w.loseUnreleased("a")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				wait(ctx, t, bob, "a").expectWaiting()
				wt := wait(t.Context(), t, cid, "a")
				time.Sleep(lockDelay / 3)
				leave(t, w, bob)
				cancel()
				release(t, wt.expectHoldAfter(lockDelay, w.waitForHead("cid", "a")))
				release(t, wait(t.Context(), t, dan, "a").expectHoldNow())
			})
		})
	}
}

// A waiter that loses its entry during the delay rejoins, and the delay does not start again.
// Promise: LockDelay
func TestLockDelay_entryLostMeanwhile(t *testing.T) {
	losses := map[string]func(*testing.T, *testEnv, stile.Entry){
		"entry broken": func(t *testing.T, w *testEnv, e stile.Entry) {
			if _, err := w.client("dan").Break(t.Context(), "a", e.Token); err != nil {
				t.Fatal(err)
			}
		},
		"session ended": func(_ *testing.T, w *testEnv, e stile.Entry) { w.store.Expire(e.Session) },
	}
	for how, lose := range losses {
		t.Run(how, func(t *testing.T) {
			scenario(t, func(t *testing.T, w *testEnv) {
				bob := w.client("bob", withLockDelay)
				w.loseUnreleased("a")
				start := time.Now()
				wt := wait(t.Context(), t, bob, "a")
				time.Sleep(lockDelay / 3)
				l, err := bob.Line(t.Context(), "a")
				if err != nil || len(l.Holders) != 1 {
					t.Fatalf("Line: got %+v, %v, want one holder", l, err)
				}
				lose(t, w, l.Holders[0])
				w.waitForHead("bob", "a")
				release(t, wt.expectHoldAfter(lockDelay, start))
			})
		})
	}
}

// Promise: LockDelay
func TestLockDelay_tryLock(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		bob, cid, dan := w.client("bob", withLockDelay), w.client("cid", withLockDelay), w.client("dan", withLockDelay)
		lost := w.loseUnreleased("a")
		_, err := bob.Mutex("a").TryLock(t.Context())
		held, ok := errors.AsType[*stile.HeldError](err)
		if !ok || !errors.Is(err, stile.ErrHeld) {
			t.Fatalf("TryLock: got %v, want a HeldError that matches ErrHeld", err)
		}
		if held.Name != "a" || held.ClosedFor != lockDelay || held.Holder == nil || held.Holder.Owner.Command != "ann" ||
			held.Holder.Token != lost.Token() {
			t.Errorf("TryLock: got %+v, want the lock a, closed for %v, and the holder ann", held, lockDelay)
		}
		for _, want := range []string{`"a"`, "ann", lockDelay.String(), "not released"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error: got %q, want %q in it", err, want)
			}
		}
		w.expectLine("a")

		time.Sleep(lockDelay / 3)
		expectClosed(t, bob, "a", lockDelay-lockDelay/3)
		expectClosed(t, cid, "a", lockDelay) // cid notices the unreleased hold only now
		time.Sleep(lockDelay - lockDelay/3)
		h := tryLock(t, bob, "a")
		expectHeld(t, h)
		release(t, h)
		release(t, tryLock(t, dan, "a")) // the delay is over for all clients
	})
}

// After a failed TryLock the client clears the markers when the delay is over, unless it has been
// closed.
// Promise: LockDelay
func TestLockDelay_endsAfterTryLockAlone(t *testing.T) {
	for _, closed := range []bool{false, true} {
		scenario(t, func(t *testing.T, w *testEnv) {
			bob, cid := w.client("bob", withLockDelay), w.client("cid", withLockDelay)
			w.loseUnreleased("a")
			expectClosed(t, bob, "a", lockDelay)
			if closed {
				if err := bob.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(lockDelay)
			synctest.Wait()
			if closed {
				expectClosed(t, cid, "a", lockDelay)
				return
			}
			release(t, tryLock(t, cid, "a"))
		})
	}
}

// Promise: LockDelay
func TestLockDelay_contextEndsMeanwhile(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		bob, cid := w.client("bob", withLockDelay), w.client("cid", withLockDelay)
		w.loseUnreleased("a")
		ctx, cancel := context.WithTimeout(t.Context(), lockDelay/3)
		defer cancel()
		start := time.Now()
		wt := wait(ctx, t, bob, "a")
		wt.expectWaiting()
		time.Sleep(lockDelay / 3)
		wt.expectFailure(context.DeadlineExceeded)
		w.expectLine("a")
		expectClosed(t, cid, "a", lockDelay)
		wait(t.Context(), t, bob, "a").expectHoldAfter(lockDelay, start) // the delay continued meanwhile
	})
}

// Promise: LockDelay
func TestLockDelay_placeIsReadyAfterwards(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		bob := w.client("bob", withLockDelay)
		w.loseUnreleased("a")
		left, p := join(t.Context(), t, bob, "a"), join(t.Context(), t, bob, "a")
		time.Sleep(lockDelay / 3)
		if closed(left.Ready()) || left.Ahead() != 0 {
			t.Errorf("during the delay: got ready %v and %d ahead, want false and 0", closed(left.Ready()), left.Ahead())
		}
		if err := left.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectLeft(t, left, stile.ErrLeft)
		time.Sleep(lockDelay - lockDelay/3 - 1)
		if closed(p.Ready()) {
			t.Error("the place is ready before the delay has passed")
		}
		time.Sleep(1)
		release(t, expectReady(t, p))
	})
}

// The delay also applies to goroutines of the process that lost the lock.
// Promise: LockDelay
func TestLockDelay_appliesToTheLoser(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann", withLockDelay)
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, ann, "a")
		w.store.Expire(w.session("ann"))
		since := w.waitForHead("ann", "a")
		expectLost(t, h, stile.LostExpired)
		wt.expectHoldAfter(lockDelay, since)
	})
}

// Promise: LockDelay
func TestLockDelay_zeroUsesNoMarkers(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var ops record[memstore.Op]
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			ops.add(c.Op)
			return memstore.Fault{}
		})
		ann, bob := w.client("ann"), w.client("bob")
		lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		w.store.Expire(w.session("ann"))
		release(t, wt.expectHoldNow())
		for _, op := range ops.all() {
			if op == memstore.Mark || op == memstore.ClearMarks {
				t.Errorf("got a request %s without a LockDelay", op)
			}
		}
	})
	scenario(t, func(t *testing.T, w *testEnv) { // a client without a LockDelay ignores markers
		w.loseUnreleased("a")
		release(t, wait(t.Context(), t, w.client("bob"), "a").expectHoldNow())
	})
	scenario(t, func(t *testing.T, w *testEnv) { // and leaves none
		lock(t, w.client("ann"), "a")
		w.store.Expire(w.session("ann"))
		release(t, wait(t.Context(), t, w.client("bob", withLockDelay), "a").expectHoldNow())
	})
}

func TestLockDelay_markFails(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann", withLockDelay), w.client("bob", withLockDelay)
		denied := errors.New("permission denied")
		w.faults(memstore.Fault{Err: denied}, on(memstore.Mark))
		wait(t.Context(), t, ann, "a").expectFailure(denied)
		_, err := ann.Mutex("a").TryLock(t.Context())
		expectError(t, err, denied)
		w.expectLine("a")
		w.heal()
		release(t, lock(t, bob, "a"))
	})
}

// If the context ends during the request, it is not known whether the marker was left, but it is
// removed.
func TestLockDelay_contextEndsDuringMark(t *testing.T) {
	for _, f := range []memstore.Fault{{Drop: true}, {LoseReply: true}} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann, bob := w.client("ann", withLockDelay), w.client("bob", withLockDelay)
			w.faults(f, on(memstore.Mark))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			wt := wait(ctx, t, ann, "a")
			time.Sleep(time.Second)
			wt.expectFailure(context.DeadlineExceeded)
			w.heal()
			w.expectLine("a")
			release(t, wait(t.Context(), t, bob, "a").expectHoldNow())
		})
	}
}

// If the session ends during the request, the lock is not held and the caller rejoins the line.
func TestLockDelay_sessionLostDuringMark(t *testing.T) {
	for _, left := range []bool{false, true} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann", withLockDelay)
			fault := memstore.Fault{Delay: time.Second}
			if left {
				fault = memstore.Fault{ReplyDelay: time.Second}
			}
			w.faults(fault, on(memstore.Mark))
			wt := wait(t.Context(), t, ann, "a")
			w.heal()
			w.store.Expire(w.session("ann"))
			if left {
				wt.expectHoldWithin(ttl + lockDelay) // no client knows that the marked entry never held the lock
			} else {
				wt.expectHoldWithin(ttl)
			}
			w.expectLine("a", "ann")
		})
	}
}

// If the markers cannot be cleared, the delay is applied again.
// Promise: LockDelay
func TestLockDelay_appliedAgainIfMarkersStay(t *testing.T) {
	for _, f := range []memstore.Fault{{Err: errors.New("permission denied")}, {Drop: true}} {
		scenario(t, func(t *testing.T, w *testEnv) {
			l := &logRecorder{}
			bob := w.client("bob", withLockDelay, func(o *stile.Options) { o.Logger = slog.New(l) })
			w.loseUnreleased("a")
			var asked []time.Time
			w.store.SetFaults(func(c memstore.Call) memstore.Fault {
				if c.Op != memstore.ClearMarks {
					return memstore.Fault{}
				}
				if asked = append(asked, time.Now()); len(asked) == 1 {
					return f
				}
				return memstore.Fault{}
			})
			start := time.Now()
			wt := wait(t.Context(), t, bob, "a")
			release(t, wt.expectHoldWithin(3*lockDelay))
			if len(asked) != 2 || asked[0].Sub(start) != lockDelay || asked[1].Sub(asked[0]) < lockDelay {
				t.Errorf("requests to clear markers: got %v, started at %v, want two, a delay apart", asked, start)
			}
			got := strings.Join(l.aboveDebug(), "\n")
			for want, times := range map[string]int{
				"WARN lock was not released by its last holder and stays closed for a while lock=a holder=(ann)": 2,
				"WARN could not clear the markers of holds that were not released":                               1,
			} {
				if strings.Count(got, want) != times {
					t.Errorf("log: got\n%s\nwant %q %d times", got, want, times)
				}
			}
		})
	}
}

// After each of two unreleased holds, the delay counts from when a client noticed it.
func TestLockDelay_secondUncleanEnd(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		bob := w.client("bob", withLockDelay)
		w.loseUnreleased("a")
		expectClosed(t, bob, "a", lockDelay)
		time.Sleep(lockDelay / 3)
		first := time.Now()
		// A client with a shorter delay acquires the lock and loses it, too.
		eve := w.client("eve", func(o *stile.Options) { o.LockDelay = time.Second })
		h := wait(t.Context(), t, eve, "a").expectHoldAfter(time.Second, first)
		w.store.Expire(w.session("eve"))
		expectLost(t, h, stile.LostExpired)
		wait(t.Context(), t, bob, "a").expectHoldAfter(lockDelay, time.Now())
	})
}

// No two holds are valid at the same time, even if the store ends sessions too early.
// Promise: LockDelay
func TestLockDelay_noOverlapIfSessionsEndEarly(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var clients []*stile.Client
		for _, name := range []string{"ann", "bob", "cid"} {
			clients = append(clients, w.client(name, func(o *stile.Options) { o.LockDelay = ttl }))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var mu sync.Mutex
		var holds []*stile.Hold
		var working sync.WaitGroup
		for _, c := range clients {
			working.Go(func() {
				for ctx.Err() == nil {
					h, err := c.Mutex("a").Lock(ctx)
					if err != nil {
						continue
					}
					mu.Lock()
					if slices.ContainsFunc(holds, (*stile.Hold).Valid) {
						t.Error("two holds are valid at the same time")
					}
					holds = append(holds, h)
					mu.Unlock()
					select {
					case <-h.Lost():
					case <-ctx.Done():
					}
				}
			})
		}
		var expired []string
		for ctx.Err() == nil {
			time.Sleep(rand.N(3 * ttl))
			if l, err := w.store.Line(t.Context(), "a"); err == nil && len(l.Entries) > 0 {
				expired = append(expired, l.Entries[0].Session)
				w.expireUnnoticed(expired...)
			}
		}
		working.Wait()
		if len(holds) < 50 {
			t.Errorf("got %d holds in an hour, want at least 50", len(holds))
		}
	})
}

// noMarkersStore is a store without markers.
type noMarkersStore struct{ *memstore.Store }

func (noMarkersStore) Capabilities() store.Capabilities {
	caps := memstore.New().Capabilities()
	caps.ClearMarks = nil
	return caps
}

func TestLockDelay_invalid(t *testing.T) {
	for _, tt := range []struct {
		name  string
		st    store.Store
		delay time.Duration
		want  string
	}{
		{"negative", memstore.New(), -time.Second, "a LockDelay of -1s"},
		{"on a store without markers", noMarkersStore{memstore.New()}, time.Second, "memory"},
	} {
		c, err := stile.New(tt.st, &stile.Options{LockDelay: tt.delay})
		if c != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: New: got %v, %v, want an error with %q in it", tt.name, c, err, tt.want)
		}
		if unsupported := tt.delay > 0; errors.Is(err, stile.ErrUnsupported) != unsupported {
			t.Errorf("%s: the error %v matches ErrUnsupported: %v, want %v", tt.name, err, !unsupported, unsupported)
		}
	}
	if _, err := stile.New(noMarkersStore{memstore.New()}, nil); err != nil {
		t.Errorf("New without a LockDelay: %v", err)
	}
}
