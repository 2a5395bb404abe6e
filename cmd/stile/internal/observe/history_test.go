//go:build !race

// Long tests of data that one goroutine uses at a time. make test runs them without the race detector, which
// would find nothing in them.

package observe

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// A lock that changes all the time does not displace what is known of others, and does not fill the memory.
func TestHistory_busyLock(t *testing.T) {
	t.Parallel()
	h, now := newHistory(), time.Now()
	h.add("quiet", now, make([]Event, 1))
	for range 3 * maxTotal {
		h.add("busy", now, make([]Event, 1))
		h.forget(now)
	}
	if n := len(h.of("quiet")); n != 1 {
		t.Errorf("got %d events of the quiet lock, want 1", n)
	}
	if n := len(h.of("busy")); n != maxPerName {
		t.Errorf("got %d events of the busy lock, want %d", n, maxPerName)
	}
	if len(h.told) > maxRecent+4*maxPerName || len(h.records) > maxTotal {
		t.Errorf("%d updates with events and %d others are kept, want less", len(h.told), len(h.records))
	}
	if h.forget(now.Add(maxAge + 1)); len(h.byName)+len(h.told)+len(h.records)+h.known != 0 {
		t.Errorf("after an hour there are %d names, %d and %d updates", len(h.byName), len(h.told), len(h.records))
	}
}

// Many locks together are bounded too: the earliest events are forgotten.
func TestHistory_manyLocks(t *testing.T) {
	t.Parallel()
	h, now := newHistory(), time.Now()
	for i := range 2 * maxTotal {
		h.add(string(rune('a'+i%500)), now.Add(time.Duration(i)), make([]Event, 1))
		h.forget(now)
	}
	if h.known != maxTotal || len(h.told) > 3*maxTotal {
		t.Errorf("got %d known updates in %d, want %d", h.known, len(h.told), maxTotal)
	}
	if want := now.Add(maxTotal - 1); h.begin.Before(want) {
		t.Errorf("events are known from %v on, want %v", h.begin, want)
	}
}

// What is kept of a lock for readers of updates only gives way to the history of others.
func TestHistory_busyLockWithLargeOwners(t *testing.T) {
	t.Parallel()
	h, now := newHistory(), time.Now()
	h.add("quiet", now, make([]Event, 1))
	for i := range maxRecent {
		h.add("busy", now, []Event{{Step: Step{Waits, largeEntry(uint64(i))}}})
		h.forget(now)
		if h.bytes > maxBytes {
			t.Fatalf("%d bytes are kept", h.bytes)
		}
	}
	if n := len(h.of("quiet")); n != 1 {
		t.Errorf("got %d events of the quiet lock, want 1", n)
	}
	if n := len(h.of("busy")); n < 100 {
		t.Errorf("got %d events of the busy lock, want more", n)
	}
	if updates, known := h.since(h.last - 1000); !known || updates[0].events == nil {
		t.Error("the last thousand updates are not known")
	}
}

// Events that belong neither to the history of a name nor to the last updates are not kept.
func TestHistory_busyLocksInTurn(t *testing.T) {
	t.Parallel()
	h, now := newHistory(), time.Now()
	for i := range 3 * maxRecent {
		h.add(fmt.Sprint(i%(maxRecent/maxPerName)), now, make([]Event, 1))
		h.forget(now)
	}
	for _, r := range h.records {
		if r.forgotten && r.events != nil && r.number+maxRecent <= h.last {
			t.Fatalf("the events of update %d of %d are kept", r.number, h.last)
		}
	}
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
