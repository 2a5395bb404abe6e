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

// lockDelay is the LockDelay of the scenarios, and delayed gives it to a client.
const lockDelay = ttl + ttl/2

func withLockDelay(o *stile.Options) { o.LockDelay = lockDelay }

// turn waits until owner stands at the head of the line behind name, and returns when that was.
func (w *testEnv) waitForHead(owner, name string) time.Time {
	w.t.Helper()
	for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(time.Second / 10) {
		synctest.Wait()
		if l := w.line(name); len(l) > 0 && l[0] == owner {
			return time.Now()
		}
	}
	w.t.Fatalf("%s does not come to the head of the line of %q", owner, name)
	panic("unreachable")
}

// unreleased has a client that leaves markers take the lock and lose it to a store that does not keep its promise.
func (w *testEnv) loseUnreleased(name string) (lost *stile.Hold) {
	w.t.Helper()
	h := lock(w.t, w.client("ann", withLockDelay), name)
	w.store.Expire(w.session("ann"))
	w.expectLine(name)
	return h
}

// getsAfter checks that the call returns a hold when d has passed since the given time, and no sooner or later.
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

// giveAway has the store end a session early and cuts off its client, which therefore does not hear of it. It may be called
// for one session after another.
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
		t.Fatalf("TryLock returned %v, %v, want a HeldError, matching ErrHeld", h, err)
	}
	if held.ClosedFor != closed {
		t.Errorf("TryLock says that the lock is closed for %v, want %v", held.ClosedFor, closed)
	}
	if d := time.Since(before); d != 0 {
		t.Errorf("TryLock took %v", d)
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
		"left": func(t *testing.T, _ *testEnv, ann *stile.Client) {
			p := join(t.Context(), t, ann, "a")
			expectReady(t, p)
			if err := p.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"done": func(t *testing.T, _ *testEnv, ann *stile.Client) {
			if err := ann.Mutex("a").Do(t.Context(), func(context.Context, *stile.Hold) error { return nil }); err != nil {
				t.Fatal(err)
			}
		},
		"released by a request that is made in the background": func(t *testing.T, w *testEnv, ann *stile.Client) {
			h := lock(t, ann, "a")
			w.faults(memstore.Fault{Drop: true}, on(memstore.Withdraw))
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			expectError(t, h.Release(ctx), context.DeadlineExceeded)
			w.heal()
			time.Sleep(2 * time.Second)
		},
		"released for later": func(t *testing.T, _ *testEnv, ann *stile.Client) {
			if err := lock(t, ann, "a").ReleaseAfter(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
			if err := ann.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		},
		"never begun, the waiter's process having died": func(t *testing.T, w *testEnv, ann *stile.Client) {
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
		ann, bob := w.client("ann", withLockDelay), w.client("bob", withLockDelay)
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
		"the store has ended its session early": func(_ *testing.T, w *testEnv, _ *stile.Client, _ *stile.Hold) {
			w.store.Expire(w.session("ann"))
		},
		"its session has expired": func(_ *testing.T, w *testEnv, _ *stile.Client, _ *stile.Hold) {
			w.cut(w.session("ann"))
		},
		"somebody has broken it": func(t *testing.T, w *testEnv, _ *stile.Client, h *stile.Hold) {
			if _, err := w.client("cid").Break(t.Context(), "a", h.Token()); err != nil {
				t.Fatal(err)
			}
		},
		"its client was closed": func(t *testing.T, _ *testEnv, ann *stile.Client, _ *stile.Hold) {
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
				w.expectLine("a", "bob", "dan") // which keeps others out
				release(t, wt.expectHoldAfter(lockDelay, since))
				release(t, next.expectHoldNow()) // one delay is enough
			})
		})
	}
}

// The time counts from when it was noticed, however long ago the hold has ended.
// Promise: LockDelay
func TestLockDelay_startsWhenNoticed(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.loseUnreleased("a")
		time.Sleep(time.Hour)
		wait(t.Context(), t, w.client("bob", withLockDelay), "a").expectHoldAfter(lockDelay, time.Now())
	})
}

// The holder cannot be reached, and the store has given its lock away.
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
				t.Errorf("with a LockDelay of %v: the first hold is valid when there is a second: %v", with, overlap)
			}
		})
	}
}

// Nothing is left of who has waited in vain that would delay the next one further.
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
				// What bob has open, and what he would do after the delay; the others will be done with theirs by then.
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

// Who loses its place during the delay stands in line again, and has not noticed anything new.
// Promise: LockDelay
func TestLockDelay_entryLostMeanwhile(t *testing.T) {
	losses := map[string]func(*testing.T, *testEnv, stile.Entry){
		"broken": func(t *testing.T, w *testEnv, e stile.Entry) {
			if _, err := w.client("dan").Break(t.Context(), "a", e.Token); err != nil {
				t.Fatal(err)
			}
		},
		"gone with its session": func(_ *testing.T, w *testEnv, e stile.Entry) { w.store.Expire(e.Session) },
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
					t.Fatalf("the line is %+v, %v", l, err)
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
			t.Fatalf("TryLock returned %v, want a HeldError, matching ErrHeld", err)
		}
		if held.Name != "a" || held.ClosedFor != lockDelay || held.Holder == nil || held.Holder.Owner.Command != "ann" ||
			held.Holder.Token != lost.Token() {
			t.Errorf("TryLock returned %+v, want that a is closed for %v because of ann", held, lockDelay)
		}
		for _, want := range []string{`"a"`, "ann", lockDelay.String(), "not released"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error %q does not say %q", err, want)
			}
		}
		w.expectLine("a")

		time.Sleep(lockDelay / 3)
		expectClosed(t, bob, "a", lockDelay-lockDelay/3)
		expectClosed(t, cid, "a", lockDelay) // who hears of it only now
		time.Sleep(lockDelay - lockDelay/3)
		h := tryLock(t, bob, "a")
		expectHeld(t, h)
		release(t, h)
		release(t, tryLock(t, dan, "a")) // nobody else has to wait for what bob has waited for
	})
}

// Who only tries once has the lock opened for the others, if it lives so long.
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
		wait(t.Context(), t, bob, "a").expectHoldAfter(lockDelay, start) // it has not been idle
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
			t.Errorf("during the delay the place is ready (%v), with %d ahead", closed(left.Ready()), left.Ahead())
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

// The goroutines of the process that has lost are no better than others.
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
				t.Errorf("the store was asked to %s", op)
			}
		}
	})
	scenario(t, func(t *testing.T, w *testEnv) { // who has none minds nothing
		w.loseUnreleased("a")
		release(t, wait(t.Context(), t, w.client("bob"), "a").expectHoldNow())
	})
	scenario(t, func(t *testing.T, w *testEnv) { // and leaves nothing
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

// Whether the marker was left is not known; nothing of it remains.
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

// The session ends while the answer is on its way: the lock is not held, and the caller stands in line again.
func TestLockDelay_sessionLostDuringMark(t *testing.T) {
	for _, left := range []bool{false, true} {
		scenario(t, func(t *testing.T, w *testEnv) {
			ann := w.client("ann", withLockDelay)
			late := memstore.Fault{Delay: time.Second}
			if left {
				late = memstore.Fault{ReplyDelay: time.Second}
			}
			w.faults(late, on(memstore.Mark))
			wt := wait(t.Context(), t, ann, "a")
			w.heal()
			w.store.Expire(w.session("ann"))
			if left {
				wt.expectHoldWithin(ttl + lockDelay) // who should know that nobody ever held it?
			} else {
				wt.expectHoldWithin(ttl)
			}
			w.expectLine("a", "ann")
		})
	}
}

// What cannot be removed delays the next one, as if the delay had not been.
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
				t.Errorf("the store was asked to clear %v after the beginning at %v, want it asked twice", asked, start)
			}
			got := strings.Join(l.aboveDebug(), "\n")
			for want, times := range map[string]int{
				"WARN lock was not released by its last holder and stays closed for a while lock=a holder=(ann)": 2,
				"WARN could not clear the markers of holds that were not released":                               1,
			} {
				if strings.Count(got, want) != times {
					t.Errorf("logged\n%s\nwant %q in it, %d times", got, want, times)
				}
			}
		})
	}
}

// Two unclean ends, one after the other: each is waited for from when it was noticed.
func TestLockDelay_secondUncleanEnd(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		bob := w.client("bob", withLockDelay)
		w.loseUnreleased("a")
		expectClosed(t, bob, "a", lockDelay)
		time.Sleep(lockDelay / 3)
		first := time.Now()
		// Somebody else with a shorter delay has had enough, and is lost in turn.
		eve := w.client("eve", func(o *stile.Options) { o.LockDelay = time.Second })
		h := wait(t.Context(), t, eve, "a").expectHoldAfter(time.Second, first)
		w.store.Expire(w.session("eve"))
		expectLost(t, h, stile.LostExpired)
		wait(t.Context(), t, bob, "a").expectHoldAfter(lockDelay, time.Now())
	})
}

// Whatever ends early and whoever dies: no two holds are valid at a time.
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
						t.Error("two holds are valid")
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
		var givenAway []string
		for ctx.Err() == nil {
			time.Sleep(rand.N(3 * ttl))
			if l, err := w.store.Line(t.Context(), "a"); err == nil && len(l.Entries) > 0 {
				givenAway = append(givenAway, l.Entries[0].Session)
				w.expireUnnoticed(givenAway...)
			}
		}
		working.Wait()
		if len(holds) < 50 {
			t.Errorf("only %d holds in an hour: little was tried", len(holds))
		}
	})
}

// markerless is a store in which entries leave no markers.
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
			t.Errorf("%s: New returned %v, %v, want an error that says %q", tt.name, c, err, tt.want)
		}
		if unsupported := tt.delay > 0; errors.Is(err, stile.ErrUnsupported) != unsupported {
			t.Errorf("%s: the error %v matches ErrUnsupported: %v, want %v", tt.name, err, !unsupported, unsupported)
		}
	}
	if _, err := stile.New(noMarkersStore{memstore.New()}, nil); err != nil {
		t.Errorf("without a LockDelay any store will do: %v", err)
	}
}
