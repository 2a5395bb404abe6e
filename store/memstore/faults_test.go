package memstore_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

const ttl = time.Minute

var errFault = errors.New("injected fault")

func TestFault_delay(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		time.Sleep(ttl / 2)
		on(st, memstore.Confirm, memstore.Fault{Delay: time.Second})
		began := time.Now()
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v, want 1s", took)
		}
		// The TTL counts from the arrival.
		time.Sleep(ttl - time.Nanosecond)
		wantAlive(t, st, se)
		time.Sleep(time.Nanosecond)
		wantEnded(t, st, se)
	})
}

// A delayed request is not carried out if the caller gives up first.
func TestFault_delayLongerThanContext(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		on(st, memstore.Enqueue, memstore.Fault{Delay: time.Second})
		giveUp(t, time.Second/2, func(ctx context.Context) error {
			_, err := se.Enqueue(ctx, store.Request{Name: "a"})
			return err
		})
		time.Sleep(time.Second)
		wantLine(t, st, "a")
	})
}

func TestFault_drop(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		on(st, memstore.Confirm, memstore.Fault{Drop: true})
		time.Sleep(ttl / 2)
		giveUp(t, time.Second, se.Confirm)
		time.Sleep(ttl/2 - time.Second)
		wantEnded(t, st, se)
	})
}

func TestFault_replyDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		time.Sleep(ttl / 2)
		on(st, memstore.Confirm, memstore.Fault{ReplyDelay: time.Second})
		if err := se.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A second of the TTL has passed when the reply arrives.
		time.Sleep(ttl - time.Second - time.Nanosecond)
		wantAlive(t, st, se)
		time.Sleep(time.Nanosecond)
		wantEnded(t, st, se)
	})
}

func TestFault_loseReply(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		time.Sleep(ttl / 2)
		on(st, memstore.Confirm, memstore.Fault{LoseReply: true})
		giveUp(t, time.Second, se.Confirm)
		time.Sleep(ttl - time.Second - time.Nanosecond)
		wantAlive(t, st, se)
	})
}

func TestFault_loseReplyUndoesEnqueue(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{
		"lost":    {LoseReply: true},
		"delayed": {ReplyDelay: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, st *memstore.Store) {
				se := open(t, st, nil)
				on(st, memstore.Enqueue, fault)
				var heard standings
				var asked sync.WaitGroup
				asked.Go(func() {
					giveUp(t, time.Second, func(ctx context.Context) error {
						_, err := se.Enqueue(ctx, store.Request{Name: "a", Notify: heard.hear})
						return err
					})
				})
				wantLine(t, st, "a", se) // it was carried out
				heard.want(t, store.Admitted)
				asked.Wait()
				wantLine(t, st, "a")
				heard.want(t, store.Admitted) // no further call: the caller gets an error instead
			})
		})
	}
}

func TestFault_loseReplyUndoesOpen(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		on(st, memstore.Open, memstore.Fault{LoseReply: true})
		giveUp(t, time.Second, func(ctx context.Context) error {
			_, err := st.Open(ctx, store.SessionOptions{TTL: ttl})
			return err
		})
		if ids := st.Sessions(); len(ids) != 0 {
			t.Errorf("got sessions %q, want none", ids)
		}
	})
}

func TestFault_err(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		on(st, memstore.Enqueue, memstore.Fault{Err: errFault})
		if _, err := se.Enqueue(t.Context(), store.Request{Name: "a"}); !errors.Is(err, errFault) {
			t.Errorf("got error %v, want the injected one", err)
		}
		wantLine(t, st, "a")
	})
}

func TestFault_errWithLoseReply(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		time.Sleep(ttl / 2)
		on(st, memstore.Confirm, memstore.Fault{Err: errFault, LoseReply: true})
		if err := se.Confirm(t.Context()); !errors.Is(err, errFault) {
			t.Errorf("got error %v, want the injected one", err)
		}
		time.Sleep(ttl - time.Nanosecond)
		wantAlive(t, st, se)
	})
}

func TestWithdraw_retriesInBackground(t *testing.T) {
	for name, fault := range map[string]memstore.Fault{
		"dropped": {Drop: true},
		"refused": {Err: errFault},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, st *memstore.Store) {
				se := open(t, st, nil)
				ticket := enqueue(t, se, "a", nil)
				on(st, memstore.Withdraw, fault)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := ticket.Withdraw(ctx); err == nil || errors.Is(err, store.ErrGone) {
					t.Errorf("Withdraw: got %v, want another error than ErrGone", err)
				}
				time.Sleep(10 * time.Second)
				wantLine(t, st, "a", se)
				st.SetFaults(nil)
				time.Sleep(2 * time.Second)
				wantLine(t, st, "a")
			})
		})
	}
}

func TestWithdraw_retriesEndWithSession(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		ticket := enqueue(t, open(t, st, nil), "a", nil)
		on(st, memstore.Withdraw, memstore.Fault{Drop: true})
		giveUp(t, time.Second, ticket.Withdraw)
		time.Sleep(ttl)
		wantLine(t, st, "a")
	}) // the bubble would not end if a retry were still running
}

func TestWithdraw_noNotificationsMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		first := enqueue(t, open(t, st, nil), "a", nil)
		var heard standings
		second := enqueue(t, open(t, st, nil), "a", heard.hear)
		on(st, memstore.Withdraw, memstore.Fault{Delay: time.Second})
		go func() { _ = second.Withdraw(context.Background()) }()
		synctest.Wait()
		st.SetFaults(nil)
		if err := first.Withdraw(t.Context()); err != nil { // the second entry could be admitted now
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		heard.want(t, store.Waiting)
	})
}

// A delayed notification delivers the standing at the time of delivery.
func TestFault_delayedNotifyIsCurrent(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		first := enqueue(t, open(t, st, nil), "a", nil)
		second := enqueue(t, open(t, st, nil), "a", nil)
		on(st, memstore.Notify, memstore.Fault{Delay: time.Second})
		var heard standings
		enqueue(t, open(t, st, nil), "a", heard.hear)
		heard.want(t)
		for _, ticket := range []store.Ticket{first, second} {
			if err := ticket.Withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second - time.Nanosecond)
		heard.want(t)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		heard.want(t, store.Admitted)
	})
}

func TestSetFaults_receivesCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		var calls []memstore.Call
		st.SetFaults(func(c memstore.Call) memstore.Fault {
			calls = append(calls, c)
			return memstore.Fault{}
		})
		ctx := t.Context()
		se := open(t, st, nil)
		id := se.ID()
		ticket := enqueue(t, se, "a", nil)
		_ = se.Confirm(ctx)
		_, _ = st.Line(ctx, "a")
		_, _ = store.CollectLines(st.Lines(ctx, "b"))
		_, _ = st.Break(ctx, "c", 1)
		_ = ticket.Withdraw(ctx)
		_ = se.Close(ctx)
		want := []memstore.Call{
			{Op: memstore.Open},
			{Op: memstore.Enqueue, Session: id, Name: "a"},
			{Op: memstore.Notify, Session: id, Name: "a"},
			{Op: memstore.Confirm, Session: id},
			{Op: memstore.Read, Name: "a"},
			{Op: memstore.Read, Name: "b"},
			{Op: memstore.Break, Name: "c"},
			{Op: memstore.Withdraw, Session: id, Name: "a"},
			{Op: memstore.Close, Session: id},
		}
		if !slices.Equal(calls, want) {
			t.Errorf("got calls\n%+v, want\n%+v", calls, want)
		}
	})
}

func TestExpire_sessionNotNotified(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, func(err error) { t.Errorf("Lost was called: %v", err) })
		other := open(t, st, nil)
		var heard, next standings
		enqueue(t, se, "a", heard.hear)
		enqueue(t, other, "a", next.hear)
		st.Expire(se.ID())
		heard.want(t, store.Admitted, store.Gone)
		next.want(t, store.Waiting, store.Admitted)
		wantLine(t, st, "a", other)
		if err := se.Confirm(t.Context()); !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Confirm returned %v, want an error matching ErrSessionLost", err)
		}
		st.Expire(se.ID()) // a session that has ended, and then one that never existed
		st.Expire("nobody")
		wantAlive(t, st, other)
		time.Sleep(ttl)
	})
}

func TestSession_notifiedWhenItExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		lost := make(chan error, 2)
		open(t, st, func(err error) { lost <- err })
		if err := <-lost; !errors.Is(err, store.ErrSessionLost) {
			t.Errorf("Lost was called with %v, want an error matching ErrSessionLost", err)
		}
		time.Sleep(2 * ttl)
		if len(lost) > 0 {
			t.Errorf("Lost was called again: %v", <-lost)
		}
	})
}

func TestClose_droppedSessionExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, func(err error) { t.Errorf("Lost was called after Close: %v", err) })
		enqueue(t, se, "a", nil)
		on(st, memstore.Close, memstore.Fault{Drop: true})
		giveUp(t, time.Second, se.Close)
		wantLine(t, st, "a", se)
		time.Sleep(ttl)
		wantLine(t, st, "a")
		if err := se.Close(t.Context()); err != nil { // no request is sent
			t.Errorf("Close of a session that has expired: %v", err)
		}
	})
}

func TestClose_endsCallsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		ticket := enqueue(t, se, "a", nil)
		st.SetFaults(func(c memstore.Call) memstore.Fault { return memstore.Fault{Drop: c.Op != memstore.Close} })
		ended := map[string]chan error{"Confirm": make(chan error, 1), "Enqueue": make(chan error, 1), "Withdraw": make(chan error, 1)}
		go func() { ended["Confirm"] <- se.Confirm(context.Background()) }()
		go func() { ended["Withdraw"] <- ticket.Withdraw(context.Background()) }()
		go func() {
			_, err := se.Enqueue(context.Background(), store.Request{Name: "b"})
			ended["Enqueue"] <- err
		}()
		synctest.Wait()
		if err := se.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for call, end := range ended {
			if err := <-end; !errors.Is(err, store.ErrSessionLost) {
				t.Errorf("%s returned %v, want an error matching ErrSessionLost", call, err)
			}
		}
		if err := ticket.Withdraw(t.Context()); !errors.Is(err, store.ErrGone) {
			t.Errorf("Withdraw after Close returned %v, want an error matching ErrGone", err)
		}
		// A withdrawal that failed before the entry was gone is retried once in the background.
		time.Sleep(2 * time.Second)
	})
}

func TestSession_entriesGoTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		se := open(t, st, nil)
		enqueue(t, se, "a", nil)
		var heard standings
		if _, err := se.Enqueue(t.Context(), store.Request{Name: "a", Mode: line.Shared, Notify: heard.hear}); err != nil {
			t.Fatal(err)
		}
		st.Expire(se.ID())
		heard.want(t, store.Waiting, store.Gone) // it must not be admitted in between
	})
}

func TestTry_namesBlocker(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		put := func(m line.Mode) store.Session {
			se := open(t, st, nil)
			if _, err := se.Enqueue(t.Context(), store.Request{Name: "a", Mode: m}); err != nil {
				t.Fatal(err)
			}
			return se
		}
		put(line.Shared)
		writer := put(line.Exclusive)
		_, err := open(t, st, nil).Enqueue(t.Context(), store.Request{Name: "a", Mode: line.Shared, Try: true})
		if held, ok := errors.AsType[*store.HeldError](err); !ok || held.Holder.Session != writer.ID() {
			t.Errorf("got error %v, want a HeldError that names the writer's session %s", err, writer.ID())
		}
	})
}

func TestSessions_oldestFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, st *memstore.Store) {
		var want []string
		for range 12 {
			want = append(want, open(t, st, nil).ID())
		}
		st.Expire(want[3])
		want = slices.Delete(want, 3, 4)
		if got := st.Sessions(); !slices.Equal(got, want) {
			t.Errorf("got sessions %q, want %q", got, want)
		}
	})
}

func inBubble(t *testing.T, body func(t *testing.T, st *memstore.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { body(t, memstore.New()) })
}

// on puts a fault on one operation.
func on(st *memstore.Store, op memstore.Op, f memstore.Fault) {
	st.SetFaults(func(c memstore.Call) memstore.Fault {
		if c.Op == op {
			return f
		}
		return memstore.Fault{}
	})
}

// giveUp makes a call that gets no answer, and checks that it ends with its context.
func giveUp(t *testing.T, after time.Duration, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	if took := time.Since(began); took != after || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call took %v and returned %v, want %v and an error matching %v", took, err, after, context.DeadlineExceeded)
	}
}

func open(t *testing.T, st *memstore.Store, lost func(error)) store.Session {
	t.Helper()
	se, err := st.Open(t.Context(), store.SessionOptions{TTL: ttl, Lost: lost})
	if err != nil {
		t.Fatal(err)
	}
	return se
}

func enqueue(t *testing.T, se store.Session, name string, notify func(store.Standing)) store.Ticket {
	t.Helper()
	ticket, err := se.Enqueue(t.Context(), store.Request{Name: name, Notify: notify})
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

func wantAlive(t *testing.T, st *memstore.Store, se store.Session) {
	t.Helper()
	synctest.Wait() // timers that are due have run
	if !slices.Contains(st.Sessions(), se.ID()) {
		t.Fatalf("session %s has ended, want it alive", se.ID())
	}
}

func wantEnded(t *testing.T, st *memstore.Store, se store.Session) {
	t.Helper()
	synctest.Wait()
	if slices.Contains(st.Sessions(), se.ID()) {
		t.Fatalf("session %s is alive, want it ended", se.ID())
	}
}

func wantLine(t *testing.T, st *memstore.Store, name string, sessions ...store.Session) {
	t.Helper()
	synctest.Wait()
	l, err := st.Line(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, e := range l.Entries {
		got = append(got, e.Session)
	}
	for _, se := range sessions {
		want = append(want, se.ID())
	}
	if !slices.Equal(got, want) {
		t.Errorf("lock %q: got entries of sessions %q, want %q", name, got, want)
	}
}

// standings records the states that were delivered for an entry.
type standings struct {
	mu    sync.Mutex
	heard []store.State
}

func (s *standings) hear(st store.Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, st.State)
}

func (s *standings) want(t *testing.T, want ...store.State) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.heard, want) {
		t.Errorf("got standings %v, want %v", s.heard, want)
	}
}
