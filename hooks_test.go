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
	"github.com/stilelock/stile/store/memstore"
)

func TestHooksOfALock(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		var acquired record[stile.Acquired]
		var released record[stile.Released]
		var lost record[*stile.LostError]
		bob := w.client("bob")
		ann := w.client("ann", func(o *stile.Options) {
			o.Hooks = stile.Hooks{Acquired: acquired.add, Released: released.add, Lost: lost.add}
		})
		h := lock(t, bob, "a")
		wt := wait(t.Context(), t, ann, "a")
		time.Sleep(time.Minute)
		if n := len(acquired.all()); n > 0 {
			t.Errorf("Acquired was called %d times for one who waits", n)
		}
		release(t, h)
		h = wt.getsNow()
		if got := acquired.all(); len(got) != 1 || got[0].Name != "a" || got[0].Token != h.Token() || got[0].Waited.Round(time.Second) != time.Minute {
			t.Errorf("Acquired was called with %+v", got)
		}
		time.Sleep(time.Hour)
		release(t, h)
		release(t, h)
		if got := released.all(); len(got) != 1 || got[0].Name != "a" || got[0].Token != h.Token() ||
			got[0].Held.Round(time.Second) != time.Hour || got[0].Err != nil {
			t.Errorf("Released was called with %+v", got)
		}

		h = lock(t, ann, "b")
		if _, err := bob.Break(t.Context(), "b", h.Token()); err != nil {
			t.Fatal(err)
		}
		if got := lost.all(); len(got) != 1 || error(got[0]) != h.Err() {
			t.Errorf("Lost was called with %v, want %v", got, h.Err())
		}
		asLost(t, h.Release(t.Context()))
		if n := len(released.all()); n != 1 {
			t.Errorf("Released was called %d times, want once: a lost hold is not released", n)
		}
	})
}

// When Lost is called the hold is over in every respect.
func TestTheHookOfALossComesAfterTheLoss(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		var h *stile.Hold
		called := false
		c := w.client("ann", func(o *stile.Options) {
			o.Hooks.Lost = func(lost *stile.LostError) {
				called = true
				if h.Valid() || h.Context().Err() == nil || h.Err() != error(lost) {
					t.Errorf("in the hook: valid %v, context %v, error %v", h.Valid(), h.Context().Err(), h.Err())
				}
			}
		})
		h = lock(t, c, "a")
		if err := c.Close(t.Context()); err != nil || !called {
			t.Errorf("Close: %v; the hook was called: %v", err, called)
		}
	})
}

func TestTheHookOfAReleaseThatWasNotConfirmed(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		var released record[stile.Released]
		c := w.client("ann", func(o *stile.Options) { o.Hooks.Released = released.add })
		h := lock(t, c, "a")
		refused := errors.New("refused")
		w.faults(memstore.Fault{Err: refused}, on(memstore.Withdraw))
		if err := h.Release(t.Context()); !errors.Is(err, refused) {
			t.Errorf("Release: %v, want %v", err, refused)
		}
		if got := released.all(); len(got) != 1 || !errors.Is(got[0].Err, refused) {
			t.Errorf("Released was called with %+v, want the error", got)
		}
	})
}

func TestHooksOfASession(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		var renewed record[stile.Renewed]
		c := w.client("ann", func(o *stile.Options) { o.Hooks.Renewed = renewed.add })
		h := lock(t, c, "a")
		w.faults(memstore.Fault{ReplyDelay: time.Second}, on(memstore.Confirm))
		time.Sleep(renew + 2*time.Second)
		if got := renewed.all(); len(got) != 1 || got[0].Err != nil || got[0].RoundTrip.Round(100*time.Millisecond) != time.Second {
			t.Errorf("Renewed was called with %+v, want once, with a round trip of a second", got)
		}
		refused := errors.New("refused")
		w.faults(memstore.Fault{Err: refused}, on(memstore.Confirm))
		time.Sleep(renew)
		if got := renewed.all(); len(got) < 2 || !errors.Is(got[1].Err, refused) || got[1].RoundTrip != 0 {
			t.Errorf("Renewed was called with %+v, want an error at last", got)
		}
		w.heal()
		time.Sleep(ttl)
		expectHeld(t, h)
	})
}

// logged is a slog handler that keeps what it is given.
type logged struct{ record[slog.Record] }

func (*logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l *logged) WithGroup(string) slog.Handler          { return l }
func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.add(r)
	return nil
}

// above returns the messages above debug level with their attributes.
func (l *logged) above() []string {
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

func TestTheLogOfALifeWithoutTrouble(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		l := &logged{}
		ann := w.client("ann", func(o *stile.Options) { o.Logger = slog.New(l) })
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, w.client("bob"), "a")
		ctx, end, _ := cancelled(t)
		quits := wait(ctx, t, ann, "a")
		end()
		quits.fails(context.Canceled)
		time.Sleep(time.Hour)
		release(t, h)
		wt.getsNow()
		if _, err := ann.Mutex("a").TryLock(t.Context()); !errors.Is(err, stile.ErrHeld) {
			t.Fatal(err)
		}
		if err := ann.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := l.above(); len(got) > 0 {
			t.Errorf("logged %q, want nothing above debug level", got)
		}
		if len(l.all()) == 0 {
			t.Error("nothing was logged at debug level")
		}
	})
}

func TestTheLogOfALoss(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		l := &logged{}
		ann := w.client("ann", func(o *stile.Options) { o.Logger = slog.New(l) })
		h := lock(t, ann, "a")
		w.cut(w.session("ann"))
		time.Sleep(ttl)
		expectLost(t, h, stile.LostDeadline)
		got := strings.Join(l.above(), "\n")
		for _, want := range []string{"WARN renewal overdue", "WARN session lost", "WARN lock lost lock=a"} {
			if strings.Count(got, want) != 1 {
				t.Errorf("logged\n%s\nwant %q in it, once", got, want)
			}
		}
		if n := len(l.above()); n != 3 {
			t.Errorf("logged %d messages above debug level, want 3:\n%s", n, got)
		}
	})
}

// An error is returned or logged, never both.
func TestErrorsThatAreReturnedAreNotLogged(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		l := &logged{}
		ann := w.client("ann", func(o *stile.Options) { o.Logger = slog.New(l) })
		refused := errors.New("refused")
		w.faults(memstore.Fault{Err: refused}, on(memstore.Open, memstore.Enqueue, memstore.Withdraw))
		wait(t.Context(), t, ann, "a").fails(refused)
		w.faults(memstore.Fault{Err: refused}, on(memstore.Enqueue, memstore.Withdraw))
		wait(t.Context(), t, ann, "a").fails(refused)
		w.faults(memstore.Fault{Err: refused}, on(memstore.Withdraw))
		expectError(t, lock(t, ann, "a").Release(t.Context()), refused)
		synctest.Wait()
		if got := l.above(); len(got) > 0 {
			t.Errorf("logged %q, want nothing above debug level", got)
		}
	})
}

// A log whose reader has stopped reading is such a hook.
func TestAHookThatBlocksKeepsNobodyFromLearningOfALoss(t *testing.T) {
	for what, block := range map[string]func(o *stile.Options, until <-chan struct{}){
		"at risk": func(o *stile.Options, until <-chan struct{}) { o.Hooks.AtRisk = func(time.Duration) { <-until } },
		"lost":    func(o *stile.Options, until <-chan struct{}) { o.Hooks.Lost = func(*stile.LostError) { <-until } },
		"renewed": func(o *stile.Options, until <-chan struct{}) { o.Hooks.Renewed = func(stile.Renewed) { <-until } },
	} {
		scenario(t, func(t *testing.T, w *world) {
			t.Log(what)
			until := make(chan struct{})
			defer close(until)
			ann := w.client("ann", func(o *stile.Options) { block(o, until) })
			a, b := lock(t, ann, "a"), lock(t, ann, "b")
			next := wait(t.Context(), t, w.client("bob"), "a")
			w.cut(w.session("ann"))
			time.Sleep(valid)
			synctest.Wait()
			expectLost(t, a, stile.LostDeadline)
			expectLost(t, b, stile.LostDeadline)
			next.waits()
			release(t, next.getsWithin(ttl))
		})
	}
}

// Until Acquired has returned nobody has the hold. If it is lost meanwhile nobody gets it, however the lock was asked for.
func TestAHoldThatIsLostInTheHookIsNotHandedOver(t *testing.T) {
	for what, take := range map[string]func(context.Context, *stile.Mutex) (*stile.Hold, error){
		"Lock":    func(ctx context.Context, m *stile.Mutex) (*stile.Hold, error) { return m.Lock(ctx) },
		"TryLock": func(ctx context.Context, m *stile.Mutex) (*stile.Hold, error) { return m.TryLock(ctx) },
		"Join": func(ctx context.Context, m *stile.Mutex) (*stile.Hold, error) {
			p, err := m.Join(ctx)
			if err != nil {
				return nil, err
			}
			return p.Wait(t.Context())
		},
	} {
		for how, lose := range map[string]func(*world, stile.Acquired){
			"broken":             func(w *world, got stile.Acquired) { w.takeOut(got.Name, "ann") },
			"its session ended":  func(w *world, _ stile.Acquired) { w.store.Expire(w.session("ann")) },
			"its time ran out":   func(w *world, _ stile.Acquired) { w.cut(w.session("ann")); time.Sleep(valid) },
			"the process paused": func(w *world, _ stile.Acquired) { w.cut(w.session("ann")); time.Sleep(2 * ttl) },
			"suspended":          func(w *world, _ stile.Acquired) { bootclock.PretendSuspend(ttl) },
		} {
			scenario(t, func(t *testing.T, w *world) {
				t.Log(what, how)
				if what == "TryLock" && (how == "its time ran out" || how == "suspended") {
					return // its entry is in its own way, as long as the store does not know that the session is over
				}
				var acquired record[stile.Acquired]
				var lost record[*stile.LostError]
				ann := w.client("ann", func(o *stile.Options) {
					o.Hooks.Lost = lost.add
					o.Hooks.Acquired = func(got stile.Acquired) {
						acquired.add(got)
						if len(acquired.all()) == 1 {
							lose(w, got)
							w.heal()
						}
					}
				})
				h, err := take(t.Context(), ann.Mutex("a"))
				if err != nil {
					t.Fatal(err)
				}
				expectHeld(t, h)
				w.expectLine("a", "ann")
				got := acquired.all()
				if len(got) != 2 || got[0].Token >= got[1].Token || got[1].Token != h.Token() {
					t.Errorf("Acquired was called with %+v, want two holds, the second with the token %d", got, h.Token())
				}
				if got := lost.all(); len(got) != 1 || got[0].Token != acquired.all()[0].Token {
					t.Errorf("Lost was called with %v, want the first hold", got)
				}
				release(t, h)
			})
		}
	}
}

// A lock that comes when the session has passed its deadline already, because the machine was suspended, is not acquired.
func TestHooks_nothingIsAcquiredAfterASuspend(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		acquired := &record[stile.Acquired]{}
		bob := w.client("bob")
		lock(t, bob, "a")
		ann := w.client("ann", func(o *stile.Options) { o.Hooks.Acquired = acquired.add })
		wt := wait(t.Context(), t, ann, "a")
		bootclock.PretendSuspend(ttl)
		w.takeOut("a", "bob")
		h := wt.gets()
		if all := acquired.all(); len(all) != 1 || all[0].Token != h.Token() {
			t.Errorf("the hook was told of %+v, want one lock acquired, with the token %d", all, h.Token())
		}
	})
}

// The process goes on, as an HTTP server does.
func TestAPanicInACallbackGivesTheLockBack(t *testing.T) {
	for what, use := range map[string]func(*stile.Options, func()){
		"the hook":   func(o *stile.Options, fail func()) { o.Hooks.Acquired = func(stile.Acquired) { fail() } },
		"the logger": func(o *stile.Options, fail func()) { o.Logger = slog.New(failing{"lock acquired", fail}) },
		"the logger, before the entry is in the line": func(o *stile.Options, fail func()) {
			o.Logger = slog.New(failing{"session opened", fail})
		},
		"the logger, after the entry was lost": func(o *stile.Options, fail func()) {
			o.Logger = slog.New(failing{"joining the line again", fail})
		},
	} {
		scenario(t, func(t *testing.T, w *world) {
			failed := 0
			ann := w.client("ann", func(o *stile.Options) {
				use(o, func() {
					if failed++; failed == 1 {
						panic("no room for metrics")
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
				w.takeOut("a", "ann")
				synctest.Wait()
			}
			release(t, h)
			if why := <-done; why != "no room for metrics" {
				t.Fatalf("%s: recovered %v", what, why)
			}
			release(t, next.getsNow())
			w.expectLine("a")
			release(t, lock(t, bob, "a"))
		})
	}
}

// failing is a slog handler that calls fail when it is given a certain message.
type failing struct {
	message string
	fail    func()
}

func (failing) Enabled(context.Context, slog.Level) bool { return true }
func (f failing) WithAttrs([]slog.Attr) slog.Handler     { return f }
func (f failing) WithGroup(string) slog.Handler          { return f }
func (f failing) Handle(_ context.Context, r slog.Record) error {
	if r.Message == f.message {
		f.fail()
	}
	return nil
}

func TestAHookMayCloseTheClient(t *testing.T) {
	for what, use := range map[string]func(*stile.Options, func()){
		"Acquired": func(o *stile.Options, f func()) { o.Hooks.Acquired = func(stile.Acquired) { f() } },
		"Released": func(o *stile.Options, f func()) { o.Hooks.Released = func(stile.Released) { f() } },
		"Lost":     func(o *stile.Options, f func()) { o.Hooks.Lost = func(*stile.LostError) { f() } },
		"Renewed":  func(o *stile.Options, f func()) { o.Hooks.Renewed = func(stile.Renewed) { f() } },
		"AtRisk":   func(o *stile.Options, f func()) { o.Hooks.AtRisk = func(time.Duration) { f() } },
	} {
		scenario(t, func(t *testing.T, w *world) {
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
			case "Acquired":
				wt.fails(stile.ErrClosed)
			case "Released":
				release(t, wt.getsNow())
			case "Lost":
				wt.getsNow()
				w.takeOut("a", "ann")
			case "Renewed":
				wt.getsNow()
			case "AtRisk":
				wt.getsNow()
				w.faults(memstore.Fault{Drop: true}, on(memstore.Confirm))
			}
			if took := <-closed; took > 2*time.Second {
				t.Errorf("%s: Close took %v, want two seconds at most", what, took)
			}
			w.expectLine("a")
		})
	}
}
