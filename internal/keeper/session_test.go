package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// The sessions below have a TTL of 30 s, and the terms of the lease tests: valid for 27 s, renewed every 9 s, each
// attempt given 5.4 s, at risk after 13.5 s.
const ttl30 = 30 * time.Second

var errRefused = errors.New("connection refused")

// journal is what a watcher hears, with the second at which it does.
type eventLog struct {
	began time.Time
	mu    sync.Mutex
	lines []string
}

func newEventLog() *eventLog { return &eventLog{began: time.Now()} }

func (j *eventLog) write(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf("%g ", time.Since(j.began).Seconds())+fmt.Sprintf(format, args...))
}

func (j *eventLog) expect(t *testing.T, want ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.Equal(j.lines, want) {
		t.Errorf("it went\n\t%s\nwant\n\t%s", strings.Join(j.lines, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func (j *eventLog) callbacks() Callbacks {
	return Callbacks{
		Confirmed:   func(roundTrip, _ time.Duration) { j.write("confirmed in %v", roundTrip) },
		Unconfirmed: func(err error, _ time.Duration) { j.write("unconfirmed: %v", err) },
		AtRisk:      func(err error, left time.Duration) { j.write("at risk, %v left: %v", left, err) },
		Recovered:   func() { j.write("recovered") },
		Lost:        func(err *LostError) { j.write("%v", err) },
	}
}

// open opens a session that is closed at the end of the test.
func open(t *testing.T, st store.Store, w Callbacks) *Session {
	t.Helper()
	return openFor(t, st, ttl30, w)
}

func openFor(t *testing.T, st store.Store, ttl time.Duration, w Callbacks) *Session {
	t.Helper()
	s, err := Open(t.Context(), st, store.SessionOptions{TTL: ttl}, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Close(ctx) // the tests that care have closed it before
	})
	return s
}

// confirming makes the store treat renewals so, and nothing else.
func onConfirm(f memstore.Fault) func(memstore.Call) memstore.Fault {
	return func(c memstore.Call) memstore.Fault {
		if c.Op == memstore.Confirm {
			return f
		}
		return memstore.Fault{}
	}
}

// lost returns why what is held under s was lost, or nil if it is held.
func lost(s *Session) *LostError {
	e, _ := errors.AsType[*LostError](context.Cause(s.Context()))
	return e
}

// expectHeld fails unless all that s tells agrees that it is held in the given state.
func expectHeld(t *testing.T, s *Session, state State, left time.Duration) {
	t.Helper()
	if !s.Valid() || s.State() != state || s.Context().Err() != nil {
		t.Fatalf("valid: %v, %v, context: %v; want it %v", s.Valid(), s.State(), context.Cause(s.Context()), state)
	}
	if got := s.Deadline().Sub(bootclock.Now()); got != left {
		t.Errorf("%v left, want %v", got, left)
	}
}

// expectLost fails unless all that s tells agrees that it is lost for the given reason.
func expectLost(t *testing.T, s *Session, reason Reason) {
	t.Helper()
	e := lost(s)
	if s.Valid() || s.State() != Lost || e == nil || e.Reason != reason {
		t.Fatalf("valid: %v, %v, context: %v; want it lost because %v",
			s.Valid(), s.State(), context.Cause(s.Context()), reason)
	}
	if !errors.Is(e, ErrLost) {
		t.Errorf("%v does not match ErrLost", e)
	}
}

func TestSession_renewsForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		confirmed := 0
		s := openFor(t, st, 20*ttl30, Callbacks{ // so long that a day of it is not many thousands of confirmations
			Confirmed:   func(time.Duration, time.Duration) { confirmed++ },
			Unconfirmed: func(err error, _ time.Duration) { t.Error("unconfirmed:", err) },
			AtRisk:      func(err error, _ time.Duration) { t.Error("at risk:", err) },
		})
		const day = 24 * time.Hour
		time.Sleep(day)
		synctest.Wait()
		expectHeld(t, s, Held, 20*27*time.Second)
		if want := int(day / (20 * 9 * time.Second)); confirmed != want {
			t.Errorf("confirmed %d times, want %d", confirmed, want)
		}
	})
}

func TestSession_recoversFromRisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j := memstore.New(), newEventLog()
		st.SetFaults(onConfirm(memstore.Fault{Drop: true}))
		s := open(t, st, j.callbacks())
		time.Sleep(13 * time.Second)
		expectHeld(t, s, Held, 14*time.Second)
		time.Sleep(time.Second)
		expectHeld(t, s, AtRisk, 13*time.Second)
		time.Sleep(3 * time.Second) // 17: the second attempt, of 15.3, is under way and lost
		st.SetFaults(nil)
		time.Sleep(5 * time.Second) // 22: the third, of 21.6, is not
		expectHeld(t, s, Held, 26600*time.Millisecond)
		j.expect(
			t,
			"13.5 at risk, 13.5s left: <nil>",
			"14.4 unconfirmed: memory store: confirm : context deadline exceeded",
			"20.7 unconfirmed: memory store: confirm : context deadline exceeded",
			"21.6 confirmed in 0s",
			"21.6 recovered",
		)
	})
}

func TestSession_lostByDeadline(t *testing.T) {
	tests := []struct {
		name  string
		fault memstore.Fault
	}{
		{"renewals do not arrive", memstore.Fault{Drop: true}},
		{"replies do not arrive", memstore.Fault{LoseReply: true}},
		{"renewals fail", memstore.Fault{Err: errRefused}},
		{"renewals are carried out but seem to fail", memstore.Fault{Err: errRefused, LoseReply: true}},
		{"renewals arrive too late", memstore.Fault{Delay: ttl30}},
		{"replies arrive too late", memstore.Fault{ReplyDelay: 6 * time.Second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				s := open(t, st, Callbacks{})
				time.Sleep(10 * time.Second) // renewed at 9
				st.SetFaults(onConfirm(tt.fault))
				time.Sleep(26*time.Second - 1)
				expectHeld(t, s, AtRisk, 1)
				time.Sleep(1)
				synctest.Wait()
				expectLost(t, s, Deadline)
				time.Sleep(3*time.Second - 1) // the margin
				if kept := tt.fault.LoseReply || tt.fault.ReplyDelay > 0; kept && len(st.Sessions()) == 0 {
					t.Error("the session was ended in the store before the margin was over")
				}
				time.Sleep(1)
				synctest.Wait()
				if ids := st.Sessions(); len(ids) != 0 {
					t.Errorf("the session is still in the store, which is within reach: %v", ids)
				}
			})
		})
	}
}

func TestSession_lossHasLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j := memstore.New(), newEventLog()
		st.SetFaults(onConfirm(memstore.Fault{Err: errRefused}))
		s := open(t, st, j.callbacks())
		<-s.Context().Done()
		synctest.Wait()
		if err := context.Cause(s.Context()); !errors.Is(err, errRefused) ||
			err.Error() != "lock lost: its session was not confirmed in time: connection refused" {
			t.Errorf("the loss is explained by %q, want the last error in it", err)
		}
		// Once every 0.9 s from the ninth second on, at risk in the middle of it, and lost once, at the end.
		var others []string
		for _, l := range j.lines {
			if !strings.HasSuffix(l, "unconfirmed: connection refused") {
				others = append(others, l)
			}
		}
		if got := len(j.lines) - len(others); got != 20 {
			t.Errorf("%d attempts failed, want 20", got)
		}
		want := []string{
			"13.5 at risk, 13.5s left: connection refused",
			"27 lock lost: its session was not confirmed in time: connection refused",
		}
		if !slices.Equal(others, want) || j.lines[len(j.lines)-1] != want[1] {
			t.Errorf("heard\n\t%s\nwant\n\t%s", strings.Join(j.lines, "\n\t"), strings.Join(want, "\n\t"))
		}
	})
}

func TestSession_survivesTransientErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		calls := 0
		st.SetFaults(func(c memstore.Call) memstore.Fault { // two of three fail
			if c.Op == memstore.Confirm {
				calls++
				switch calls % 3 {
				case 1:
					return memstore.Fault{Drop: true}
				case 2:
					return memstore.Fault{LoseReply: true}
				}
			}
			return memstore.Fault{}
		})
		failed := 0
		s := open(t, st, Callbacks{Unconfirmed: func(error, time.Duration) { failed++ }})
		time.Sleep(time.Hour)
		synctest.Wait()
		if !s.Valid() || failed < 100 {
			t.Errorf("valid: %v, after %d failed attempts", s.Valid(), failed)
		}
	})
}

// While one session holds a lock, another waits for it, and the faults begin. P6: it must not be admitted before the
// first has been told, that is before its context has ended.
func expectLossBeforeAdmission(t *testing.T, st *memstore.Store, holder *Session, faults func(memstore.Call) memstore.Fault) {
	t.Helper()
	req := store.Request{Name: "orders/42", Mode: line.Exclusive}
	if _, err := holder.Store().Enqueue(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	waiter := open(t, st, Callbacks{})
	admitted := make(chan error, 1)
	req.Notify = func(now store.Standing) {
		if now.State == store.Admitted {
			admitted <- context.Cause(holder.Context())
		}
	}
	if _, err := waiter.Store().Enqueue(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	st.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Session == holder.Store().ID() {
			return faults(c)
		}
		return memstore.Fault{}
	})
	select {
	case notified := <-admitted:
		if notified == nil {
			t.Errorf("the waiter was admitted while the holder holds, for another %v", holder.Deadline().Sub(bootclock.Now()))
		}
	case <-time.After(3 * ttl30):
		t.Error("the waiter was never admitted")
	}
}

// The last renewal is answered after d, and then the store is out of reach, for the farewell too. Whatever d is, the
// deadline is before the store's.
// Promise: P1
func TestSession_lostBeforeNextAdmissionAfterLateRenewal(t *testing.T) {
	for d := time.Duration(0); d <= ttl30; d += ttl30 / 60 {
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				renewals := 0
				expectLossBeforeAdmission(t, st, open(t, st, Callbacks{}), func(c memstore.Call) memstore.Fault {
					if c.Op == memstore.Confirm {
						renewals++
					}
					if renewals == 1 {
						return memstore.Fault{ReplyDelay: d}
					}
					return memstore.Fault{Drop: true}
				})
			})
		})
	}
}

// The session itself is opened by a request that is answered after d, and never renewed. From 27 s on nobody gets to
// hold anything: see TestOpen_slowerThanTheDeadline.
// Promise: P6
func TestSession_lostBeforeNextAdmissionAfterLateOpen(t *testing.T) {
	for d := time.Duration(0); d < 27*time.Second; d += ttl30 / 60 {
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				drop := func(c memstore.Call) memstore.Fault {
					switch c.Op {
					case memstore.Open:
						return memstore.Fault{ReplyDelay: d}
					case memstore.Confirm, memstore.Close:
						return memstore.Fault{Drop: true}
					}
					return memstore.Fault{}
				}
				st.SetFaults(drop)
				holder := open(t, st, Callbacks{})
				st.SetFaults(func(c memstore.Call) memstore.Fault {
					if c.Op == memstore.Open {
						return memstore.Fault{}
					}
					return drop(c)
				})
				expectLossBeforeAdmission(t, st, holder, drop)
			})
		})
	}
}

// With the store within reach the session is closed after a loss: not before the holder was told, and has had the margin
// to stop.
// Promise: P6
func TestSession_notifiesHoldersBeforeClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		began := time.Now()
		carriedOut := memstore.Fault{Err: errRefused, LoseReply: true} // so that the store would keep the session
		expectLossBeforeAdmission(t, st, open(t, st, Callbacks{}), onConfirm(carriedOut))
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("the waiter was admitted after %v, want 30s: the holder was told at 27s, and has 3s to stop", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		holder := open(t, st, Callbacks{})
		time.AfterFunc(time.Second, func() { _ = holder.Close(context.Background()) })
		expectLossBeforeAdmission(t, st, holder, onConfirm(memstore.Fault{}))
		expectLost(t, holder, Closed)
	})
}

func TestSession_lostWithNextRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j := memstore.New(), newEventLog()
		s := open(t, st, j.callbacks())
		time.Sleep(time.Second)
		st.Expire(s.Store().ID())
		time.Sleep(8*time.Second - 1)
		expectHeld(t, s, Held, 18*time.Second+1) // nobody has told it
		time.Sleep(1)
		synctest.Wait()
		expectLost(t, s, Expired)
		if err := lost(s); !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("%v does not match ErrSessionLost", err)
		}
		j.expect(
			t,
			"9 unconfirmed: session lost: m1 has ended",
			"9 lock lost: its session has ended in the store: session lost: m1 has ended",
		)
	})
}

// telling is a store whose sessions can be told that they have ended.
type reportingStore struct {
	*memstore.Store
	lost func(error)
}

func (s *reportingStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	s.lost = opts.Lost
	return s.Store.Open(ctx, opts)
}

func TestSession_lostAtOnceIfReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j := &reportingStore{Store: memstore.New()}, newEventLog()
		s := open(t, st, j.callbacks())
		time.Sleep(time.Second)
		st.lost(fmt.Errorf("%w: revoked by an administrator", store.ErrSessionLost))
		synctest.Wait()
		expectLost(t, s, Expired)
		j.expect(t, "1 lock lost: its session has ended in the store: session lost: revoked by an administrator")
	})
}

func TestSession_lostCallbackAfterContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		st.SetFaults(onConfirm(memstore.Fault{Err: errRefused}))
		opened := make(chan *Session, 1)
		notified := 0
		s := open(t, st, Callbacks{Lost: func(e *LostError) {
			notified++
			s := <-opened
			if s.Context().Err() == nil {
				t.Error("the watcher was told of the loss before the holders")
			}
			if got := lost(s); got != e {
				t.Errorf("the watcher was told %v, the holders %v", e, got)
			}
			if len(st.Sessions()) != 1 {
				t.Error("the session was closed before the watcher was told")
			}
		}})
		opened <- s
		time.Sleep(time.Hour)
		synctest.Wait()
		if notified != 1 {
			t.Errorf("told %d times, want once", notified)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("closing what is lost: %v", err)
		}
		expectLost(t, s, Deadline) // the first reason stands
	})
}

func TestSession_closed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j := memstore.New(), newEventLog()
		s := open(t, st, j.callbacks())
		time.Sleep(time.Second)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		expectLost(t, s, Closed)
		if ids := st.Sessions(); len(ids) != 0 {
			t.Errorf("still in the store: %v", ids)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("closing it again: %v", err)
		}
		time.Sleep(time.Hour)
		j.expect(t) // nothing: a closed session is not lost, and is renewed no more
	})
}

func TestSession_closeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		s := open(t, st, Callbacks{})
		time.Sleep(10 * time.Second)
		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Drop: true} })
		time.Sleep(9 * time.Second) // a renewal is under way since one second

		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		context.AfterFunc(s.Context(), func() {
			if took := time.Since(began); took != 0 {
				t.Errorf("the holders were told after %v, want at once", took)
			}
		})
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close returns %v, want an error that it took too long", err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("Close took %v, want the 2 s it was given", took)
		}
		expectLost(t, s, Closed)
		if len(st.Sessions()) != 1 {
			t.Error("the store was out of reach and has closed the session")
		}

		st.SetFaults(nil)
		if err := s.Close(t.Context()); err != nil || len(st.Sessions()) != 0 {
			t.Errorf("trying again: %v, sessions left: %v", err, st.Sessions())
		}
	})
}

func TestSession_abandonedEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		s := open(t, st, Callbacks{})
		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Drop: true} })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Close returns %v, want that its context has ended", err)
		}
		time.Sleep(ttl30)
		synctest.Wait()
		if ids := st.Sessions(); len(ids) != 0 {
			t.Errorf("still in the store after its TTL: %v", ids)
		}
	})
}

func TestOpen_fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j := memstore.New(), newEventLog()
		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Err: errRefused} })
		s, err := Open(t.Context(), st, store.SessionOptions{TTL: ttl30}, j.callbacks())
		if s != nil || !errors.Is(err, errRefused) {
			t.Errorf("got %v, %v, want what the store said", s, err)
		}

		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{LoseReply: true} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err = Open(ctx, st, store.SessionOptions{TTL: ttl30}, j.callbacks())
		if s != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, %v, want that it took too long", s, err)
		}
		j.expect(t)
	})
}

func TestOpen_slowerThanTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j := memstore.New(), newEventLog()
		st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Open {
				return memstore.Fault{ReplyDelay: 28 * time.Second}
			}
			return memstore.Fault{}
		})
		s := open(t, st, j.callbacks())
		if s.Valid() {
			t.Error("valid at first, although it was opened for 27 s 28 s ago")
		}
		synctest.Wait()
		expectLost(t, s, Deadline)
		j.expect(t, "28 lock lost: its session was not confirmed in time")
	})
}

// A reply may be handled by a goroutine that stood still, on its way to the lock, while the deadline passed and
// others saw it pass. In real time, because goroutines that wait for a mutex stop the fake one.
func TestSession_validityEndsOnce(t *testing.T) {
	sent := bootclock.Now()
	s := &Session{lease: NewLease(Schedule{Valid: time.Minute, Every: time.Minute, Overdue: time.Minute},
		sent.Add(50*time.Millisecond-time.Minute), sent)} // 50 ms are left
	s.lease.RequestSent(sent)

	s.mu.Lock()
	handled := make(chan struct{})
	go func() {
		defer close(handled)
		s.handleReply(reply{sent: sent})
	}()
	for s.lease.ValidAt(bootclock.Now()) {
		time.Sleep(time.Millisecond)
	}
	s.mu.Unlock() // from here on anybody may have seen that it is lost
	<-handled
	if s.Valid() {
		t.Error("valid again after its deadline")
	}
}

// Timers stand still while the machine is suspended. That the deadline has passed meanwhile is noticed within a second.
func TestSession_noticesLossAfterSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openFor(t, memstore.New(), time.Hour, Callbacks{})
		time.Sleep(90*time.Second + 500*time.Millisecond) // half-way between two looks, if there is one each second or each minute
		bootclock.PretendSuspend(time.Hour)
		if s.Valid() {
			t.Error("the session is valid after its deadline")
		}
		woken := time.Now()
		<-s.Context().Done()
		if took := time.Since(woken); took > time.Second {
			t.Errorf("the loss was noticed after %v, want a second at most", took)
		}
	})
}

// State returns how the session stands now.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease.Advance(bootclock.Now())
	return s.lease.State()
}
