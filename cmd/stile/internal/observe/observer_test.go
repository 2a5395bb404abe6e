package observe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

const ttl = 15 * time.Second

// world is a store with an observer, and a fake clock.
type world struct {
	t     *testing.T
	st    *memstore.Store
	exact bool // the store reports each state of a line; otherwise the observer reads lines that may have changed
	o     *observe.Observer
	ttl   time.Duration // of the sessions of new clients
	hooks observe.Hooks // of the observer
}

// observed calls run with a store that reports each state of a line, and with one that does not. The observer is
// started by start.
func observed(t *testing.T, run func(t *testing.T, w *world)) {
	t.Helper()
	for name, exact := range map[string]bool{"exact": true, "read": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{t: t, st: memstore.New(), exact: exact, ttl: ttl}
				run(t, w)
			})
		})
	}
}

// withoutFollow is a store that only reports the names of lines that may have changed.
type withoutFollow struct{ store.Store }

func (s withoutFollow) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	caps.Follow = nil
	return caps
}

func (w *world) client(command string) *stile.Client {
	w.t.Helper()
	var st store.Store = w.st
	if !w.exact {
		st = withoutFollow{w.st}
	}
	c, err := stile.New(st, &stile.Options{TTL: w.ttl, Owner: stile.Owner{Command: command}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (w *world) start() {
	w.t.Helper()
	w.observe(w.client("observer"))
}

// observe starts the observer with a client.
func (w *world) observe(client *stile.Client) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.o = observe.New(client)
	w.o.SetHooks(w.hooks)
	done := make(chan error, 1)
	go func() { done <- w.o.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: got %v, want nil", err)
		}
	})
	synctest.Wait()
}

func (w *world) lock(c *stile.Client, name string) *stile.Hold {
	w.t.Helper()
	h, err := c.Mutex(name).Lock(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

func (w *world) release(h *stile.Hold) {
	w.t.Helper()
	if err := h.Release(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// awaitStatus waits until the status is an error or a success, or ctx ends.
func (w *world) awaitStatus(ctx context.Context, failed bool) observe.Status {
	for {
		now := w.o.Status()
		if (now.Err != nil) == failed || ctx.Err() != nil {
			return now
		}
		w.o.WaitStatus(ctx, now)
	}
}

// vanish makes a client's process vanish: the store gets no more requests from it.
func (w *world) vanish(session string) {
	w.st.SetFaults(func(c memstore.Call) memstore.Fault {
		return memstore.Fault{Drop: c.Session == session}
	})
	w.t.Cleanup(func() { w.st.SetFaults(nil) }) // so that the client can be closed
}

// told returns the events of a name as text, such as "ann waits, ann holds after 1s, ann ended after 2s (lost)".
func (w *world) told(name string) string {
	var all []string
	for _, e := range w.o.History(name) {
		text := e.Entry.Owner.Command + " " + e.What
		if d := e.Waited + e.Held; d > 0 {
			text += " after " + d.Round(time.Second).String()
		}
		if e.Cause != "" {
			text += " (" + e.Cause + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (w *world) wantTold(name, want string) {
	w.t.Helper()
	if got := w.told(name); got != want {
		w.t.Errorf("history of %q:\n got %s\nwant %s", name, got, want)
	}
}

func TestObserver_prefix(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		w.lock(ann, "a/1")
		w.lock(ann, "b/1")
		o := observe.NewWithPrefix(w.client("observer"), "a/")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		synctest.Wait()
		w.lock(ann, "a/2")
		w.lock(ann, "b/2")
		time.Sleep(20 * time.Second) // all lines are read again
		lines, _ := o.Lines("", "", 10)
		var names []string
		for _, l := range lines {
			names = append(names, l.Name)
		}
		if got := strings.Join(names, " "); got != "a/1 a/2" {
			t.Errorf("got the lines %s, want a/1 a/2", got)
		}
		cancel()
		<-done
	})
}

func TestObserver_tellsWhatHappened(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob := w.client("ann"), w.client("bob")
		w.start()
		time.Sleep(time.Second)
		h := w.lock(ann, "a")
		time.Sleep(5 * time.Second)
		got := make(chan *stile.Hold)
		go func() { got <- w.lock(bob, "a") }()
		time.Sleep(7 * time.Second)
		w.release(h)
		h = <-got
		time.Sleep(3 * time.Second)
		w.release(h)
		time.Sleep(time.Second)
		w.wantTold("a", "ann holds, bob waits, ann ended after 12s (released), bob holds after 7s, bob ended after 3s (released)")
		if l := w.o.Line("a"); !observe.Empty(l) {
			t.Errorf("line: got %+v, want none", l)
		}
	})
}

// What was there before the observer began has no known beginning.
func TestObserver_firstReadingTellsNothing(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		h := w.lock(ann, "a")
		time.Sleep(5 * time.Second)
		w.start()
		time.Sleep(time.Second)
		w.wantTold("a", "")
		if l := w.o.Line("a"); len(l.Holders) != 1 {
			t.Errorf("line: got %+v, want a holder", l)
		}
		w.release(h)
		time.Sleep(time.Second)
		w.wantTold("a", "ann ended (released)")
	})
}

// A holder whose process vanishes is lost when its session ends, however long it had held before.
func TestObserver_tellsLossFromRelease(t *testing.T) {
	for held := range 20 {
		observed(t, func(t *testing.T, w *world) {
			ann, bob := w.client("ann"), w.client("bob")
			w.start()
			w.lock(ann, "lost")
			h := w.lock(bob, "released")
			time.Sleep(time.Minute + time.Duration(held)*time.Second)
			w.vanish(w.o.Line("lost").Holders[0].Session)
			time.Sleep(ttl - time.Second)
			w.release(h)
			time.Sleep(10 * time.Second)
			for name, cause := range map[string]string{"lost": observe.Lost, "released": observe.Released} {
				events := w.o.History(name)
				if len(events) != 2 || events[1].What != observe.Ended || events[1].Cause != cause {
					t.Errorf("after %d s: history of %q: got %s, want an end with the cause %q", 60+held, name, w.told(name), cause)
				}
			}
		})
	}
}

// The leases of a session's lines are read together, so many locks of one client cost no more than one.
func TestObserver_readsEachSessionOnce(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		for i := range 1000 {
			w.lock(ann, fmt.Sprintf("%04d", i))
		}
		var read atomic.Int64
		w.hooks.Reading = func(r observe.Reading) {
			if r.What == observe.ReadLease {
				read.Add(1)
			}
		}
		w.start()
		time.Sleep(time.Minute)
		if n := read.Load(); n < 4 || n > 60 { // at most one in each second
			t.Errorf("got %d readings of leases in a minute, want 4 to 60", n)
		}
		w.vanish(w.o.Line("0000").Holders[0].Session)
		time.Sleep(2 * ttl)
		for _, name := range []string{"0000", "0999"} {
			w.wantTold(name, "ann ended (lost)")
		}
	})
}

// With more holders than the budget of readings allows, a cause may stay unknown, but it is never wrong.
func TestObserver_tellsNoWrongCauseBeyondItsBudget(t *testing.T) {
	for _, tt := range []struct {
		ttl      time.Duration
		released int // at least so many ends are explained as releases
		lost     int // and so many as losses, of ten
	}{
		{15 * time.Second, 900, 10},
		{3 * time.Second, 1, 0}, // sessions are renewed several times between two readings
	} {
		t.Run(tt.ttl.String(), func(t *testing.T) { tellsNoWrongCause(t, tt.ttl, tt.released, tt.lost) })
	}
}

func tellsNoWrongCause(t *testing.T, ttl time.Duration, released, lost int) {
	observed(t, func(t *testing.T, w *world) {
		const n = 1000
		w.ttl = ttl
		holds := make(map[string]*stile.Hold)
		for i := range n / 10 {
			c := w.client("ann")
			for j := range 10 {
				name := fmt.Sprintf("%d/%d", i, j)
				holds[name] = w.lock(c, name)
			}
		}
		w.start()
		time.Sleep(time.Minute)
		gone := w.o.Line("7/0").Holders[0].Session
		w.vanish(gone)
		for name, h := range holds {
			if !strings.HasPrefix(name, "7/") {
				w.release(h)
				time.Sleep(20 * time.Millisecond)
			}
		}
		time.Sleep(time.Minute)
		causes := make(map[string]int)
		for name := range holds {
			want := observe.Released
			if strings.HasPrefix(name, "7/") {
				want = observe.Lost
			}
			events := w.o.History(name)
			if len(events) != 1 {
				t.Fatalf("history of %q: got %s, want one end", name, w.told(name))
			}
			if cause := events[0].Cause; cause != want && cause != "" {
				t.Errorf("history of %q: got the cause %q, want %q or none", name, cause, want)
			} else {
				causes[cause]++
			}
		}
		if causes[observe.Released] < released || causes[observe.Lost] < lost {
			t.Errorf("got the causes %v, want %d releases and %d losses at least", causes, released, lost)
		}
	})
}

func TestObserver_tellsBreaksOfThisServer(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, eve := w.client("ann"), w.client("eve")
		w.start()
		h := w.lock(ann, "a")
		time.Sleep(time.Second)
		w.o.Broken("a", h.Token())
		if _, err := eve.Break(t.Context(), "a", h.Token()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.wantTold("a", "ann holds, ann ended after 1s (broken)")
	})
}

func TestObserver_showsTimeLeft(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		w.start()
		w.lock(w.client("ann"), "a")
		time.Sleep(time.Second)
		session := w.o.Line("a").Holders[0].Session
		for range 100 {
			time.Sleep(300 * time.Millisecond)
			if left := w.o.Line("a").Holders[0].Remaining; left <= 0 || left > ttl {
				t.Fatalf("time left of a living session: got %v", left)
			}
		}
		// With somebody who looks, the time left is never far from the truth.
		for range 100 {
			w.o.Look([]string{"a"})
			time.Sleep(300 * time.Millisecond)
			if left := w.o.Line("a").Holders[0].Remaining; left < ttl/2 {
				t.Fatalf("time left of a living session that somebody looks at: got %v, want more than half", left)
			}
		}
		w.vanish(session)
		time.Sleep(ttl * 3 / 4)
		if left := w.o.Line("a").Holders[0].Remaining; left <= 0 || left > ttl/2 {
			t.Errorf("time left of a vanished session: got %v, want less than half of the TTL", left)
		}
	})
}

func TestObserver_pages(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		for _, name := range []string{"a", "a/1", "a/2", "a/3", "b"} {
			w.lock(ann, name)
		}
		w.start()
		for _, tt := range []struct {
			prefix, after string
			limit         int
			want          string
			more          bool
		}{
			{"", "", 10, "a a/1 a/2 a/3 b", false},
			{"a/", "", 2, "a/1 a/2", true},
			{"a/", "a/2", 2, "a/3", false},
			{"a/", "a/", 3, "a/1 a/2 a/3", false},
			{"a/", "z", 3, "", false},
			{"", "a/15", 2, "a/2 a/3", true},
			{"c", "", 2, "", false},
		} {
			lines, more := w.o.Lines(tt.prefix, tt.after, tt.limit)
			var names []string
			for _, l := range lines {
				names = append(names, l.Name)
			}
			if got := strings.Join(names, " "); got != tt.want || more != tt.more {
				t.Errorf("%+v: got %q, %t", tt, got, more)
			}
		}
	})
}

// A reader that has seen all updates up to a number gets what is missing, whenever it asks.
func TestObserver_updates(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		w.start()
		_, from, known := w.o.Updates(0)
		if !known {
			t.Fatal("the updates since the first reading: not known")
		}
		h := w.lock(ann, "a")
		time.Sleep(time.Second)
		w.lock(ann, "b")
		time.Sleep(time.Second)
		w.release(h)
		time.Sleep(3 * time.Second) // the owners have been published too
		updates, last, known := w.o.Updates(from)
		if len(updates) != 2 || !known || last <= from {
			t.Fatalf("got %+v, %d, %t, want two updates", updates, last, known)
		}
		if u := updates[0]; u.Line.Name != "a" || !observe.Empty(u.Line) || len(u.Events) != 2 {
			t.Errorf("first update: got %+v, want the empty line of a with two events", u)
		}
		if u := updates[1]; u.Line.Name != "b" || len(u.Line.Holders) != 1 || len(u.Events) != 1 {
			t.Errorf("second update: got %+v, want the held line of b with one event", u)
		}
		if updates, _, known := w.o.Updates(last); len(updates) > 0 || !known {
			t.Errorf("after the last one: got %+v, %t, want none", updates, known)
		}
		if _, _, known := w.o.Updates(last + 1); known {
			t.Error("updates after a number that was not given out: got known, want unknown")
		}
	})
}

func TestObserver_waitEndsWithUpdate(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		w.start()
		time.Sleep(time.Second)
		_, last, _ := w.o.Updates(0)
		seen := w.o.Status()
		var ended atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			go func() {
				w.o.Wait(ctx, last, seen)
				ended.Add(1)
			}()
		}
		time.Sleep(time.Minute)
		if n := ended.Load(); n > 0 {
			t.Errorf("%d waits have ended without an update", n)
		}
		w.lock(w.client("ann"), "a")
		time.Sleep(time.Second)
		if n := ended.Load(); n != 3 {
			t.Errorf("after an update: got %d waits ended, want 3", n)
		}
		cancel()
	})
}

// An outage of the store is told, and what happened meanwhile is told after it.
func TestObserver_outage(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		w.start()
		time.Sleep(time.Second)
		seen := w.o.Status()
		if !seen.Read || seen.Err != nil {
			t.Fatalf("status: got %+v, want a success", seen)
		}
		down := errors.New("the store is down")
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read {
				return memstore.Fault{Err: down}
			}
			return memstore.Fault{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w.lock(ann, "a")
		s := w.awaitStatus(ctx, true)
		if !s.Read || !errors.Is(s.Err, down) || time.Since(s.Since) > 100*time.Millisecond {
			t.Errorf("status in an outage: got %+v, want the error since now", s)
		}
		w.st.SetFaults(nil)
		if s := w.awaitStatus(ctx, false); s.Err != nil {
			t.Errorf("status after the outage: got %+v, want a success", s)
		}
		w.wantTold("a", "ann holds")
	})
}

// If a reading of all lines takes long, the next is far away. The readings of leases notice an outage before.
func TestObserver_outageBetweenReadings(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		w.lock(w.client("ann"), "a")
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read {
				return memstore.Fault{ReplyDelay: 100 * time.Millisecond}
			}
			return memstore.Fault{}
		})
		w.start()
		time.Sleep(10 * time.Second)
		if s := w.o.Status(); !s.Read || s.Err != nil {
			t.Fatalf("status: got %+v, want a success", s)
		}
		for _, silent := range []memstore.Fault{{Err: errors.New("the store is down")}, {LoseReply: true}} {
			w.st.SetFaults(func(c memstore.Call) memstore.Fault {
				if c.Op == memstore.Read {
					return silent
				}
				return memstore.Fault{}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			w.o.Look([]string{"a"})
			if s := w.awaitStatus(ctx, true); s.Err == nil {
				t.Errorf("status in an outage with %+v: got %+v, want its error", silent, s)
			}
			w.st.SetFaults(nil)
			w.o.Look([]string{"a"})
			if s := w.awaitStatus(ctx, false); s.Err != nil {
				t.Errorf("status after the outage: got %+v, want a success", s)
			}
		}
	})
}

// A failed reading of a lease counts until a later reading succeeds, which may be one of the watch.
func TestObserver_outageOfALineThatEnded(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		h := w.lock(ann, "a")
		w.start()
		time.Sleep(time.Second)
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read {
				return memstore.Fault{Err: errors.New("the store is down")}
			}
			return memstore.Fault{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w.o.Look([]string{"a"})
		if s := w.awaitStatus(ctx, true); s.Err == nil {
			t.Fatalf("status in an outage: got %+v, want its error", s)
		}
		w.st.SetFaults(nil)
		w.release(h)
		if s := w.awaitStatus(ctx, false); s.Err != nil {
			t.Errorf("status after the outage: got %+v, want a success", s)
		}
	})
}

func TestObserver_forgetsAfterAnHour(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		w.start()
		for _, name := range []string{"a", "b"} {
			h := w.lock(ann, name)
			time.Sleep(time.Second)
			w.release(h)
			time.Sleep(40 * time.Minute)
		}
		w.lock(ann, "c") // forgetting is due to a reading
		time.Sleep(time.Second)
		w.wantTold("a", "")
		if got := w.told("b"); got == "" {
			t.Error("the history of the last hour is forgotten")
		}
		if _, _, known := w.o.Updates(0); known {
			t.Error("updates of which some are forgotten: got known, want unknown")
		}
	})
}

// A store that refuses ends Run. The observer can run again, and tells what it has missed.
func TestObserver_runsAgain(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		o := observe.New(w.client("observer"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		synctest.Wait()
		boot := o.Boot()
		h := w.lock(ann, "a")
		time.Sleep(time.Second)
		cancel()
		<-done
		before := o.Last()
		w.release(h)
		h = w.lock(ann, "b")
		ctx, cancel = context.WithCancel(t.Context())
		go func() { done <- o.Run(ctx) }()
		time.Sleep(time.Second)
		w.o = o
		w.wantTold("a", "ann holds, ann ended after 1s (released)")
		w.wantTold("b", "ann holds")
		if updates, last, known := o.Updates(before); !known || len(updates) != 2 || last < before+2 || o.Boot() != boot {
			t.Errorf("updates after %d: got %v, the last one %d, known %v, boot %s; want those of a and b, known, %s",
				before, updates, last, known, o.Boot(), boot)
		}
		w.release(h)
		cancel()
		<-done
	})
}

// lateStore passes the changes of lines on late.
type lateStore struct{ store.Store }

func (s lateStore) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	follow := caps.Follow
	caps.Follow = func(ctx context.Context, prefix string, changed func(store.Changes)) error {
		return follow(ctx, prefix, func(c store.Changes) {
			time.Sleep(50 * time.Millisecond)
			changed(c)
		})
	}
	return caps
}

// A store that reports each state of a line also says when, so durations are exact even if the observer is late.
func TestObserver_measuresUntilTheChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, st: memstore.New(), exact: true, ttl: ttl}
		client, err := stile.New(lateStore{w.st}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.observe(client)
		time.Sleep(time.Second)
		h := w.lock(w.client("ann"), "a")
		time.Sleep(10 * time.Millisecond)
		w.release(h)
		time.Sleep(time.Second)
		if events := w.o.History("a"); len(events) != 2 || events[1].Held != 10*time.Millisecond {
			t.Errorf("got %+v, want a hold of 10ms", events)
		}
	})
}
