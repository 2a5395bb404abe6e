package stile_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/transcript"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// What the library asks of a store, and what it makes of the answers: testdata/transcript.txt. Each message takes a
// millisecond, news two or three, so that nothing happens at the same
// time as anything else.
func TestTranscript(t *testing.T) {
	var text transcript.Transcript
	script := func(title, about string, play func(t *testing.T, w *world, s *stage)) {
		scenario(t, func(t *testing.T, w *world) {
			text.Scene(title, about)
			w.store.SetFaults(slow)
			play(t, w, &stage{w: w, text: &text, start: time.Now()})
		})
	}
	script("A free lock", `
The time is in seconds. "->" is what a client asks of the store, "<-" what it hears.
One request takes the lock, one gives it up. A session is renewed every 3 s, whatever it has.
A hold that is older than a second is published, for others to read.`,
		func(t *testing.T, w *world, s *stage) {
			a := s.client("A")
			hold := s.lock("A", a)
			time.Sleep(4 * time.Second)
			s.release("A", hold)
		})
	script("A wait, and the hand-over", `
B is told that it waits for one, and asks nothing more. It hears of its turn from the store.
C is of B's process: it waits there, behind B, and has no entry in the store before B has left.`,
		func(t *testing.T, w *world, s *stage) {
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
A is cut off: what it asks arrives nowhere. Its last renewal that was answered was sent at 3.000, so its
hold is valid until 12.000, 9/10 of the TTL later, and A is told by its own clock. The store, which heard
of A at 3.001, ends the session at 13.001, and only then B gets the lock.`,
		func(t *testing.T, w *world, s *stage) {
			a, b := s.client("A"), s.client("B")
			hold := s.lock("A", a)
			time.Sleep(3500 * time.Millisecond)
			next := s.goLock("B", b)
			time.Sleep(10 * time.Millisecond)
			s.say("A", "is cut off")
			cut := w.session("A")
			w.store.SetFaults(func(c memstore.Call) memstore.Fault {
				f := slow(c)
				f.Drop = c.Session == cut
				return f
			})
			<-hold.Lost()
			s.say("A", "the hold's context ends: %s", reason(hold.Err()))
			s.release("B", <-next)
			s.release("A", hold)
		})
	text.Compare(t, "testdata/transcript.txt")
}

// slow is how long messages take. What is told to two sessions at once arrives at one after the other.
func slow(c memstore.Call) memstore.Fault {
	switch {
	case c.Op == memstore.Notify && c.Session == "m1":
		return memstore.Fault{Delay: 2 * time.Millisecond}
	case c.Op == memstore.Notify:
		return memstore.Fault{Delay: 3 * time.Millisecond}
	}
	return memstore.Fault{Delay: time.Millisecond, ReplyDelay: time.Millisecond}
}

// A stage writes down what the clients on it do.
type stage struct {
	w     *world
	text  *transcript.Transcript
	start time.Time
}

func (s *stage) say(who, format string, args ...any) {
	s.text.Line("%7.3f  %s  %s", time.Since(s.start).Seconds(), who, fmt.Sprintf(format, args...))
}

func (s *stage) client(name string) *stile.Client {
	s.w.t.Helper()
	c, err := stile.New(&spoken{s.w.store, s, name}, &stile.Options{TTL: ttl, Owner: stile.Owner{Command: name}})
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

func (s *stage) lock(who string, c *stile.Client) *stile.Hold {
	s.say(who, "Lock")
	hold, err := c.Mutex("deploy").Lock(context.Background())
	if err != nil {
		s.w.t.Error(err)
		return nil
	}
	s.say(who, "Lock returns: token %d, valid until %.3f", hold.Token(), hold.Deadline().Sub(s.start).Seconds())
	return hold
}

func (s *stage) goLock(who string, c *stile.Client) <-chan *stile.Hold {
	ch := make(chan *stile.Hold, 1)
	go func() { ch <- s.lock(who, c) }()
	return ch
}

func (s *stage) release(who string, hold *stile.Hold) {
	s.say(who, "Release")
	if err := hold.Release(context.Background()); err != nil {
		s.say(who, "Release returns an error: %s", reason(err))
		return
	}
	s.say(who, "Release returns")
}

// reason is why a lock was lost, without the words of the store.
func reason(err error) string {
	lost, ok := errors.AsType[*stile.LostError](err)
	if !ok {
		return err.Error()
	}
	return "lost: " + lost.Reason.String()
}

// spoken is a store that writes down what is asked of it, and what it answers. The ends of sessions are left out.
type spoken struct {
	store.Store
	stage *stage
	who   string
}

func (s *spoken) Open(ctx context.Context, opts store.SessionOptions) (store.Session, error) {
	s.stage.say(s.who, "  -> open a session, with a TTL of %v", opts.TTL)
	inner, err := s.Store.Open(ctx, opts)
	if err != nil {
		s.stage.say(s.who, "  <- %v", err)
		return nil, err
	}
	s.stage.say(s.who, "  <- a session")
	return &spokenSession{inner, s.stage, s.who}, nil
}

type spokenSession struct {
	store.Session
	stage *stage
	who   string
}

func (s *spokenSession) Confirm(ctx context.Context) error {
	s.stage.say(s.who, "  -> renew the session")
	err := s.Session.Confirm(ctx)
	if err == nil {
		s.stage.say(s.who, "  <- renewed")
	}
	return err // if there is one, nothing has come
}

func (s *spokenSession) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	s.stage.say(s.who, "  -> enter the line of %q, %v", req.Name, req.Mode)
	notify := req.Notify
	req.Notify = func(st store.Standing) {
		switch st.State {
		case store.Waiting:
			s.stage.say(s.who, "  <- waiting, %d ahead", st.Ahead)
		case store.Admitted:
			s.stage.say(s.who, "  <- admitted, order %d", st.Order)
		case store.Gone:
			s.stage.say(s.who, "  <- gone: %v", st.Cause)
		}
		notify(st)
	}
	inner, err := s.Session.Enqueue(ctx, req)
	if err != nil {
		s.stage.say(s.who, "  <- %v", err)
		return nil, err
	}
	return &spokenTicket{inner, s.stage, s.who}, nil
}

type spokenTicket struct {
	store.Ticket
	stage *stage
	who   string
}

func (t *spokenTicket) Withdraw(ctx context.Context) error {
	t.stage.say(t.who, "  -> withdraw the entry")
	err := t.Ticket.Withdraw(ctx)
	if err != nil {
		t.stage.say(t.who, "  <- %v", err)
		return err
	}
	t.stage.say(t.who, "  <- it was there, and is out")
	return nil
}

func (t *spokenTicket) Extensions() store.Extensions {
	ext := t.Ticket.Extensions()
	setOwner := ext.SetOwner
	ext.SetOwner = func(ctx context.Context, owner store.Owner) error {
		t.stage.say(t.who, "  -> the entry's owner has had the lock since %.3f", owner.Obtained.Sub(t.stage.start).Seconds())
		err := setOwner(ctx, owner)
		if err != nil {
			t.stage.say(t.who, "  <- %v", err)
			return err
		}
		t.stage.say(t.who, "  <- others can read it")
		return nil
	}
	return ext
}
