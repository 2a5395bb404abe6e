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

	// Bug: madelson/DistributedLock
	s.test("similar names do not block each other", func(t *testing.T, w *testEnv) {
		c := w.openKept()
		for _, n := range similarNames(w) {
			p, err := c.try(n, line.Exclusive)
			if err != nil {
				t.Fatalf("try while similar names are held: %v", err)
			}
			p.admitted()
			w.wantLine(n, p)
		}
	})

	s.test("a line has no entries of another name", func(t *testing.T, w *testEnv) {
		names := similarNames(w)
		for i, n := range names {
			c := w.openKept()
			p := c.hold(n, line.Exclusive)
			for _, other := range names {
				if other != n {
					w.wantLine(other)
				}
			}
			p.withdraw()
			if i == 8 {
				break // the other names need not be tested here
			}
		}
	})

	s.test("Lines returns the lines with the prefix sorted by name", func(t *testing.T, w *testEnv) {
		c := w.openKept()
		names := similarNames(w)
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

	s.test("Lines leaves out empty lines", func(t *testing.T, w *testEnv) {
		c := w.openKept()
		a, b := c.hold(w.name("a"), line.Exclusive), c.hold(w.name("b"), line.Exclusive)
		wantLines(t, w, w.name(""), []string{a.name, b.name})
		a.withdraw()
		wantLines(t, w, w.name(""), []string{b.name})
		b.withdraw()
		wantLines(t, w, w.name(""), nil)
	})

	s.test("Lines may be left, and reads anew each time it is ranged over", func(t *testing.T, w *testEnv) {
		c := w.openKept()
		a, b := c.hold(w.name("a"), line.Exclusive), c.hold(w.name("b"), line.Exclusive)
		wantLines(t, w, w.name(""), []string{a.name, b.name})
		ctx, cancel := w.call()
		defer cancel()
		seq := w.stores[len(w.stores)-1].Lines(ctx, w.name(""))
		names := func(most int) (names []string) {
			for l, err := range seq {
				if err != nil {
					t.Fatal(err)
				}
				if names = append(names, l.Name); len(names) == most {
					break
				}
			}
			return names
		}
		if got := names(1); !slices.Equal(got, []string{a.name}) {
			t.Errorf("the first line of Lines is %q, want %q", got, a.name)
		}
		a.withdraw()
		wantLines(t, w, w.name(""), []string{b.name})
		if got := names(9); !slices.Equal(got, []string{b.name}) {
			t.Errorf("Lines ranged over again after a change has %q, want %q", got, b.name)
		}
	})

	s.test("an unused name is an empty line and no error", func(t *testing.T, w *testEnv) {
		name := w.name("nobody")
		if l := w.line(name); l.Name != name || len(l.Entries) != 0 {
			t.Errorf("Line(%q) is %+v, want an empty line of that name", name, l)
		}
	})

	fair.test("a line has its entries in order", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		var entries []*entry
		for range 4 {
			entries = append(entries, w.openKept().enqueue(name, line.Exclusive))
		}
		entries[0].admitted()
		l := w.wantLine(name, entries...)
		if l.Name != name {
			t.Errorf("the line has name %q, want %q", l.Name, name)
		}
		for i, e := range l.Entries {
			wantEntry(t, e, entries[i], i == 0)
			if i > 0 && e.Order != 0 && slices.Contains(w.h.Without, WaitersOrders) {
				t.Errorf("a waiter has order %d, but Harness.Without lists %q: remove it to run its tests",
					e.Order, WaitersOrders)
			}
		}
	})

	shared.test("a line has the mode and admission of each entry", func(t *testing.T, w *testEnv) {
		for _, modes := range [][]line.Mode{
			{line.Shared, line.Shared, line.Exclusive, line.Shared},
			{line.Slot(2), line.Slot(2), line.Slot(2)},
			{line.Slot(7), line.Slot(7)},
		} {
			name := w.newName()
			var entries []*entry
			for _, m := range modes {
				entries = append(entries, w.openKept().enqueue(name, m))
			}
			entries[1].admitted()
			for i, e := range w.wantLine(name, entries...).Entries {
				wantEntry(t, e, entries[i], i < 2)
			}
		}
	})

	s.test("an owner is returned as it was given", func(t *testing.T, w *testEnv) {
		name := w.name("lock")
		since := time.Now().Add(-time.Hour).Round(0)
		owner := store.Owner{
			Since: since,
			Host:  "höst.example", PID: 4711, User: "ann",
			Command: "deploy.sh --to \"blue <green>\" & 'x' | y; %s %d",
			Reason:  "tabs\tand\nlines, {braces}, \\slashes/ and 日本",
			Value:   "http://höst:80/?a=<b>&c",
			Labels:  map[string]string{"team": "a", "": "empty", "k=v;": "\u2028&"},
		}
		ctx, cancel := w.call()
		defer cancel()
		c := w.openWith(ctx, owner)
		p := c.hold(name, line.Exclusive)
		e := w.wantLine(name, p).Entries[0]
		wantEntry(t, e, p, true)
		if !e.Owner.Since.Equal(since) {
			t.Errorf("the owner was given with Since %v and returned with %v", since, e.Owner.Since)
		}
		if e.Remaining < 0 || e.Remaining > c.Terms().TTL+clockRounding {
			t.Errorf("Remaining is %v with a TTL of %v", e.Remaining, c.Terms().TTL)
		}
	})
}

// similarNames returns names that a store could confuse with each other: paths and their prefixes,
// and names that escaping, patterns, case folding or sequence numbers could make equal.
func similarNames(w *testEnv) []string {
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

// wantLines waits until Lines(prefix) returns the wanted lines, ignoring other tests' names.
func wantLines(t *testing.T, w *testEnv, prefix string, want []string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(w.h.Grace); ; time.Sleep(w.h.Grace / 100) {
		ctx, cancel := w.call()
		all, err := store.CollectLines(w.stores[len(w.stores)-1].Lines(ctx, prefix))
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

// wantEntry checks that an entry read from the store matches p.
func wantEntry(t *testing.T, e store.Entry, p *entry, admitted bool) {
	t.Helper()
	if e.Mode != p.mode || e.Admitted != admitted || e.Session != p.client.ID() || e.Foreign {
		t.Errorf("the line has an entry with mode %v, admitted %v, session %q, foreign %v; want %v, %v, %q, false",
			e.Mode, e.Admitted, e.Session, e.Foreign, p.mode, admitted, p.client.ID())
	}
	if p.client.w.caps.Fencing && admitted && e.Order == 0 {
		t.Errorf("the line has an admitted entry without an order")
	}
	got, want := e.Owner, p.owner
	if got.Host != want.Host || got.PID != want.PID || got.User != want.User || got.Command != want.Command ||
		got.Reason != want.Reason || !want.Obtained.IsZero() && !got.Obtained.Equal(want.Obtained) || !maps.Equal(got.Labels, want.Labels) {
		t.Errorf("the line has the owner %+v, want %+v", got, want)
	}
}
