package storetest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func lines(s suite) {
	fair, shared := s.needs(Fair), s.needs(Fair, SharedModes)

	s.test("names do not block each other however alike they are", func(t *testing.T, w *world) {
		c := w.openKept()
		for _, n := range alike(w) {
			p, err := c.try(n, line.Exclusive)
			if err != nil {
				t.Fatalf("after holds of other names: %v", err)
			}
			p.admitted()
			w.lineOf(n, p)
		}
	})

	s.test("a line shows nobody who stands for another name", func(t *testing.T, w *world) {
		names := alike(w)
		for i, n := range names {
			c := w.openKept()
			p := c.hold(n, line.Exclusive)
			for _, other := range names {
				if other != n {
					w.lineOf(other)
				}
			}
			p.withdraw()
			if i == 8 {
				break // the rest differs in nothing that matters here
			}
		}
	})

	s.test("Lines returns those whose name begins with the prefix sorted by name", func(t *testing.T, w *world) {
		c := w.openKept()
		names := alike(w)
		for _, n := range names {
			c.hold(n, line.Exclusive)
		}
		slices.Sort(names)
		prefixes := []string{"", w.prefix}
		for _, p := range []string{"", "a", "a/", "a/b", "ab", "nothing"} {
			prefixes = append(prefixes, w.name(p))
		}
		for _, prefix := range prefixes {
			var want []string
			for _, n := range names {
				if strings.HasPrefix(n, prefix) {
					want = append(want, n)
				}
			}
			wantLines(t, w, prefix, want)
		}
	})

	s.test("Lines leaves out a name as soon as nobody stands for it", func(t *testing.T, w *world) {
		c := w.openKept()
		a, b := c.hold(w.name("a"), line.Exclusive), c.hold(w.name("b"), line.Exclusive)
		wantLines(t, w, w.name(""), []string{a.name, b.name})
		a.withdraw()
		wantLines(t, w, w.name(""), []string{b.name})
		b.withdraw()
		wantLines(t, w, w.name(""), nil)
	})

	s.test("the line of a name nobody stands for is empty and no error", func(t *testing.T, w *world) {
		name := w.name("nobody")
		if l := w.line(name); l.Name != name || len(l.Entries) != 0 {
			t.Errorf("Line(%q) is %+v, want an empty line of that name", name, l)
		}
	})

	fair.test("a line shows who stands there in order", func(t *testing.T, w *world) {
		name := w.name("lock")
		var places []*place
		for range 4 {
			places = append(places, w.openKept().enqueue(name, line.Exclusive))
		}
		places[0].admitted()
		l := w.lineOf(name, places...)
		if l.Name != name {
			t.Errorf("the line's name is %q, want %q", l.Name, name)
		}
		for i, e := range l.Entries {
			wantEntry(t, e, places[i], i == 0)
			if i > 0 && e.Order != 0 && slices.Contains(w.h.Without, WaitersOrders) {
				t.Errorf("an entry that waits has order %d, and Harness.Without names %q: are its tests to be left out?",
					e.Order, WaitersOrders)
			}
		}
	})

	shared.test("a line shows the mode of each entry and who is admitted", func(t *testing.T, w *world) {
		name := w.name("lock")
		modes := []line.Mode{line.Shared, line.Shared, line.Slot(7), line.Exclusive, line.Shared}
		var places []*place
		for _, m := range modes {
			places = append(places, w.openKept().enqueue(name, m))
		}
		places[1].admitted()
		for i, e := range w.lineOf(name, places...).Entries {
			wantEntry(t, e, places[i], i < 2)
		}
	})

	s.test("an owner is shown as it was given", func(t *testing.T, w *world) {
		name := w.name("lock")
		since := time.Now().Add(-time.Hour).Round(0)
		owner := store.Owner{
			Since: since,
			Host:  "höst.example", PID: 4711, User: "ann",
			Command: "deploy.sh --to \"blue <green>\" & 'x' | y; %s %d",
			Reason:  "tabs\tand\nlines, {braces}, \\slashes/ and 日本",
			Labels:  map[string]string{"team": "a", "": "empty", "k=v;": "\u2028&"},
		}
		ctx, cancel := w.call()
		defer cancel()
		c := w.openWith(ctx, owner)
		p := c.hold(name, line.Exclusive)
		e := w.lineOf(name, p).Entries[0]
		wantEntry(t, e, p, true)
		if !e.Owner.Since.Equal(since) {
			t.Errorf("the owner says that the entry was made at %v, and is shown with %v", since, e.Owner.Since)
		}
		if e.Remaining < 0 || e.Remaining > c.Terms().TTL+tick {
			t.Errorf("the entry's session lives %v longer, with a TTL of %v", e.Remaining, c.Terms().TTL)
		}
	})
}

// alike returns names that a store could confuse with each other: paths and their beginnings, and what escaping,
// patterns, cases and sequence numbers could make equal.
func alike(w *world) []string {
	names := []string{
		"a", "a/b", "a/b/c", "ab", "a-b", "a.b", "A", "a/B", "b",
		"a%2Fb", "a%2fb", "a%", "%61", "a b", "a+b", "a\\b", "a_b", "a:b", "a~b", "a|b", "a,b", "a#b", "a?b", "a&b=c",
		"a*", "a?", "[a]", "{a}", "a}", "a{", "a'", `a"`, "a$b", "a@b", "a!b", " a", "a ", "a/ ",
		"ä", "a\u0308", "日本", "\U0001F512",
		"lock-0000000001", "a/lock-0000000001", "a/0", "a/7fffffffffffffff", ".a", "...", "a/...", "zookeeper", "__r_o_e_p__",
	}
	for i, n := range names {
		names[i] = w.name(n)
	}
	return append(names, w.name(strings.Repeat("x", store.MaxNameBytes-len(w.name("")))), w.prefix)
}

// wantLines checks which of the test's own names Lines returns.
func wantLines(t *testing.T, w *world, prefix string, want []string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(w.h.Grace); ; time.Sleep(w.h.Grace / 100) {
		ctx, cancel := w.call()
		all, err := w.stores[len(w.stores)-1].Lines(ctx, prefix)
		cancel()
		if err != nil {
			t.Fatalf("Lines(%q): %v", prefix, err)
		}
		got = got[:0]
		for _, l := range all {
			if !strings.HasPrefix(l.Name, prefix) {
				t.Fatalf("Lines(%q) returned the line of %q", prefix, l.Name)
			}
			// Other tests may use the same server.
			if strings.HasPrefix(l.Name, w.prefix) {
				got = append(got, l.Name)
			}
		}
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Lines(%q) returned\n%q, want\n%q", prefix, got, want)
		}
	}
}

// wantEntry checks an entry against the place it is read from.
func wantEntry(t *testing.T, e store.Entry, p *place, admitted bool) {
	t.Helper()
	if e.Mode != p.mode || e.Admitted != admitted || e.Session != p.client.ID() || e.Foreign {
		t.Errorf("the line shows an entry with mode %v, admitted %v, session %q, foreign %v; want %v, %v, %q, false",
			e.Mode, e.Admitted, e.Session, e.Foreign, p.mode, admitted, p.client.ID())
	}
	if p.client.w.caps.Fencing && admitted && e.Order == 0 {
		t.Errorf("the line shows an admitted entry without order")
	}
	got, want := e.Owner, p.owner
	if got.Host != want.Host || got.PID != want.PID || got.User != want.User || got.Command != want.Command ||
		got.Reason != want.Reason || !want.Obtained.IsZero() && !got.Obtained.Equal(want.Obtained) || !maps.Equal(got.Labels, want.Labels) {
		t.Errorf("the line shows the owner %+v, want %+v", got, want)
	}
}
