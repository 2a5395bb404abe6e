package stile_test

import (
	"encoding/json"
	"errors"
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
		wait(t.Context(), t, cid, "a") // waits in its process, not in the line

		l, err := cid.Line(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if l.Name != "a" || commands(l.Holders) != "ann" || commands(l.Waiters) != "bob cid" {
			t.Fatalf("the line is %+v, want it held by ann, with bob and cid waiting", l)
		}
		e := l.Holders[0]
		if e.Token != h.Token() || e.Mode != line.Exclusive || e.Foreign || e.Session != w.session("ann") || e.Remaining != ttl-time.Second {
			t.Errorf("the holder is %+v", e)
		}
		if since := time.Since(e.Owner.Since); since != time.Second {
			t.Errorf("the holder joined %v ago, want a second", since)
		}
		if l.Waiters[0].Token <= e.Token || l.Waiters[1].Token <= l.Waiters[0].Token {
			t.Errorf("the tokens do not increase along the line %+v", l)
		}
	})
}

func TestLine_empty(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		l, err := w.client("ann").Line(t.Context(), "a")
		if err != nil || l.Name != "a" || len(l.Holders)+len(l.Waiters)+len(l.Remarks) > 0 {
			t.Errorf("the line is %+v, %v, want an empty one", l, err)
		}
		text, err := json.Marshal(l)
		if want := `{"name":"a","holders":[],"waiters":[]}`; string(text) != want || err != nil {
			t.Errorf("as JSON it is %s, %v, want %s", text, err, want)
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
				t.Fatalf("Lines(%q) returned %v, %v", prefix, lines, err)
			}
			var names []string
			for _, l := range lines {
				names = append(names, l.Name)
				if commands(l.Holders) != "ann" || (commands(l.Waiters) == "bob") != (l.Name == "a/2") {
					t.Errorf("the line %+v, want it held by ann, and bob waiting for a/2", l)
				}
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("Lines(%q) returned %q, want %q", prefix, got, want)
			}
		}
	})
}

// Whatever an owner says of itself can be read by others as it was said.
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
			t.Errorf("the error %q does not say %q", err, want)
		}
		lines, err := bob.Lines(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, got := range []stile.Owner{h.Owner(), held.Holder.Owner, lines[0].Holders[0].Owner} {
			if !got.Since.Equal(began) {
				t.Errorf("the owner says that it stands there since %v, and has since %v", got.Since, began)
			}
			got.Since = time.Time{}
			if !reflect.DeepEqual(got, owner) {
				t.Errorf("read %+v, want %+v", got, owner)
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
			t.Errorf("Break returned %+v, want ann's entry with token %d", e, h.Token())
		}
		expectLost(t, h, stile.LostEvicted)
		wt.expectHoldNow()
		expectHeld(t, other)
	})
}

// Who breaks a hold has seen its token. If it is another's turn by now, nothing happens.
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
				t.Errorf("the error %q does not name the lock", err)
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

// Other clients make keys of their own, and so names that no lock of this package can have. They can be seen, and so they can be
// looked at and broken.
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
			t.Fatalf("Lines returns %+v, %v", lines, err)
		}
		for i, l := range lines {
			name := names[i]
			if l.Name != name {
				t.Errorf("line %d is called %q, want %q", i, l.Name, name)
			}
			shown, err := eve.Line(t.Context(), name)
			if err != nil || len(shown.Holders) != 1 {
				t.Errorf("Show(%q) returns %+v, %v", name, shown, err)
			}
			for watched, err := range eve.WatchLine(t.Context(), name) {
				if err != nil || len(watched.Holders) != 1 {
					t.Errorf("WatchLine(%q) yields %+v, %v", name, watched, err)
				}
				break
			}
			if _, err := eve.Break(t.Context(), name, l.Holders[0].Token); err != nil {
				t.Errorf("Break(%q) fails: %v", name, err)
			}
		}
		if lines, err := eve.Lines(t.Context(), ""); err != nil || len(lines) > 0 {
			t.Errorf("after all were broken, Lines returns %+v, %v", lines, err)
		}
		if err := session.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
