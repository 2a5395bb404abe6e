package observe

import (
	"slices"
	"time"
)

// The history is bounded, so that a store with many changes cannot fill the memory.
const (
	maxAge     = time.Hour
	maxPerName = 256   // updates of a name with their events
	maxTotal   = 65536 // updates
	// maxRecent is the number of the last updates whose events are kept for readers of updates, even if they are too
	// many for one name.
	maxRecent = 4096
)

// Causes of the end of a hold.
const (
	Released = "released" // or removed by another process, as stile break does: the store does not tell
	Broken   = "broken"   // through this server
	Lost     = "lost"     // its session was not renewed and has ended
)

// An Event is a step with what is known about it.
type Event struct {
	Time time.Time
	Step
	// Cause is why a hold has ended or a waiter has left; "" if it is not known.
	Cause string
	// Waited is how long the entry waited before it was admitted or left, and Held how long it held.
	// They are zero if the observer has not seen when that began. Waited is also zero if the entry was
	// admitted before it was first seen.
	Waited, Held time.Duration
	// Measured is true if Waited or Held is known, to within the time between two readings.
	Measured bool

	known bool // the entry was in the line before
}

// record is an update of one name.
type record struct {
	number    uint64
	forgotten bool // its events are not in byName any more
	at        time.Time
	name      string
	events    []Event // nil if forgotten, or if only other properties of the line have changed
}

// history is the updates of the last hour, within its limits. A lock with many changes does not displace what
// is known of others.
type history struct {
	last    uint64    // number of the last update
	begin   time.Time // time of the newest update whose events were forgotten
	records []*record // the last updates
	told    []*record // the updates with events; some of them may be forgotten
	known   int       // updates with events that are not forgotten
	byName  map[string][]*record
}

func newHistory() history { return history{byName: make(map[string][]*record)} }

// add adds the next update.
func (h *history) add(name string, at time.Time, events []Event) {
	h.last++
	r := &record{number: h.last, at: at, name: name, events: events}
	h.records = append(h.records, r)
	if i := len(h.records) - 1 - maxRecent; i >= 0 && h.records[i].forgotten {
		h.records[i].events = nil
	}
	if len(events) == 0 {
		return
	}
	h.told = append(h.told, r)
	h.known++
	if h.byName[name] = append(h.byName[name], r); len(h.byName[name]) > maxPerName {
		h.forgetFirst(name)
	}
}

// forgetFirst forgets the first events of a name.
func (h *history) forgetFirst(name string) {
	of := h.byName[name]
	of[0].forgotten = true
	if of[0].number+maxRecent < h.last {
		of[0].events = nil
	}
	of[0] = nil // for the garbage collector
	h.byName[name] = of[1:]
	if len(of) == 1 {
		delete(h.byName, name)
	}
	h.known--
}

// forget forgets what is beyond the limits.
func (h *history) forget(now time.Time) {
	n := max(0, len(h.records)-maxTotal)
	for n < len(h.records) && now.Sub(h.records[n].at) > maxAge {
		n++
	}
	clear(h.records[:n])
	h.records = h.records[n:]
	for len(h.told) > 0 {
		r := h.told[0]
		if !r.forgotten && h.known <= maxTotal && now.Sub(r.at) <= maxAge {
			break
		}
		if !r.forgotten { // it is the first of its name, because both lists are in order
			h.begin = r.at
			h.forgetFirst(r.name)
		}
		h.told[0] = nil
		h.told = h.told[1:]
	}
	if len(h.told) > 2*h.known+maxPerName {
		h.told = slices.DeleteFunc(h.told, func(r *record) bool { return r.forgotten })
	}
}

// since returns the updates after a number. known is false if some are forgotten, or if there is no such
// number.
func (h *history) since(after uint64) (records []*record, known bool) {
	if after > h.last || h.last-after > uint64(len(h.records)) {
		return nil, false
	}
	return h.records[len(h.records)-int(h.last-after):], true
}

// of returns the events of a name.
func (h *history) of(name string) []Event {
	var events []Event
	for _, r := range h.byName[name] {
		events = append(events, r.events...)
	}
	return events
}
