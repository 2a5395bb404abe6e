package stile_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store/memstore"
)

// ending returns an end hook that calls f and ignores the context.
func ending[E any](f func(E)) func(context.Context, E) {
	return func(_ context.Context, e E) { f(e) }
}

// starting returns a start hook that calls f and returns the context unchanged.
func starting[E any](f func(E)) func(context.Context, E) context.Context {
	return func(ctx context.Context, e E) context.Context {
		f(e)
		return ctx
	}
}

func TestHooks_lock(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var started record[stile.AttemptStartEvent]
		var attempts record[stile.AttemptEndEvent]
		var holds record[stile.HoldStartEvent]
		var ends record[stile.HoldEndEvent]
		bob := w.client("bob")
		ann := w.client("ann", func(o *stile.Options) {
			o.Hooks = stile.Hooks{
				AttemptStart: starting(started.add), AttemptEnd: ending(attempts.add),
				HoldStart: starting(holds.add), HoldEnd: ending(ends.add),
			}
		})
		h := lock(t, bob, "a")
		wt := wait(t.Context(), t, ann, "a")
		time.Sleep(time.Minute)
		attempt := stile.AttemptStartEvent{Name: "a", Mode: line.Exclusive}
		if got := started.all(); len(got) != 1 || got[0] != attempt {
			t.Errorf("AttemptStart: got %+v, want %+v", got, attempt)
		}
		if n := len(attempts.all()) + len(holds.all()); n > 0 {
			t.Errorf("AttemptEnd or HoldStart was called for a waiter")
		}
		release(t, h)
		h = wt.expectHoldNow()
		if got := attempts.all(); len(got) != 1 || got[0].AttemptStartEvent != attempt || got[0].Outcome != stile.Acquired ||
			got[0].Err != nil || got[0].Waited.Round(time.Second) != time.Minute {
			t.Errorf("AttemptEnd: got %+v, want one acquisition after a minute", got)
		}
		hold := stile.HoldStartEvent{Name: "a", Mode: line.Exclusive, Token: h.Token()}
		if got := holds.all(); len(got) != 1 || got[0] != hold {
			t.Errorf("HoldStart: got %+v, want %+v", got, hold)
		}
		time.Sleep(time.Hour)
		release(t, h)
		release(t, h)
		if got := ends.all(); len(got) != 1 || got[0].HoldStartEvent != hold || got[0].Reason != stile.EndReleased ||
			got[0].Held.Round(time.Second) != time.Hour || got[0].Err != nil {
			t.Errorf("HoldEnd: got %+v, want one release after an hour", got)
		}

		h = lock(t, ann, "b")
		time.Sleep(time.Minute)
		if _, err := bob.Break(t.Context(), "b", h.Token()); err != nil {
			t.Fatal(err)
		}
		if got := ends.all(); len(got) != 2 || got[1].Reason != stile.EndLost || got[1].Err != h.Err() ||
			got[1].Token != h.Token() || got[1].Held.Round(time.Second) != time.Minute {
			t.Errorf("HoldEnd: got %+v, want a second call with the error %v", got, h.Err())
		}
		asLost(t, h.Release(t.Context()))
		if n := len(ends.all()); n != 2 {
			t.Errorf("got %d calls of HoldEnd, want 2, none for the release of the lost hold", n)
		}

		h = lock(t, ann, "c")
		if err := h.ReleaseAfter(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if got := ends.all(); len(got) != 3 || got[2].Reason != stile.EndReleasedAfter || got[2].Err != nil {
			t.Errorf("HoldEnd: got %+v, want a third call for the ReleaseAfter", got)
		}
		time.Sleep(2 * time.Minute)
	})
}

// If a release finds that the lock had been lost, HoldEnd gets the reason EndLost.
func TestHooks_lossFoundByTheRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var ends record[stile.HoldEndEvent]
		c := w.client("ann", func(o *stile.Options) { o.Hooks.HoldEnd = ending(ends.add) })
		h := lock(t, c, "a")
		w.delayNotifications("a")
		w.evict("a", "ann")
		lost := asLost(t, h.Release(t.Context()))
		if got := ends.all(); len(got) != 1 || got[0].Reason != stile.EndLost || got[0].Err != error(lost) {
			t.Errorf("HoldEnd: got %+v, want %v", got, lost)
		}
	})
}

// When HoldEnd is called for a loss, all methods of the hold report the loss.
func TestHooks_lossIsReportedAfterTheLoss(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var h *stile.Hold
		called := false
		c := w.client("ann", func(o *stile.Options) {
			o.Hooks.HoldEnd = func(_ context.Context, e stile.HoldEndEvent) {
				called = true
				if h.Valid() || h.Context().Err() == nil || h.Err() != e.Err || e.Reason != stile.EndLost {
					t.Errorf("in the hook: got valid %v, context %v, error %v, event %+v", h.Valid(), h.Context().Err(), h.Err(), e)
				}
			}
		})
		h = lock(t, c, "a")
		if err := c.Close(t.Context()); err != nil || !called {
			t.Errorf("Close: got %v; the hook was called: %v", err, called)
		}
	})
}

func TestHooks_unconfirmedRelease(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var ends record[stile.HoldEndEvent]
		c := w.client("ann", func(o *stile.Options) { o.Hooks.HoldEnd = ending(ends.add) })
		h := lock(t, c, "a")
		refused := errors.New("refused")
		w.faults(memstore.Fault{Err: refused}, on(memstore.Withdraw))
		if err := h.Release(t.Context()); !errors.Is(err, refused) {
			t.Errorf("Release: got %v, want %v", err, refused)
		}
		if got := ends.all(); len(got) != 1 || got[0].Reason != stile.EndReleased || !errors.Is(got[0].Err, refused) {
			t.Errorf("HoldEnd: got %+v, want one call with the error of the release", got)
		}
	})
}

func TestHooks_session(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		var renewed record[stile.RenewalEvent]
		var opened, recovered record[stile.SessionEvent]
		var atRisk record[stile.RiskEvent]
		var lost record[stile.SessionLossEvent]
		c := w.client("ann", func(o *stile.Options) {
			o.Hooks = stile.Hooks{
				SessionOpened: opened.add, SessionRenewed: renewed.add, SessionAtRisk: atRisk.add,
				SessionRecovered: recovered.add, SessionLost: lost.add,
			}
		})
		h := lock(t, c, "a")
		session := w.session("ann")
		if got := opened.all(); len(got) != 1 || got[0].Session != session {
			t.Errorf("SessionOpened: got %+v, want session %s", got, session)
		}
		w.faults(memstore.Fault{ReplyDelay: time.Second}, on(memstore.Confirm))
		time.Sleep(renewInterval + 2*time.Second)
		if got := renewed.all(); len(got) != 1 || got[0].Err != nil || got[0].RoundTrip.Round(100*time.Millisecond) != time.Second ||
			got[0].Left.Round(100*time.Millisecond) != validFor-time.Second || got[0].Session != session {
			t.Errorf("SessionRenewed: got %+v, want one call with a round trip of 1s", got)
		}
		refused := errors.New("refused")
		w.faults(memstore.Fault{Err: refused}, on(memstore.Confirm))
		time.Sleep(renewInterval)
		if got := renewed.all(); len(got) < 2 || !errors.Is(got[1].Err, refused) || got[1].RoundTrip != 0 ||
			got[1].Left <= 0 || got[1].Left >= validFor-renewInterval+time.Second {
			t.Errorf("SessionRenewed: got %+v, want a second call with an error", got)
		}
		if got := atRisk.all(); len(got) != 1 || got[0].Session != session || got[0].Left <= 0 || !errors.Is(got[0].Err, refused) {
			t.Errorf("SessionAtRisk: got %+v, want one call with the error", got)
		}
		if n := len(recovered.all()); n > 0 {
			t.Errorf("got %d calls of SessionRecovered while the session is at risk, want 0", n)
		}
		w.heal()
		time.Sleep(ttl)
		expectHeld(t, h)
		if got := recovered.all(); len(got) != 1 || got[0].Session != session {
			t.Errorf("SessionRecovered: got %+v, want one call", got)
		}
		w.store.Expire(session)
		if got := lost.all(); len(got) != 1 || got[0].Session != session || got[0].Reason != stile.LostExpired {
			t.Errorf("SessionLost: got %+v, want one call with the reason %v", got, stile.LostExpired)
		}
		release(t, lock(t, c, "a"))
		if got := opened.all(); len(got) != 2 || got[1].Session == session {
			t.Errorf("SessionOpened: got %+v, want a second session", got)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(lost.all()); n != 1 {
			t.Errorf("got %d calls of SessionLost, want 1, none for the closed session", n)
		}
	})
}

// A logRecorder is a slog handler that collects records.
type logRecorder struct{ record[slog.Record] }

func (*logRecorder) Enabled(context.Context, slog.Level) bool { return true }
func (l *logRecorder) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *logRecorder) WithGroup(string) slog.Handler          { return l }
func (l *logRecorder) Handle(_ context.Context, r slog.Record) error {
	l.add(r)
	return nil
}

// aboveDebug returns the messages above debug level with their attributes.
func (l *logRecorder) aboveDebug() []string {
	var lines []string
	for _, r := range l.all() {
		if r.Level > slog.LevelDebug {
			line := r.Level.String() + " " + r.Message
			r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
			lines = append(lines, line)
		}
	}
	return lines
}

func TestLog_withoutTrouble(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		l := &logRecorder{}
		ann := w.client("ann", func(o *stile.Options) { o.Logger = slog.New(l) })
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, w.client("bob"), "a")
		ctx, end, _ := cancelable(t)
		canceledWaiter := wait(ctx, t, ann, "a")
		end()
		canceledWaiter.expectFailure(context.Canceled)
		time.Sleep(time.Hour)
		release(t, h)
		wt.expectHoldNow()
		if _, err := ann.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Fatal(err)
		}
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := l.aboveDebug(); len(got) > 0 {
			t.Errorf("log above debug level: got %q, want none", got)
		}
		if len(l.all()) == 0 {
			t.Error("log at debug level: got none")
		}
	})
}

func TestLog_loss(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		l := &logRecorder{}
		ann := w.client("ann", func(o *stile.Options) { o.Logger = slog.New(l) })
		h := lock(t, ann, "a")
		w.cut(w.session("ann"))
		time.Sleep(ttl)
		expectLost(t, h, stile.LostDeadline)
		got := strings.Join(l.aboveDebug(), "\n")
		for _, want := range []string{"WARN renewal overdue", "WARN session lost", "WARN lock lost lock=a"} {
			if strings.Count(got, want) != 1 {
				t.Errorf("log: got\n%s\nwant %q once", got, want)
			}
		}
		if n := len(l.aboveDebug()); n != 3 {
			t.Errorf("got %d messages above debug level, want 3:\n%s", n, got)
		}
	})
}

// An error is either returned or logged.
func TestLog_returnedErrorsAreNotLogged(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		l := &logRecorder{}
		ann := w.client("ann", func(o *stile.Options) { o.Logger = slog.New(l) })
		refused := errors.New("refused")
		w.faults(memstore.Fault{Err: refused}, on(memstore.Open, memstore.Enqueue, memstore.Withdraw))
		wait(t.Context(), t, ann, "a").expectFailure(refused)
		w.faults(memstore.Fault{Err: refused}, on(memstore.Enqueue, memstore.Withdraw))
		wait(t.Context(), t, ann, "a").expectFailure(refused)
		w.faults(memstore.Fault{Err: refused}, on(memstore.Withdraw))
		expectError(t, lock(t, ann, "a").Release(t.Context()), refused)
		synctest.Wait()
		if got := l.aboveDebug(); len(got) > 0 {
			t.Errorf("log above debug level: got %q, want none", got)
		}
	})
}

// A hook blocks, for example, if it writes to a pipe whose reader has stopped.
func TestHooks_blockedHookDelaysNoLoss(t *testing.T) {
	for what, block := range map[string]func(o *stile.Options, until <-chan struct{}){
		"at risk": func(o *stile.Options, until <-chan struct{}) {
			o.Hooks.SessionAtRisk = func(stile.RiskEvent) { <-until }
		},
		"opened": func(o *stile.Options, until <-chan struct{}) {
			o.Hooks.SessionOpened = func(stile.SessionEvent) { <-until }
		},
		"session lost": func(o *stile.Options, until <-chan struct{}) {
			o.Hooks.SessionLost = func(stile.SessionLossEvent) { <-until }
		},
		"hold lost": func(o *stile.Options, until <-chan struct{}) {
			o.Hooks.HoldEnd = func(_ context.Context, e stile.HoldEndEvent) {
				if e.Reason == stile.EndLost {
					<-until
				}
			}
		},
		"contended": func(o *stile.Options, until <-chan struct{}) {
			o.Hooks.Contended = func(context.Context, stile.ContentionEvent) { <-until }
		},
		"renewed": func(o *stile.Options, until <-chan struct{}) {
			o.Hooks.SessionRenewed = func(stile.RenewalEvent) { <-until }
		},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			t.Log(what)
			until := make(chan struct{})
			defer close(until)
			ann := w.client("ann", func(o *stile.Options) { block(o, until) })
			a, b := lock(t, ann, "a"), lock(t, ann, "b")
			next := wait(t.Context(), t, w.client("bob"), "a")
			w.cut(w.session("ann"))
			time.Sleep(validFor)
			synctest.Wait()
			expectLost(t, a, stile.LostDeadline)
			expectLost(t, b, stile.LostDeadline)
			next.expectWaiting()
			release(t, next.expectHoldWithin(ttl))
		})
	}
}

// A hold that is lost before HoldStart has returned is not delivered: Lock, TryLock and Join take
// the lock again.
// Promise: P1
func TestHooks_holdLostDuringHookIsNotDelivered(t *testing.T) {
	for what, take := range map[string]func(context.Context, *stile.Mutex) (*stile.Hold, error){
		"Lock":    func(ctx context.Context, m *stile.Mutex) (*stile.Hold, error) { return m.Lock(ctx) },
		"TryLock": func(ctx context.Context, m *stile.Mutex) (*stile.Hold, error) { return m.TryLock(ctx) },
		"Join": func(ctx context.Context, m *stile.Mutex) (*stile.Hold, error) {
			p, err := m.Join(ctx)
			if err != nil {
				return nil, err
			}
			return p.Wait(ctx)
		},
	} {
		for how, lose := range map[string]func(*testEnv, string){
			"entry broken":      func(w *testEnv, name string) { w.evict(name, "ann") },
			"session ended":     func(w *testEnv, _ string) { w.store.Expire(w.session("ann")) },
			"deadline passed":   func(w *testEnv, _ string) { w.cut(w.session("ann")); time.Sleep(validFor) },
			"process paused":    func(w *testEnv, _ string) { w.cut(w.session("ann")); time.Sleep(2 * ttl) },
			"machine suspended": func(w *testEnv, _ string) { bootclock.PretendSuspend(ttl) },
		} {
			for _, in := range []string{"AttemptEnd", "HoldStart"} {
				scenario(t, func(t *testing.T, w *testEnv) {
					t.Log(what, how, in)
					if what == "TryLock" && (how == "deadline passed" || how == "machine suspended") {
						return // the lost entry blocks the second try until the store has ended the session
					}
					var acquired record[stile.HoldStartEvent]
					var attempts record[stile.AttemptEndEvent]
					var ends record[stile.HoldEndEvent]
					l := newHookPairs(t)
					ann := w.client("ann", func(o *stile.Options) {
						losing := stile.Hooks{
							AttemptEnd: func(_ context.Context, e stile.AttemptEndEvent) {
								attempts.add(e)
								if in == "AttemptEnd" && len(attempts.all()) == 1 {
									lose(w, e.Name)
									w.heal()
								}
							},
							HoldStart: starting(func(e stile.HoldStartEvent) {
								acquired.add(e)
								if in == "HoldStart" && len(acquired.all()) == 1 {
									lose(w, e.Name)
									w.heal()
								}
							}),
							HoldEnd: ending(ends.add),
						}
						o.Hooks = stile.JoinHooks(l.hooks(), losing)
					})
					h, err := take(t.Context(), ann.Mutex("a"))
					if err != nil {
						t.Fatal(err)
					}
					expectHeld(t, h)
					w.expectLine("a", "ann")
					got := acquired.all()
					if len(got) != 2 || got[0].Token >= got[1].Token || got[1].Token != h.Token() {
						t.Errorf("HoldStart: got %+v, want two holds, the second with the token %d", got, h.Token())
					}
					if got := attempts.all(); len(got) != 2 || got[0].Outcome != stile.Acquired || got[1].Outcome != stile.Acquired {
						t.Errorf("AttemptEnd: got %+v, want two acquisitions", got)
					}
					if got := ends.all(); len(got) != 1 || got[0].Token != acquired.all()[0].Token || got[0].Reason != stile.EndLost {
						t.Errorf("HoldEnd: got %v, want the loss of the first hold", got)
					}
					release(t, h)
					l.checkPaired()
				})
			}
		}
	}
}

// If the admission arrives after the session's deadline, because the machine was suspended, the
// lock is not acquired with that session.
func TestHooks_nothingIsAcquiredAfterASuspend(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		acquired := &record[stile.HoldStartEvent]{}
		bob := w.client("bob")
		lock(t, bob, "a")
		ann := w.client("ann", func(o *stile.Options) { o.Hooks.HoldStart = starting(acquired.add) })
		wt := wait(t.Context(), t, ann, "a")
		bootclock.PretendSuspend(ttl)
		w.evict("a", "bob")
		h := wt.expectHold()
		if all := acquired.all(); len(all) != 1 || all[0].Token != h.Token() {
			t.Errorf("HoldStart: got %+v, want one hold with the token %d", all, h.Token())
		}
	})
}

// A panic in a hook or logger gives the lock up. The process may continue after it, as an HTTP
// server does.
func TestHooks_panicReleasesTheLock(t *testing.T) {
	for what, use := range map[string]func(*stile.Options, func()){
		"AttemptEnd": func(o *stile.Options, fail func()) {
			o.Hooks.AttemptEnd = func(context.Context, stile.AttemptEndEvent) { fail() }
		},
		"HoldStart": func(o *stile.Options, fail func()) {
			o.Hooks.HoldStart = starting(func(stile.HoldStartEvent) { fail() })
		},
		"AttemptEnd, joined": func(o *stile.Options, fail func()) {
			o.Hooks.AttemptEnd = func(context.Context, stile.AttemptEndEvent) { fail() }
			o.Hooks = stile.JoinHooks(stile.Hooks{}, o.Hooks, stile.Hooks{})
		},
		"the logger": func(o *stile.Options, fail func()) { o.Logger = slog.New(failingHandler{"lock acquired", fail}) },
		"the logger, before the entry is in the line": func(o *stile.Options, fail func()) {
			o.Logger = slog.New(failingHandler{"session opened", fail})
		},
		"the logger, after the entry was lost": func(o *stile.Options, fail func()) {
			o.Logger = slog.New(failingHandler{"joining the line again", fail})
		},
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			failed := 0
			ann := w.client("ann", func(o *stile.Options) {
				use(o, func() {
					if failed++; failed == 1 {
						panic("a bug in the hook")
					}
				})
			})
			bob := w.client("bob")
			h := lock(t, bob, "a")
			done := make(chan any, 1)
			go func() {
				defer func() { done <- recover() }()
				_, _ = ann.Mutex("a").Lock(t.Context())
			}()
			synctest.Wait()
			next := wait(t.Context(), t, ann, "a")
			if what == "the logger, after the entry was lost" {
				w.evict("a", "ann")
				synctest.Wait()
			}
			release(t, h)
			if got := <-done; got != "a bug in the hook" {
				t.Fatalf("%s: got the panic %v, want that of the hook", what, got)
			}
			release(t, next.expectHoldNow())
			w.expectLine("a")
			release(t, lock(t, bob, "a"))
		})
	}
}

// A failingHandler is a slog handler that calls fail for one message.
type failingHandler struct {
	message string
	fail    func()
}

func (failingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (f failingHandler) WithAttrs([]slog.Attr) slog.Handler     { return f }
func (f failingHandler) WithGroup(string) slog.Handler          { return f }
func (f failingHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == f.message {
		f.fail()
	}
	return nil
}

func TestHooks_mayCloseTheClient(t *testing.T) {
	for what, use := range map[string]func(*stile.Options, func()){
		"AttemptStart": func(o *stile.Options, f func()) {
			o.Hooks.AttemptStart = starting(func(stile.AttemptStartEvent) { f() })
		},
		"AttemptEnd": func(o *stile.Options, f func()) {
			o.Hooks.AttemptEnd = ending(func(stile.AttemptEndEvent) { f() })
		},
		"HoldStart":      func(o *stile.Options, f func()) { o.Hooks.HoldStart = starting(func(stile.HoldStartEvent) { f() }) },
		"HoldEnd":        func(o *stile.Options, f func()) { o.Hooks.HoldEnd = ending(func(stile.HoldEndEvent) { f() }) },
		"HoldEnd, lost":  func(o *stile.Options, f func()) { o.Hooks.HoldEnd = ending(func(stile.HoldEndEvent) { f() }) },
		"Contended":      func(o *stile.Options, f func()) { o.Hooks.Contended = ending(func(stile.ContentionEvent) { f() }) },
		"SessionOpened":  func(o *stile.Options, f func()) { o.Hooks.SessionOpened = func(stile.SessionEvent) { f() } },
		"SessionLost":    func(o *stile.Options, f func()) { o.Hooks.SessionLost = func(stile.SessionLossEvent) { f() } },
		"SessionRenewed": func(o *stile.Options, f func()) { o.Hooks.SessionRenewed = func(stile.RenewalEvent) { f() } },
		"SessionAtRisk":  func(o *stile.Options, f func()) { o.Hooks.SessionAtRisk = func(stile.RiskEvent) { f() } },
	} {
		scenario(t, func(t *testing.T, w *testEnv) {
			t.Log(what)
			var ann *stile.Client
			closed := make(chan time.Duration, 100)
			ann = w.client("ann", func(o *stile.Options) {
				use(o, func() {
					before := time.Now()
					if err := ann.Close(context.Background()); err != nil {
						t.Error(err)
					}
					closed <- time.Since(before)
				})
			})
			wt := wait(t.Context(), t, ann, "a")
			switch what {
			case "AttemptStart", "AttemptEnd", "HoldStart":
				wt.expectFailure(stile.ErrClosed)
			case "SessionOpened": // the client may close before or after the acquisition
				wt.expectReturn(ttl)
			case "HoldEnd":
				release(t, wt.expectHoldNow())
			case "HoldEnd, lost":
				wt.expectHoldNow()
				w.evict("a", "ann")
			case "Contended":
				wt.expectHoldNow()
				wait(t.Context(), t, ann, "a")
			case "SessionLost":
				wt.expectHoldNow()
				w.store.Expire(w.session("ann"))
			case "SessionRenewed":
				wt.expectHoldNow()
			case "SessionAtRisk":
				wt.expectHoldNow()
				w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm))
			}
			if took := <-closed; took > 2*time.Second {
				t.Errorf("%s: Close took %v, want 2s at most", what, took)
			}
			w.expectLine("a")
		})
	}
}
