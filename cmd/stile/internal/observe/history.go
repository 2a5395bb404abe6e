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
	// Clients choose the size of owners, and one update may have thousands of events. So their bytes are limited too,
	// as SizeOf counts them.
	maxBytesPerName = 4 << 20
	maxBytes        = 64 << 20
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
	bytes     int     // of the events
}

// history is the updates of the last hour, within its limits. A lock with many changes does not displace what
// is known of others.
type history struct {
	last    uint64    // number of the last update
	begin   time.Time // time of the newest update whose events were forgotten
	records []*record // the last updates
	told    []*record // all updates with events, and some that had them
	loose   []*record // updates that are forgotten, some still with events, in the order in which that happened
	known   int       // updates with events that are not forgotten
	bytes   int       // of all events
	byName  map[string]*named
}

// named is the updates of a name whose events are not forgotten.
type named struct {
	records []*record
	bytes   int // of their events
}

func newHistory() history { return history{byName: make(map[string]*named)} }

// add adds the next update.
func (h *history) add(name string, at time.Time, events []Event) {
	h.last++
	r := &record{number: h.last, at: at, name: name, events: events, bytes: SizeOfEvents(events)}
	h.records = append(h.records, r)
	if i := len(h.records) - 1 - maxRecent; i >= 0 && h.records[i].forgotten {
		h.drop(h.records[i])
	}
	if len(events) == 0 {
		return
	}
	h.told = append(h.told, r)
	h.known++
	h.bytes += r.bytes
	of := h.byName[name]
	if of == nil {
		of = new(named)
		h.byName[name] = of
	}
	of.records = append(of.records, r)
	of.bytes += r.bytes
	for len(of.records) > maxPerName || of.bytes > maxBytesPerName {
		h.forgetFirst(name)
	}
}

// drop drops the events of an update.
func (h *history) drop(r *record) {
	h.bytes -= r.bytes
	r.events, r.bytes = nil, 0
}

// forgetFirst forgets the first events of a name.
func (h *history) forgetFirst(name string) {
	of := h.byName[name]
	first := of.records[0]
	of.records[0] = nil // for the garbage collector
	of.records = of.records[1:]
	of.bytes -= first.bytes
	if len(of.records) == 0 {
		delete(h.byName, name)
	}
	h.known--
	first.forgotten = true
	if first.number+maxRecent <= h.last {
		h.drop(first)
	} else {
		h.loose = append(h.loose, first)
	}
}

// forget forgets what is beyond the limits.
func (h *history) forget(now time.Time) {
	n := max(0, len(h.records)-maxTotal)
	for n < len(h.records) && now.Sub(h.records[n].at) > maxAge {
		n++
	}
	clear(h.records[:n])
	h.records = h.records[n:]
	for len(h.loose) > 0 && (h.bytes > maxBytes || h.loose[0].events == nil) {
		h.drop(h.loose[0])
		h.loose[0] = nil
		h.loose = h.loose[1:]
	}
	for len(h.told) > 0 {
		r := h.told[0]
		if r.events != nil && h.known <= maxTotal && h.bytes <= maxBytes && now.Sub(r.at) <= maxAge {
			break
		}
		if !r.forgotten { // it is the first of its name, because both lists are in order
			h.begin = r.at
			h.forgetFirst(r.name)
		}
		h.drop(r)
		h.told[0] = nil
		h.told = h.told[1:]
	}
	if len(h.told) > 2*h.known+maxPerName+maxRecent {
		h.told = slices.DeleteFunc(h.told, func(r *record) bool { return r.events == nil })
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
	if of := h.byName[name]; of != nil {
		for _, r := range of.records {
			events = append(events, r.events...)
		}
	}
	return events
}
