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

// ttl30 is the TTL of the sessions below, with the schedule of the lease tests: valid for 27 s,
// renewed every 9 s, attempts time out after 5.4 s, at risk after 13.5 s.
const ttl30 = 30 * time.Second

var errRefused = errors.New("connection refused")

// An eventLog records callbacks with their times in seconds.
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
		t.Errorf("callbacks: got\n\t%s\nwant\n\t%s", strings.Join(j.lines, "\n\t"), strings.Join(want, "\n\t"))
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

// open opens a session with a TTL of 30 s that is closed at the end of the test.
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
		_ = s.Close(ctx) // tests of Close have called it before
	})
	return s
}

// onConfirm returns a fault function that applies f to renewals only.
func onConfirm(f memstore.Fault) func(memstore.Call) memstore.Fault {
	return func(c memstore.Call) memstore.Fault {
		if c.Op == memstore.Confirm {
			return f
		}
		return memstore.Fault{}
	}
}

// lost returns the loss of s, or nil if s is held.
func lost(s *Session) *LostError {
	e, _ := errors.AsType[*LostError](context.Cause(s.Context()))
	return e
}

// expectHeld fails unless s is valid, in the given state and with the given time left, according to
// all its methods.
func expectHeld(t *testing.T, s *Session, state State, left time.Duration) {
	t.Helper()
	if !s.Valid() || s.State() != state || s.Context().Err() != nil {
		t.Fatalf("got valid %v, state %v, cause %v, want the state %v", s.Valid(), s.State(), context.Cause(s.Context()), state)
	}
	if got := s.Deadline().Sub(bootclock.Now()); got != left {
		t.Errorf("time left: got %v, want %v", got, left)
	}
}

// expectLost fails unless s is lost for the given reason, according to all its methods.
func expectLost(t *testing.T, s *Session, reason Reason) {
	t.Helper()
	e := lost(s)
	if s.Valid() || s.State() != Lost || e == nil || e.Reason != reason {
		t.Fatalf("got valid %v, state %v, cause %v, want a loss with the reason %q",
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
		s := openFor(t, st, 20*ttl30, Callbacks{ // a long TTL keeps the number of renewals in a day small
			Confirmed:   func(time.Duration, time.Duration) { confirmed++ },
			Unconfirmed: func(err error, _ time.Duration) { t.Error("unconfirmed:", err) },
			AtRisk:      func(err error, _ time.Duration) { t.Error("at risk:", err) },
		})
		const day = 24 * time.Hour
		time.Sleep(day)
		synctest.Wait()
		expectHeld(t, s, Held, 20*27*time.Second)
		if want := int(day / (20 * 9 * time.Second)); confirmed != want {
			t.Errorf("got %d confirmations, want %d", confirmed, want)
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
		time.Sleep(3 * time.Second) // 17: the second attempt, sent at 15.3, was dropped and has not timed out
		st.SetFaults(nil)
		time.Sleep(5 * time.Second) // 22: the third, sent at 21.6, was confirmed
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
		{"requests dropped", memstore.Fault{Drop: true}},
		{"replies lost", memstore.Fault{LoseReply: true}},
		{"requests fail", memstore.Fault{Err: errRefused}},
		{"requests carried out but reported as failed", memstore.Fault{Err: errRefused, LoseReply: true}},
		{"requests too late", memstore.Fault{Delay: ttl30}},
		{"replies too late", memstore.Fault{ReplyDelay: 6 * time.Second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				s := open(t, st, Callbacks{})
				time.Sleep(10 * time.Second) // the renewal at 9 was confirmed
				st.SetFaults(onConfirm(tt.fault))
				time.Sleep(26*time.Second - 1)
				expectHeld(t, s, AtRisk, 1)
				time.Sleep(1)
				synctest.Wait()
				expectLost(t, s, Deadline)
				time.Sleep(3*time.Second - 1) // the margin
				if kept := tt.fault.LoseReply || tt.fault.ReplyDelay > 0; kept && len(st.Sessions()) == 0 {
					t.Error("the session was closed in the store before the margin had passed")
				}
				time.Sleep(1)
				synctest.Wait()
				if ids := st.Sessions(); len(ids) != 0 {
					t.Errorf("sessions in the store after the margin: got %v, want none", ids)
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
			t.Errorf("cause of the loss: got %q, want one with the last error", err)
		}
		// Attempts fail every 0.9 s from second 9 on. Besides that there is one call of AtRisk, and
		// one of Lost at the end.
		var others []string
		for _, l := range j.lines {
			if !strings.HasSuffix(l, "unconfirmed: connection refused") {
				others = append(others, l)
			}
		}
		if got := len(j.lines) - len(others); got != 20 {
			t.Errorf("got %d failed attempts, want 20", got)
		}
		want := []string{
			"13.5 at risk, 13.5s left: connection refused",
			"27 lock lost: its session was not confirmed in time: connection refused",
		}
		if !slices.Equal(others, want) || j.lines[len(j.lines)-1] != want[1] {
			t.Errorf("other callbacks: got\n\t%s\nwant\n\t%s", strings.Join(j.lines, "\n\t"), strings.Join(want, "\n\t"))
		}
	})
}

func TestSession_survivesTransientErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		calls := 0
		st.SetFaults(func(c memstore.Call) memstore.Fault { // two of three renewals fail
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
			t.Errorf("got valid %v after %d failed attempts, want true after at least 100", s.Valid(), failed)
		}
	})
}

// expectLossBeforeAdmission enqueues a waiter behind the holder and then sets the faults for the
// holder's session. It checks promise P6: the waiter is admitted only after the holder's context
// has ended.
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
	case cause := <-admitted:
		if cause == nil {
			t.Errorf("the waiter was admitted %v before the holder's deadline, and the holder's context has not ended", holder.Deadline().Sub(bootclock.Now()))
		}
	case <-time.After(3 * ttl30):
		t.Error("the waiter was not admitted within three TTLs")
	}
}

// The reply to the last renewal takes d, and afterwards all requests are dropped, including that of
// Close. For every d, the deadline is before the store's.
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

// The reply to the request that opens the session takes d, and no renewal arrives. For 27 s or
// more, see [TestOpen_slowerThanTheDeadline].
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

// If the store is reachable, a lost session is closed there, but only after the holder was notified
// and had the margin to stop.
// Promise: P6
func TestSession_notifiesHoldersBeforeClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		began := time.Now()
		carriedOut := memstore.Fault{Err: errRefused, LoseReply: true} // the store keeps the session
		expectLossBeforeAdmission(t, st, open(t, st, Callbacks{}), onConfirm(carriedOut))
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("the waiter was admitted after %v, want 30s: 27s to the loss and a margin of 3s", took)
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
		expectHeld(t, s, Held, 18*time.Second+1) // not reported yet
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

// A reportingStore lets a test report the end of a session.
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
		calls := 0
		s := open(t, st, Callbacks{Lost: func(e *LostError) {
			calls++
			s := <-opened
			if s.Context().Err() == nil {
				t.Error("Lost was called before the context had ended")
			}
			if got := lost(s); got != e {
				t.Errorf("Lost: got %v, want the context's cause %v", e, got)
			}
			if len(st.Sessions()) != 1 {
				t.Error("the session was closed before Lost was called")
			}
		}})
		opened <- s
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls != 1 {
			t.Errorf("got %d calls of Lost, want 1", calls)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("Close of a lost session: %v", err)
		}
		expectLost(t, s, Deadline) // the first reason stays
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
			t.Errorf("sessions in the store: got %v, want none", ids)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("second Close: %v", err)
		}
		time.Sleep(time.Hour)
		j.expect(t) // no callbacks: a closed session is neither lost nor renewed
	})
}

func TestSession_closeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		s := open(t, st, Callbacks{})
		time.Sleep(10 * time.Second)
		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Drop: true} })
		time.Sleep(9 * time.Second) // a renewal has been in flight for one second

		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		context.AfterFunc(s.Context(), func() {
			if took := time.Since(began); took != 0 {
				t.Errorf("the context ended after %v, want 0", took)
			}
		})
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: got %v, want context.DeadlineExceeded", err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("Close took %v, want the 2s of its context", took)
		}
		expectLost(t, s, Closed)
		if len(st.Sessions()) != 1 {
			t.Error("the session was closed although all requests were dropped")
		}

		st.SetFaults(nil)
		if err := s.Close(t.Context()); err != nil || len(st.Sessions()) != 0 {
			t.Errorf("second Close: got %v and the sessions %v, want nil and none", err, st.Sessions())
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
			t.Errorf("Close: got %v, want context.Canceled", err)
		}
		time.Sleep(ttl30)
		synctest.Wait()
		if ids := st.Sessions(); len(ids) != 0 {
			t.Errorf("sessions in the store after the TTL: got %v, want none", ids)
		}
	})
}

func TestOpen_fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, j := memstore.New(), newEventLog()
		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{Err: errRefused} })
		s, err := Open(t.Context(), st, store.SessionOptions{TTL: ttl30}, j.callbacks())
		if s != nil || !errors.Is(err, errRefused) {
			t.Errorf("Open: got %v, %v, want the store's error", s, err)
		}

		st.SetFaults(func(memstore.Call) memstore.Fault { return memstore.Fault{LoseReply: true} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err = Open(ctx, st, store.SessionOptions{TTL: ttl30}, j.callbacks())
		if s != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Open: got %v, %v, want context.DeadlineExceeded", s, err)
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
			t.Error("Valid after an Open that took longer than the deadline: got true")
		}
		synctest.Wait()
		expectLost(t, s, Deadline)
		j.expect(t, "28 lock lost: its session was not confirmed in time")
	})
}

// The goroutine that handles a reply may wait for the mutex while the deadline passes and another
// goroutine sees the loss. The test uses real time, because a fake clock stops while a goroutine
// waits for a mutex.
func TestSession_validityEndsOnce(t *testing.T) {
	sent := bootclock.Now()
	s := &Session{lease: NewLease(Schedule{Validity: time.Minute, Interval: time.Minute, OverdueAfter: time.Minute},
		sent.Add(50*time.Millisecond-time.Minute), sent)} // with 50 ms left
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
	s.mu.Unlock() // another goroutine may have seen the loss by now
	<-handled
	if s.Valid() {
		t.Error("the session became valid again after its deadline")
	}
}

// Timers stop while the machine is suspended. A deadline that passed meanwhile is noticed within a
// second after resuming.
func TestSession_noticesLossAfterSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openFor(t, memstore.New(), time.Hour, Callbacks{})
		time.Sleep(90*time.Second + 500*time.Millisecond) // between two readings of the clock, whether they are a second or a minute apart
		bootclock.PretendSuspend(time.Hour)
		if s.Valid() {
			t.Error("Valid after the deadline: got true")
		}
		resumed := time.Now()
		<-s.Context().Done()
		if took := time.Since(resumed); took > time.Second {
			t.Errorf("the loss was noticed after %v, want 1s at most", took)
		}
	})
}

// State returns the current state.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease.Advance(bootclock.Now())
	return s.lease.State()
}
