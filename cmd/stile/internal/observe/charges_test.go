//go:build !race

// Long tests of data that one goroutine uses at a time. make test runs them without the race detector, which
// would find nothing in them.

package observe

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
)

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

// What is kept for blame is bounded in a long line whose holders are all different.
func TestBlame_ofLongLine(t *testing.T) {
	c := newCharges()
	now := time.Now()
	const n = 300
	entries := make([]stile.Entry, 0, 2*n)
	for i := range 2 * n {
		entries = append(entries, stile.Entry{Token: uint64(i + 1), Session: fmt.Sprint(i), Owner: stile.Owner{Host: "host", User: "user", Command: "deploy", Reason: fmt.Sprint("build ", i)}})
	}
	c.change(NoEntries("a"), stile.Line{Name: "a", Holders: entries[:1], Waiters: entries[1:n]}, nil, now)
	line := func(i int) stile.Line {
		return stile.Line{Name: "a", Holders: entries[i : i+1], Waiters: entries[i+1 : i+n]}
	}
	kept := 0
	for i := range n {
		now = now.Add(10 * time.Millisecond)
		var events []Event
		for _, s := range Steps(line(i), line(i+1)) {
			events = append(events, Event{Step: s})
		}
		c.change(line(i), line(i+1), events, now)
	}
	for _, w := range c.lines["a"].waits {
		kept += len(w)
	}
	if kept > 100*n {
		t.Errorf("%d records are kept for %d waiters", kept, n-1)
	}
}
