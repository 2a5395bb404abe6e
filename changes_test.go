package stile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// watchChanges starts a loop over the changes of all lines. The text of a change of all lines begins with
// "all:".
func watchChanges(t *testing.T, c *stile.Client, prefix string) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	return loop(t, cancel, c.WatchChanges(ctx, prefix), func(c stile.Change) string {
		var all []string
		for _, l := range c.Lines {
			all = append(all, asText(l))
		}
		text := strings.Join(all, "; ")
		if c.All {
			text = strings.TrimSpace("all: " + text)
		}
		return text
	}, nil)
}

func TestWatchChanges(t *testing.T) {
	for _, naming := range []bool{false, true} {
		scenario(t, func(t *testing.T, w *testEnv) {
			w.naming = naming
			ann, bob := w.client("ann"), w.client("bob")
			a := lock(t, ann, "a/1")
			lock(t, ann, "a/2")
			changes := watchChanges(t, w.client("eve"), "a/")
			changes.expectLines("all: a/1: ann; a/2: ann")
			place := wait(t.Context(), t, bob, "a/1")
			changes.expectLines("a/1: ann bob")
			lock(t, bob, "a/3")
			lock(t, bob, "b")
			changes.expectLines("a/3: bob")
			release(t, a)
			changes.expectLines("a/1: bob")
			next := place.expectHoldNow()
			release(t, next)
			changes.expectLines("a/1:")
		})
	}
}

// A reading of all lines that takes long is repeated rarely, but changes with a name are yielded at once.
func TestWatchChanges_readsAllForAtMostAThousandthOfTheTime(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.naming = true
		ann := w.client("ann")
		const slow = 50 * time.Millisecond
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read && c.Name == "" {
				return memstore.Fault{ReplyDelay: slow}
			}
			return memstore.Fault{}
		})
		changes := watchChanges(t, w.client("eve"), "")
		for start := time.Now(); time.Since(start) < 5*time.Minute; time.Sleep(2 * time.Second) {
			release(t, lock(t, ann, "a"))
		}
		time.Sleep(time.Minute)
		var full []time.Duration
		named := 0
		for _, c := range changes.all() {
			if strings.HasPrefix(c.lines, "all:") {
				full = append(full, c.at)
			} else {
				named++
			}
		}
		for i := 1; i < len(full); i++ {
			pause := 999 * slow
			if i == 1 {
				pause = 9 * slow // the watch has begun, and any line may have changed before
			}
			if rest := full[i] - slow - full[i-1]; rest < pause {
				t.Errorf("reading %d of all lines began %v after the one before, want %v at least", i, rest, pause)
			}
		}
		if len(full) < 6 || named < 100 {
			t.Errorf("got %d readings of all lines and %d of one in 6 minutes, want 6 and 100 at least", len(full), named)
		}
	})
}

// A busy machine makes a reading slow. The next one that is necessary does not wait in proportion.
func TestWatchChanges_readsAllAgainWithin30Seconds(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.naming = true
		const slow = 10 * time.Second
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read && c.Name == "" {
				return memstore.Fault{ReplyDelay: slow}
			}
			return memstore.Fault{}
		})
		changes := watchChanges(t, w.client("eve"), "")
		time.Sleep(time.Minute)
		all := changes.all() // the second because the watch has begun
		if len(all) != 2 {
			t.Fatalf("got %d readings in a minute, want 2", len(all))
		}
		if pause := all[1].at - slow - all[0].at; pause > 30*time.Second {
			t.Errorf("the second reading began %v after the first, want 30s at most", pause)
		}
	})
}

// While a reading of all lines waits for its time, changes with a name must not make the watch forget it.
func TestWatchChanges_readsAllAfterwards(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.naming = true
		ann, eve := w.client("ann"), w.client("eve")
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			switch {
			case c.Op == memstore.Watch:
				return memstore.Fault{Delay: 500 * time.Millisecond} // a change before it is not named
			case c.Op == memstore.Read && c.Name == "":
				return memstore.Fault{ReplyDelay: 100 * time.Millisecond}
			}
			return memstore.Fault{}
		})
		changes := watchChanges(t, eve, "")
		time.Sleep(300 * time.Millisecond)
		lock(t, ann, "before the watch")
		time.Sleep(300 * time.Millisecond) // the watch has begun, and all lines may be read from 1 s on
		lock(t, ann, "named")
		time.Sleep(2 * time.Second)
		want := []string{"all:", "named: ann", "all: before the watch: ann; named: ann"}
		var got []string
		for _, c := range changes.all() {
			got = append(got, c.lines)
		}
		// Later changes are due to the owners, which are published after a second.
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("got %q, want %q at first", got, want)
		}
	})
}

// Promise: P7
func TestWatchChanges_readsAllAfterAnError(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.naming = true
		ann := w.client("ann")
		changes := watchChanges(t, w.client("eve"), "")
		changes.expectLines("all:")
		down := errors.New("the store is down")
		w.faults(memstore.Fault{Err: down}, on(memstore.Read))
		lock(t, ann, "a")
		time.Sleep(2 * watchInterval)
		if c := changes.last(); !errors.Is(c.err, down) {
			t.Fatalf("got %+v, want the error", c)
		}
		lock(t, ann, "b")
		w.heal()
		failed := len(changes.all())
		time.Sleep(2 * time.Second)
		if all := changes.all(); len(all) == failed || all[failed].lines != "all: a: ann; b: ann" {
			t.Errorf("got %+v after the errors, want all lines at first", all[failed:])
		}
	})
}

// What a change costs does not depend on the number of lines.
func TestWatchChanges_readsOnlyWhatChanged(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		w.naming = true
		ann, bob := w.client("ann"), w.client("bob")
		const n = 100
		for i := range n {
			lock(t, ann, fmt.Sprintf("idle/%d", i))
		}
		changes := watchChanges(t, w.client("eve"), "")
		time.Sleep(3 * time.Second) // until all owners have been published
		seen := len(changes.all())
		var reads []string
		w.store.SetFaults(func(c memstore.Call) memstore.Fault {
			if c.Op == memstore.Read {
				reads = append(reads, c.Name)
			}
			return memstore.Fault{}
		})
		lock(t, bob, "busy")
		synctest.Wait()
		w.heal()
		if !slices.Equal(reads, []string{"busy"}) {
			t.Errorf("got readings of %q, want one of the line that has changed", reads)
		}
		if all := changes.all(); len(all) != seen+1 || all[seen].lines != "busy: bob" {
			t.Errorf("got %+v, want one change", all[seen:])
		}
	})
}

func TestWatchChanges_invalidPrefix(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		changes := watchChanges(t, w.client("eve"), "a\n")
		synctest.Wait()
		if all := changes.all(); len(all) != 1 || all[0].err == nil {
			t.Errorf("got %+v, want one error", all)
		}
	})
}

// A store that reports the lines itself reports each state of each of them, however short it was.
func TestWatchChanges_everyState(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann, bob := w.client("ann"), w.client("bob")
		changes := watchChanges(t, w.client("eve"), "a")
		changes.expectLines("all:")
		want := []string{"all:"}
		for range 200 {
			h := lock(t, ann, "a")
			place := wait(t.Context(), t, bob, "a")
			release(t, h)
			release(t, place.expectHoldNow())
			want = append(want, "a: ann", "a: ann bob", "a: bob", "a:")
		}
		lock(t, ann, "b")
		synctest.Wait()
		var got []string
		for _, c := range changes.all() {
			got = append(got, c.lines)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %d changes %q, want %d %q", len(got), got, len(want), want)
		}
	})
}

// Nothing is read for the changes of a store that reports the lines itself.
func TestWatchChanges_exactReadsNothing(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		w.faults(memstore.Fault{Err: errors.New("read")}, on(memstore.Read))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			time.Sleep(time.Second)
			release(t, lock(t, ann, "a"))
			time.Sleep(time.Minute)
			cancel()
		}()
		n := 0
		for c, err := range w.client("eve").WatchChanges(ctx, "") {
			n++
			if err != nil || !c.Exact || time.Since(c.At) > 0 || len(c.Lines) > 0 && len(c.Lines[0].Holders) > 0 && c.Lines[0].Holders[0].Remaining != 0 {
				t.Errorf("got %+v, %v, want an exact change now, and no remaining times", c, err)
			}
		}
		if n != 3 {
			t.Errorf("got %d changes, want all lines, a hold, and its end", n)
		}
		w.heal()
	})
}

// A loop that is too slow for each state gets the newest one.
// Promise: P7
func TestWatchChanges_slowLoopSeesLastState(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		ann := w.client("ann")
		ctx, cancel := context.WithCancel(t.Context())
		last, n := "", 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for c, err := range w.client("eve").WatchChanges(ctx, "") {
				if err != nil {
					t.Error(err)
				}
				if n++; n == 2 {
					time.Sleep(time.Minute)
				}
				for _, l := range c.Lines {
					last = asText(l)
				}
			}
		}()
		synctest.Wait()
		for range 5000 {
			release(t, lock(t, ann, "a"))
		}
		lock(t, ann, "a")
		time.Sleep(2 * time.Minute)
		cancel()
		<-done
		if last != "a: ann" || n > 5000 {
			t.Errorf("got %d changes, the last one with %q; want fewer, and the last state", n, last)
		}
	})
}

// An outage ends no watch: the error is yielded, and then all lines.
// Promise: P7
func TestWatchChanges_outageOfAStoreThatReports(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		down := errors.New("the store is down")
		c, err := stile.New(failingStore{w.store, down}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		changes := watchChanges(t, c, "")
		synctest.Wait()
		all := changes.all()
		if len(all) != 2 || !errors.Is(all[0].err, down) || all[1].err != nil || all[1].lines != "all:" {
			t.Errorf("got %+v, want the error and then all lines", all)
		}
	})
}

// failingStore is a store that reports an error at first.
type failingStore struct {
	*memstore.Store
	err error
}

func (s failingStore) Capabilities() store.Capabilities {
	caps := s.Store.Capabilities()
	follow := caps.Follow
	caps.Follow = func(ctx context.Context, prefix string, changed func(store.Changes)) error {
		changed(store.Changes{Err: s.err})
		return follow(ctx, prefix, changed)
	}
	return caps
}

func TestWatchChanges_exactEnds(t *testing.T) {
	scenario(t, func(t *testing.T, w *testEnv) {
		denied := errors.New("permission denied")
		eve := w.client("eve")
		w.faults(memstore.Fault{Err: denied}, on(memstore.Watch))
		refused := watchChanges(t, eve, "")
		synctest.Wait()
		refused.expectEnd(0, denied)
		w.heal()
		for range 100 {
			changes := watchChanges(t, eve, "")
			changes.stop()
			<-changes.done
			for _, c := range changes.all() {
				if c.err != nil {
					t.Fatalf("got the error %v at the end of the context", c.err)
				}
			}
		}
		for range eve.WatchChanges(t.Context(), "") {
			break
		}
		for range 100 {
			closing := w.client("closing")
			changes := watchChanges(t, closing, "")
			if err := closing.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-changes.done
			changes.expectEnd(len(changes.all())-1, stile.ErrClosed)
		}
	})
}
