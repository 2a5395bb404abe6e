package observe_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/store/memstore"
)

// The hook gets each event once, with the line before and after it, also those that the history forgets.
func TestHooks_changed(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob := w.client("ann"), w.client("bob")
		var mu sync.Mutex
		var got []string
		w.hooks.Changed = func(before, now stile.Line, events []observe.Event) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range events {
				got = append(got, e.Entry.Owner.Command+" "+e.What)
			}
			for _, l := range []stile.Line{before, now} {
				if l.Name != "a" || len(l.Holders)+len(l.Waiters) > 2 {
					t.Errorf("got a change of %+v, want one of a", l)
				}
			}
			if len(observe.Steps(before, now)) != len(events) {
				t.Errorf("from %+v to %+v: got %d events", before, now, len(events))
			}
		}
		w.start()
		const rounds = 300
		for range rounds {
			h := w.lock(ann, "a")
			time.Sleep(time.Second)
			p, err := bob.Mutex("a").Join(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			w.release(h)
			if h, err = p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			w.release(h)
			time.Sleep(time.Second)
		}
		mu.Lock()
		defer mu.Unlock()
		want := slices.Repeat([]string{"ann holds", "bob waits", "ann ended", "bob holds", "bob ended"}, rounds)
		if !slices.Equal(got, want) {
			t.Errorf("got %d events, want %d; the first: %s", len(got), len(want), strings.Join(got[:min(len(got), 10)], ", "))
		}
	})
}

// Each reading of the store is reported, also one that fails.
func TestHooks_reading(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann := w.client("ann")
		var mu sync.Mutex
		var got []observe.Reading
		w.hooks.Reading = func(r observe.Reading) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r)
		}
		reads := 0
		slow := memstore.Fault{ReplyDelay: 250 * time.Millisecond}
		w.st.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op != memstore.Read {
				return memstore.Fault{}
			}
			reads++ // with the store locked
			if reads%10 == 0 {
				return memstore.Fault{Err: context.DeadlineExceeded}
			}
			return slow
		})
		w.start()
		w.lock(ann, "a")
		time.Sleep(time.Minute)
		w.st.SetFaults(nil)
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		seen := make(map[string]int)
		for _, r := range got {
			seen[r.What]++
			if r.Err == nil && r.Took != slow.ReplyDelay && r.Took != 0 || r.Err != nil && r.Took != 0 {
				t.Errorf("got %+v, want %v for a success", r, slow.ReplyDelay)
			}
		}
		if seen[observe.ReadAll] == 0 || (seen[observe.ReadChanged] == 0) != w.exact || seen[observe.ReadLease] == 0 || seen[""] != reads/10 {
			t.Errorf("got the readings %v, want all kinds, without those of changes if they are exact, and %d errors", seen, reads/10)
		}
	})
}

func TestObserver_eachEntry(t *testing.T) {
	observed(t, func(t *testing.T, w *world) {
		ann, bob := w.client("ann"), w.client("bob")
		w.lock(ann, "a")
		time.Sleep(time.Minute)
		w.start()
		time.Sleep(10 * time.Second)
		w.lock(ann, "b")
		if _, err := bob.Mutex("a").Join(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		got := make(map[string]time.Duration)
		w.o.EachEntry(func(e observe.EntryState) {
			what := " waits"
			if e.Holds {
				what = " holds"
			}
			got[e.Name+what] = e.For.Round(time.Second)
			if e.Remaining <= 0 || e.Remaining > ttl {
				t.Errorf("%s: got %v left", e.Name, e.Remaining)
			}
		})
		want := map[string]time.Duration{
			"a holds": 15 * time.Second, // since the observer has seen it
			"b holds": 5 * time.Second, "a waits": 5 * time.Second,
		}
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}
