package observe

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
)

// largeEntry returns an entry with the largest owner that counts as one of Stile.
func largeEntry(n uint64) stile.Entry {
	text := fmt.Sprint(n)
	e := stile.Entry{Token: n, Session: text, Owner: stile.Owner{Reason: text + strings.Repeat("x", stile.MaxOwnerBytes-len(text))}}
	for i := range 16 {
		name := fmt.Sprintf("%02d%s", i, strings.Repeat("n", store.MaxNameBytes-2))
		e.Owner.Waits = append(e.Owner.Waits, store.Wait{Name: name})
		e.Owner.Under = append(e.Owner.Under, store.Held{Name: name})
	}
	return e
}

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// The history is bounded in bytes, however large owners are, and however many events an update has.
func TestHistory_largeOwners(t *testing.T) {
	for _, of := range []struct {
		what    string
		updates int
		names   int
		events  int // of an update
	}{
		{"of one name", 2 * maxPerName, 1, 1},
		{"of many names", 20_000, 20_000, 1},
		{"of many entries at once", 50, 50, 1000},
		{"of more entries at once than are kept", 10, 1, 5000},
	} {
		t.Run(of.what, func(t *testing.T) {
			before, h, now, token := heap(), newHistory(), time.Now(), uint64(0)
			for i := range of.updates {
				events := make([]Event, of.events)
				for j := range events {
					token++
					events[j].Step = Step{Waits, largeEntry(token)}
				}
				h.add(fmt.Sprint("line", i%of.names), now, events)
				h.forget(now)
			}
			limit, bytes := maxBytes, 0
			for _, r := range h.records {
				bytes += SizeOfEvents(r.events)
			}
			if bytes != h.bytes || bytes > limit {
				t.Errorf("the events have %d bytes, %d counted, want at most %d", bytes, h.bytes, limit)
			}
			if of.names == 1 {
				if n := SizeOfEvents(h.of("line0")); n > maxBytesPerName {
					t.Errorf("the events of one name have %d bytes, want at most %d", n, maxBytesPerName)
				}
			}
			if used := heap() - before; used > limit+10<<20 {
				t.Errorf("the history takes %d bytes, want at most %d", used, limit)
			}
			if _, known := h.since(h.last); !known {
				t.Error("the last update is not known")
			}
			runtime.KeepAlive(h)
		})
	}
}

// What is kept for blame is bounded in bytes and in number, also within a minute.
func TestBlame_manyHoldersInAMinute(t *testing.T) {
	for _, of := range []struct {
		what    string
		holders int
		entry   func(n uint64) stile.Entry
	}{
		{"large owners", 10_000, largeEntry},
		{"small owners", 3 * maxCharges, func(n uint64) stile.Entry { return stile.Entry{Token: n, Owner: stile.Owner{Reason: fmt.Sprint(n)}} }},
	} {
		t.Run(of.what, func(t *testing.T) {
			before, c, now := heap(), newCharges(), time.Now().Truncate(time.Hour)
			waiters := []stile.Entry{{Token: 1 << 40, Session: "waiter"}}
			var was stile.Line
			was = NoEntries("a")
			for n := range of.holders {
				now = now.Add(100 * time.Microsecond) // all of them within half a minute
				is := stile.Line{Name: "a", Holders: []stile.Entry{of.entry(uint64(n + 1))}, Waiters: waiters}
				var events []Event
				for _, s := range Steps(was, is) {
					events = append(events, Event{Step: s})
				}
				c.change(was, is, events, now)
				was = is
				if c.n > maxCharges || c.bytes > maxChargedBytes {
					t.Fatalf("after %d holders %d sums with %d bytes are kept", n, c.n, c.bytes)
				}
			}
			bytes := 0
			for key, sum := range c.sums(now) {
				bytes += sizeOfCharge(key) + sizeOfOwner(&sum.Holder)
			}
			if bytes != c.bytes {
				t.Errorf("the sums have %d bytes, and %d are counted", bytes, c.bytes)
			}
			if c.begin.Before(now.Truncate(time.Hour)) || c.begin.IsZero() {
				t.Errorf("what is kept is said to be all since %v", c.begin)
			}
			if used := heap() - before; used > maxChargedBytes+20<<20 {
				t.Errorf("%d bytes are used", used)
			}
			runtime.KeepAlive(&c)
		})
	}
}

// If earlier waiting was forgotten, none from before that is charged later, not even in lines that have not changed
// since.
func TestBlame_nothingFromBefore(t *testing.T) {
	c, began := newCharges(), time.Now().Truncate(time.Hour)
	wait := func(name string, holder uint64) stile.Line {
		owner := stile.Owner{Reason: fmt.Sprint(holder)}
		return stile.Line{Name: name, Holders: []stile.Entry{{Token: holder, Owner: owner}}, Waiters: []stile.Entry{{Token: 1 << 40}}}
	}
	quiet, busy := wait("quiet", 1), wait("busy", 1)
	c.change(NoEntries("quiet"), quiet, nil, began)
	c.change(NoEntries("busy"), busy, nil, began)
	now := began
	for n := uint64(2); c.begin.IsZero() && n < 2*maxCharges; n++ {
		now = now.Add(100 * time.Microsecond)
		next := wait("busy", n)
		c.change(busy, next, nil, now)
		busy = next
	}
	if !c.begin.Equal(now) {
		t.Fatalf("waiting is known from %v, want %v, when there were too many holders", c.begin, now)
	}
	for _, sum := range c.sums(now) {
		if sum.Waited != 0 {
			t.Errorf("%v are charged to a holder of %s, want nothing", sum.Waited, sum.Name)
		}
	}
	now = now.Add(time.Second)
	c.charge(quiet, now)
	if sum := c.sums(now)[keyOfCharge("quiet", &quiet.Holders[0].Owner)]; sum == nil || sum.Waited != time.Second {
		t.Errorf("got %+v charged to the holder of the quiet line, want 1s", sum)
	}
}

// What is known of waiting entries does not keep owners that are forgotten.
func TestBlame_ownersThatChange(t *testing.T) {
	for _, of := range []struct {
		what           string
		lines, changes int
		holder         func(i, n int) stile.Entry // of line i, after n changes
	}{
		{"to others", 1500, maxCounted, func(i, n int) stile.Entry { return largeEntry(uint64(i*maxCounted + n)) }},
		{"only in what they publish", 20_000, 3, func(i, n int) stile.Entry {
			return stile.Entry{Owner: stile.Owner{Value: fmt.Sprint(i, strings.Repeat("x", min(n, 1)*(stile.MaxOwnerBytes-10)))}}
		}},
	} {
		t.Run(of.what, func(t *testing.T) {
			before, c, now := heap(), newCharges(), time.Now().Truncate(time.Hour)
			waiters := []stile.Entry{{Token: 1 << 40, Session: "waiter"}}
			for i := range of.lines {
				was := NoEntries(fmt.Sprint(i))
				for n := range of.changes {
					now = now.Add(time.Millisecond)
					holder := of.holder(i, n)
					holder.Token = 1
					is := stile.Line{Name: was.Name, Holders: []stile.Entry{holder}, Waiters: waiters}
					c.change(was, is, nil, now)
					was = is
					if c.n > maxCharges || c.bytes > maxChargedBytes {
						t.Fatalf("%d sums with %d bytes are kept", c.n, c.bytes)
					}
				}
			}
			if used := heap() - before; used > maxChargedBytes+50<<20 {
				t.Errorf("%d bytes are used", used)
			}
			runtime.KeepAlive(&c)
		})
	}
}

// Names that no client of Stile can lock are not followed, and remarks are bounded.
func TestObserver_hostileNamesAndRemarks(t *testing.T) {
	o, now := New(nil), time.Now()
	long := holding(strings.Repeat("n", 1<<20), "s", 1)
	line := holding("a", "s", 2)
	line.Remarks = []string{"first", strings.Repeat("x", 1<<20)}
	for range 1000 {
		line.Remarks = append(line.Remarks, "more")
	}
	o.apply(stile.Change{Lines: []stile.Line{long, line}, All: true, Exact: true, At: now}, now)
	lines, _ := o.Lines("", "", 10)
	if len(lines) != 1 || lines[0].Name != "a" {
		t.Fatalf("got %d lines, want one", len(lines))
	}
	remarks := lines[0].Remarks
	if len(remarks) != maxRemarks+1 || remarks[0] != "first" || remarks[maxRemarks] != "986 more remarks; stile show has all of them" {
		t.Errorf("got %d remarks: %.500q", len(remarks), remarks)
	}
	if !Same(o.lines["a"].line, lines[0]) {
		t.Error("the line differs from itself")
	}
}

// What a client may put into the store, thousands of megabytes in an hour, leaves little in the memory.
func TestObserver_hostileOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		client, err := stile.New(st, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close(context.Background()) }()
		before := heap()
		o := New(client)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		se, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = se.Close(context.Background()) }()
		const entries = 300
		for i := range entries {
			text := strings.Repeat("x", 1<<20)
			ticket, err := se.Enqueue(t.Context(), store.Request{
				Name: fmt.Sprint("a", i), Mode: line.Exclusive, Notify: func(store.Standing) {},
				Owner: store.Owner{Reason: text, Labels: map[string]string{text: text}},
			})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if err := ticket.Withdraw(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(time.Second)
		if events := o.History("a0"); len(events) != 2 {
			t.Errorf("got the events %.1000v, want a hold and its end", events)
		}
		if used := heap() - before; used > 10<<20 {
			t.Errorf("%d entries of 1 MB leave %d bytes", entries, used)
		}
		runtime.KeepAlive(o)
	})
}
