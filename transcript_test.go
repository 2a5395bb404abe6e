package stile_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/transcript"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// TestTranscript compares the requests to a store, its replies and the results of the calls with
// testdata/transcript.txt. A request or reply takes 1 ms and a notification 2 or 3 ms, so that events
// of two clients do not have the same time.
func TestTranscript(t *testing.T) {
	var text transcript.Transcript
	script := func(title, about string, run func(t *testing.T, w *testEnv, s *transcriptEnv)) {
		scenario(t, func(t *testing.T, w *testEnv) {
			text.Scene(title, about)
			w.store.SetFaults(latency)
			s := &transcriptEnv{w: w, start: time.Now()}
			run(t, w, s)
			for _, e := range s.sorted() {
				text.Line("%7.3f  %s  %s", e.at.Seconds(), e.who, e.what)
			}
		})
	}
	script("A free lock", `
Times are in seconds. "->" is a request to the store, "<-" a reply or a notification.
One request takes the lock and one releases it. The session is renewed every 3 s.
When a hold is one second old, the time of its acquisition is published for others to read.`,
		func(t *testing.T, w *testEnv, s *transcriptEnv) {
			a := s.client("A")
			hold := s.lock("A", a)
			time.Sleep(4 * time.Second)
			s.release("A", hold)
		})
	script("A wait, and the hand-over", `
B is notified that one entry is ahead, and sends no further requests. The store notifies it of its admission.
C is in the same process as B: it waits there, behind B, and has no entry in the store until B has released.`,
		func(t *testing.T, w *testEnv, s *transcriptEnv) {
			a, b := s.client("A"), s.client("B")
			hold := s.lock("A", a)
			next := s.goLock("B", b)
			time.Sleep(100 * time.Millisecond)
			last := s.goLock("C", b)
			time.Sleep(100 * time.Millisecond)
			s.release("A", hold)
			hold = <-next
			time.Sleep(100 * time.Millisecond)
			s.release("B", hold)
			s.release("C", <-last)
		})
	script("A loss", `
A is cut off: its requests are dropped. Its last confirmed renewal was sent at 3.000, so its hold is valid
until 12.000, 9/10 of the TTL later, and A's own clock reports the loss. The store received that renewal
at 3.001 and ends the session at 13.001. Only then does B get the lock.`,
		func(t *testing.T, w *testEnv, s *transcriptEnv) {
			a, b := s.client("A"), s.client("B")
			hold := s.lock("A", a)
			time.Sleep(3500 * time.Millisecond)
			next := s.goLock("B", b)
			time.Sleep(10 * time.Millisecond)
			s.record("A", "is cut off")
			cut := w.session("A")
			w.store.SetFaults(func(c memstore.Call) memstore.Fault {
				f := latency(c)
				f.Drop = c.Session == cut
				return f
			})
			<-hold.Lost()
			s.record("A", "the hold's context ends: %s", reason(hold.Err()))
			s.release("B", <-next)
			s.release("A", hold)
		})
	text.Compare(t, "testdata/transcript.txt")
}

// latency delays messages. Notifications that are sent to two sessions at the same time arrive one
// after the other.
func latency(c memstore.Call) memstore.Fault {
	switch {
	case c.Op == memstore.Notify && c.Session == "m1":
		return memstore.Fault{Delay: 2 * time.Millisecond}
	case c.Op == memstore.Notify:
		return memstore.Fault{Delay: 3 * time.Millisecond}
	}
	return memstore.Fault{Delay: time.Millisecond, ReplyDelay: time.Millisecond}
}

// A transcriptEnv records the calls and requests of its clients.
type transcriptEnv struct {
	w     *testEnv
	start time.Time

	mu     sync.Mutex
	events []transcriptEvent
}

type transcriptEvent struct {
	at        time.Duration
	who, what string
}

func (s *transcriptEnv) record(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, transcriptEvent{time.Since(s.start), who, fmt.Sprintf(format, args...)})
}

// sorted returns the events in their order. At a hand-over within a client several goroutines act at the
// same time: then the requests come last.
func (s *transcriptEnv) sorted() []transcriptEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := func(e transcriptEvent) int {
		if strings.Contains(e.what, "->") {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(s.events, func(a, b transcriptEvent) int {
		return cmp.Or(cmp.Compare(a.at, b.at), requests(a)-requests(b))
	})
	return s.events
}

func (s *transcriptEnv) client(name string) *stile.Client {
	s.w.t.Helper()
	c, err := stile.New(&recordedStore{s.w.store, s, name}, &stile.Options{TTL: ttl, Owner: stile.Owner{Command: name}})
	if err != nil {
		s.w.t.Fatal(err)
	}
	s.w.t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			s.w.t.Error(err)
		}
	})
	return c
}

func (s *transcriptEnv) lock(who string, c *stile.Client) *stile.Hold {
	s.record(who, "Lock")
	hold, err := c.Mutex("deploy").Lock(context.Background())
	if err != nil {
		s.w.t.Error(err)
		return nil
	}
	s.record(who, "Lock returns: token %d, valid until %.3f", hold.Token(), hold.Deadline().Sub(s.start).Seconds())
	return hold
}

func (s *transcriptEnv) goLock(who string, c *stile.Client) <-chan *stile.Hold {
	ch := make(chan *stile.Hold, 1)
	go func() { ch <- s.lock(who, c) }()
	return ch
}

func (s *transcriptEnv) release(who string, hold *stile.Hold) {
	s.record(who, "Release")
	if err := hold.Release(context.Background()); err != nil {
		s.record(who, "Release returns an error: %s", reason(err))
		return
	}
	s.record(who, "Release returns")
}

// reason returns the reason of a loss without the store's error text.
func reason(err error) string {
	lost, ok := errors.AsType[*stile.LostError](err)
	if !ok {
		return err.Error()
	}
	return "lost: " + lost.Reason.String()
}

// A recordedStore records requests, replies and notifications, except the closing of sessions.
type recordedStore struct {
	store.Store
	transcriptEnv *transcriptEnv
	who           string
}

func (s *recordedStore) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	s.transcriptEnv.record(s.who, "  -> open a session, with a TTL of %v", opts.TTL)
	inner, err := s.Store.Open(ctx, opts)
	if err != nil {
		s.transcriptEnv.record(s.who, "  <- %v", err)
		return nil, err
	}
	s.transcriptEnv.record(s.who, "  <- a session")
	return &recordedSession{inner, s.transcriptEnv, s.who}, nil
}

type recordedSession struct {
	store.Session
	transcriptEnv *transcriptEnv
	who           string
}

func (s *recordedSession) Confirm(ctx context.Context) error {
	s.transcriptEnv.record(s.who, "  -> renew the session")
	err := s.Session.Confirm(ctx)
	if err == nil {
		s.transcriptEnv.record(s.who, "  <- renewed")
	}
	return err // no reply to record after an error
}

func (s *recordedSession) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	s.transcriptEnv.record(s.who, "  -> enter the line of %q, %v", req.Name, req.Mode)
	notify := req.Notify
	req.Notify = func(st store.Standing) {
		switch st.State {
		case store.Waiting:
			s.transcriptEnv.record(s.who, "  <- waiting, %d ahead", st.Ahead)
		case store.Admitted:
			s.transcriptEnv.record(s.who, "  <- admitted, order %d", st.Order)
		case store.Gone:
			s.transcriptEnv.record(s.who, "  <- gone: %v", st.Cause)
		}
		notify(st)
	}
	inner, err := s.Session.Enqueue(ctx, req)
	if err != nil {
		s.transcriptEnv.record(s.who, "  <- %v", err)
		return nil, err
	}
	return &recordedTicket{inner, s.transcriptEnv, s.who}, nil
}

type recordedTicket struct {
	store.Ticket
	transcriptEnv *transcriptEnv
	who           string
}

func (t *recordedTicket) Withdraw(ctx context.Context) error {
	t.transcriptEnv.record(t.who, "  -> withdraw the entry")
	err := t.Ticket.Withdraw(ctx)
	if err != nil {
		t.transcriptEnv.record(t.who, "  <- %v", err)
		return err
	}
	t.transcriptEnv.record(t.who, "  <- withdrawn")
	return nil
}

func (t *recordedTicket) Extensions() store.Extensions {
	ext := t.Ticket.Extensions()
	setOwner := ext.SetOwner
	ext.SetOwner = func(ctx context.Context, owner store.Owner) error {
		t.transcriptEnv.record(t.who, "  -> set the owner: lock obtained at %.3f", owner.Obtained.Sub(t.transcriptEnv.start).Seconds())
		err := setOwner(ctx, owner)
		if err != nil {
			t.transcriptEnv.record(t.who, "  <- %v", err)
			return err
		}
		t.transcriptEnv.record(t.who, "  <- owner set")
		return nil
	}
	return ext
}
