package stile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

func commands(entries []stile.Entry) string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Owner.Command)
	}
	return strings.Join(names, " ")
}

func TestLine(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h := lock(t, ann, "a")
		time.Sleep(time.Second)
		wait(t.Context(), t, bob, "a")
		wait(t.Context(), t, cid, "a")
		wait(t.Context(), t, cid, "a") // waits in its process and has no entry

		l, err := cid.Line(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if l.Name != "a" || commands(l.Holders) != "ann" || commands(l.Waiters) != "bob cid" {
			t.Fatalf("Line: got %+v, want the holder ann and the waiters bob and cid", l)
		}
		e := l.Holders[0]
		if e.Token != h.Token() || e.Mode != line.Exclusive || e.Foreign || e.Session != w.session("ann") || e.Remaining != ttl-time.Second {
			t.Errorf("holder: got %+v", e)
		}
		if since := time.Since(e.Owner.Since); since != time.Second {
			t.Errorf("time since the holder joined: got %v, want 1s", since)
		}
		if l.Waiters[0].Token <= e.Token || l.Waiters[1].Token <= l.Waiters[0].Token {
			t.Errorf("tokens do not increase in the line %+v", l)
		}
	})
}

func TestLine_empty(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		l, err := w.client("ann").Line(t.Context(), "a")
		if err != nil || l.Name != "a" || len(l.Holders)+len(l.Waiters)+len(l.Remarks) > 0 {
			t.Errorf("Line: got %+v, %v, want an empty line", l, err)
		}
		text, err := json.Marshal(l)
		if want := `{"name":"a","holders":[],"waiters":[]}`; string(text) != want || err != nil {
			t.Errorf("as JSON: got %s, %v, want %s", text, err, want)
		}
	})
}

func TestLines(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		for _, name := range []string{"b", "a/2", "a/1", "ab"} {
			lock(t, ann, name)
		}
		wait(t.Context(), t, bob, "a/2")
		for prefix, want := range map[string]string{"": "a/1 a/2 ab b", "a": "a/1 a/2 ab", "a/": "a/1 a/2", "c": ""} {
			lines, err := bob.Lines(t.Context(), prefix)
			if err != nil || lines == nil {
				t.Fatalf("Lines(%q): got %v, %v", prefix, lines, err)
			}
			var names []string
			for _, l := range lines {
				names = append(names, l.Name)
				if commands(l.Holders) != "ann" || (commands(l.Waiters) == "bob") != (l.Name == "a/2") {
					t.Errorf("line: got %+v, want the holder ann, and the waiter bob only for a/2", l)
				}
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("Lines(%q): got %q, want %q", prefix, got, want)
			}
		}
	})
}

// The lines are those of Lines. A loop may be left, and an error comes last.
func TestLinesSeq(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		for _, name := range []string{"b", "a/2", "a/1"} {
			lock(t, ann, name)
		}
		seq := ann.LinesSeq(t.Context(), "a/")
		for l, err := range seq {
			if err != nil || l.Name != "a/1" || commands(l.Holders) != "ann" {
				t.Errorf("first: got %+v, %v", l, err)
			}
			break
		}
		var names []string
		for l, err := range seq {
			if err != nil {
				t.Error(err)
			}
			names = append(names, l.Name)
		}
		if got := strings.Join(names, " "); got != "a/1 a/2" {
			t.Errorf("got %q, want a/1 and a/2", got)
		}
		denied := errors.New("permission denied")
		w.faults(memstore.Fault{Err: denied}, on(memstore.Read))
		var errs []error
		for l, err := range seq {
			errs = append(errs, err)
			if l.Name != "" {
				t.Errorf("got line %+v", l)
			}
		}
		if len(errs) != 1 || !errors.Is(errs[0], denied) {
			t.Errorf("got errors %v, want %v once", errs, denied)
		}
	})
}

// Other clients read an owner exactly as its client set it.
func TestLine_showsOwner(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		owner := stile.Owner{
			Host: "web-3", PID: 812, User: "ann", Command: "deploy.sh", Reason: "release 1.2 \"beta\"\n…",
			Labels: map[string]string{"ticket": "OPS-1", "": "empty"},
		}
		ann := w.client("", func(o *stile.Options) { o.Owner = owner })
		bob := w.client("bob")
		h := lock(t, ann, "a")
		_, err := bob.Mutex("a").TryLock(t.Context())
		var held *stile.HeldError
		if !errors.As(err, &held) {
			t.Fatal(err)
		}
		if want := "ann@web-3 pid 812 (deploy.sh)"; !strings.Contains(err.Error(), want) {
			t.Errorf("error: got %q, want %q in it", err, want)
		}
		lines, err := bob.Lines(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, got := range []stile.Owner{h.Owner(), held.Holder.Owner, lines[0].Holders[0].Owner} {
			if !got.Since.Equal(began) {
				t.Errorf("Owner.Since: got %v, want %v", got.Since, began)
			}
			got.Since = time.Time{}
			if !reflect.DeepEqual(got, owner) {
				t.Errorf("owner: got %+v, want %+v", got, owner)
			}
		}
	})
}

func TestBreak(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob, cid := w.client("ann"), w.client("bob"), w.client("cid")
		h := lock(t, ann, "a")
		other := lock(t, ann, "b")
		wt := wait(t.Context(), t, bob, "a")
		e, err := cid.Break(t.Context(), "a", h.Token())
		if err != nil {
			t.Fatal(err)
		}
		if e.Owner.Command != "ann" || e.Token != h.Token() {
			t.Errorf("Break: got %+v, want ann's entry with token %d", e, h.Token())
		}
		expectLost(t, h, stile.LostEvicted)
		wt.expectHoldNow()
		expectHeld(t, other)
	})
}

// Break with the token of a hold that has ended changes nothing: it must not remove a later holder.
func TestBreak_wrongToken(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		old := lock(t, ann, "a")
		release(t, old)
		h := lock(t, ann, "a")
		wt := wait(t.Context(), t, bob, "a")
		for _, token := range []uint64{0, old.Token(), h.Token() + 100<<11, 1<<63 + h.Token(), ^uint64(0)} {
			_, err := bob.Break(t.Context(), "a", token)
			expectError(t, err, stile.ErrGone)
			if err != nil && !strings.Contains(err.Error(), `"a"`) {
				t.Errorf("the error %q lacks the name of the lock", err)
			}
		}
		_, err := bob.Break(t.Context(), "b", h.Token())
		expectError(t, err, stile.ErrGone)
		expectHeld(t, h)
		wt.expectWaiting()
		w.expectLine("a", "ann", "bob")
	})
}

func TestLines_returnsStoreError(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		c := w.client("ann")
		denied := errors.New("permission denied")
		w.faults(memstore.Fault{Err: denied}, on(memstore.Read, memstore.Break))
		_, err := c.Lines(t.Context(), "")
		expectError(t, err, denied)
		_, err = c.Line(t.Context(), "a")
		expectError(t, err, denied)
		_, err = c.Break(t.Context(), "a", 256)
		expectError(t, err, denied)
	})
}

// Programs that use the store without this package can create lines with names that are invalid
// here. These lines are listed, and can be read, watched and broken.
func TestLines_namesOfOtherClients(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		session, err := w.store.Open(t.Context(), store.SessionOptions{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		names := []string{"", "/a", "a\nb", "a/", "b//c", "\xff"}
		for _, name := range names {
			if _, err := session.Enqueue(t.Context(), store.Request{Name: name, Notify: func(store.Standing) {}}); err != nil {
				t.Fatal(err)
			}
		}
		eve := w.client("eve")
		lines, err := eve.Lines(t.Context(), "")
		if err != nil || len(lines) != len(names) {
			t.Fatalf("Lines: got %+v, %v", lines, err)
		}
		for i, l := range lines {
			name := names[i]
			if l.Name != name {
				t.Errorf("name of line %d: got %q, want %q", i, l.Name, name)
			}
			shown, err := eve.Line(t.Context(), name)
			if err != nil || len(shown.Holders) != 1 {
				t.Errorf("Line(%q): got %+v, %v, want one holder", name, shown, err)
			}
			for watched, err := range eve.WatchLine(t.Context(), name) {
				if err != nil || len(watched.Holders) != 1 {
					t.Errorf("WatchLine(%q): got %+v, %v, want one holder", name, watched, err)
				}
				break
			}
			if _, err := eve.Break(t.Context(), name, l.Holders[0].Token); err != nil {
				t.Errorf("Break(%q): %v", name, err)
			}
		}
		if lines, err := eve.Lines(t.Context(), ""); err != nil || len(lines) > 0 {
			t.Errorf("Lines after all entries were broken: got %+v, %v", lines, err)
		}
		if err := session.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// An owner that no client of Stile can have written counts as that of another client. So nothing that keeps owners
// keeps megabytes, whatever others write into the store.
func TestLine_oversizedOwner(t *testing.T) {
	name := strings.Repeat("n", store.MaxNameBytes)
	largest := func() stile.Owner {
		o := stile.Owner{Labels: map[string]string{"k": strings.Repeat("x", stile.MaxOwnerBytes-6)}}
		for range 16 {
			o.Waits = append(o.Waits, store.Wait{Name: name})
			o.Under = append(o.Under, store.Held{Name: name, Token: 1})
		}
		return o
	}
	for what, change := range map[string]func(*stile.Owner){
		"":         func(*stile.Owner) {},
		"reason":   func(o *stile.Owner) { o.Reason = "x" },
		"labels":   func(o *stile.Owner) { o.Labels["l"] = "" },
		"a wait":   func(o *stile.Owner) { o.Waits[15].Name += "n" },
		"waits":    func(o *stile.Owner) { o.Waits = append(o.Waits, store.Wait{}) },
		"an under": func(o *stile.Owner) { o.Under[15].Name += "n" },
		"unders":   func(o *stile.Owner) { o.Under = append(o.Under, store.Held{}) },
	} {
		t.Run(what, func(t *testing.T) {
			st := memstore.New()
			se, err := st.Open(t.Context(), store.SessionOptions{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = se.Close(context.Background()) }()
			owner := largest()
			change(&owner)
			_, err = se.Enqueue(t.Context(), store.Request{Name: "a", Mode: line.Exclusive, Owner: owner, Notify: func(store.Standing) {}})
			if err != nil {
				t.Fatal(err)
			}
			client, err := stile.New(st, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close(context.Background()) }()
			l, err := client.Line(t.Context(), "a")
			if err != nil || len(l.Holders) != 1 {
				t.Fatalf("got %v, %v, want a holder", l, err)
			}
			h := l.Holders[0]
			if foreign := what != ""; h.Foreign != foreign || h.Owner.IsZero() != foreign || h.Token == 0 || h.Session != se.ID() {
				t.Errorf("foreign is %v, the owner is empty: %v, token %d, session %q", h.Foreign, h.Owner.IsZero(), h.Token, h.Session)
			}
		})
	}
}

// The largest owner that a client accepts is shown, whatever its characters are.
func TestLine_largestOwner(t *testing.T) {
	for _, text := range []string{"x", "<", "é", "\xff", "\u2028", "\x01"} {
		scenario(t, func(t *testing.T, w *testEnv) {
			owner := stile.Owner{Labels: map[string]string{}}
			for {
				size, err := json.Marshal(owner)
				if err != nil {
					t.Fatal(err)
				}
				if len(size)+100 > stile.MaxOwnerBytes {
					break
				}
				owner.Labels[fmt.Sprint(len(owner.Labels))] = text
			}
			lock(t, w.client("ann", func(o *stile.Options) { o.Owner = owner }), "a")
			l, err := w.client("bob").Line(t.Context(), "a")
			if err != nil || len(l.Holders) != 1 || l.Holders[0].Foreign || len(l.Holders[0].Owner.Labels) != len(owner.Labels) {
				t.Errorf("with labels of %q: got %.300v, %v", text, l.Holders, err)
			}
		})
	}
}
