package observe

import (
	"cmp"
	"time"

	"github.com/stilelock/stile"
)

// Hooks are functions that an observer calls, for metrics. Any of them may be nil. They must return soon.
type Hooks struct {
	// Changed is called with each change of a line that has events: the line before and after it. It is
	// called once for each change, with all its events, and must not call the observer.
	Changed func(before, now stile.Line, events []Event)
	// Reading is called after each reading of the store, also by several goroutines at once.
	Reading func(Reading)
}

// SetHooks sets the functions that the observer calls. It must be called before Run.
func (o *Observer) SetHooks(h Hooks) { o.hooks = h }

// A Reading is a request for lines to the store, or for several lines some requests at a time.
type Reading struct {
	What string        // ReadAll, ReadChanged or ReadLease; empty if it has failed
	Took time.Duration // zero if it has failed
	Err  error         // nil if it has succeeded
}

// What was read.
const (
	ReadAll     = "all"     // all lines
	ReadChanged = "changed" // the lines that have changed
	ReadLease   = "lease"   // one line, for the time that its sessions have left
)

func readingOf(c stile.Change) string {
	if c.All {
		return ReadAll
	}
	return ReadChanged
}

func (o *Observer) reportReading(what string, began time.Time, err error) {
	if o.hooks.Reading == nil {
		return
	}
	if err != nil {
		o.hooks.Reading(Reading{Err: err})
		return
	}
	o.hooks.Reading(Reading{What: what, Took: time.Since(began)})
}

// An EntryState is what the observer knows about an entry of a line now.
type EntryState struct {
	Name  string
	Holds bool // it was admitted
	// For is how long it has waited, or held if Holds is true. It is counted from when that was first
	// seen, so it is too short for an entry that was there before the observer.
	For time.Duration
	// Remaining is how long its session will live unless it has been renewed since it was last read; zero
	// if the store does not tell, and at least one nanosecond otherwise.
	Remaining time.Duration
}

// EachEntry calls f for each entry of each line. The entries of one line follow each other. f must not
// call the observer.
func (o *Observer) EachEntry(f func(EntryState)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for name, followed := range o.lines {
		holders := len(followed.line.Holders)
		for i := range followed.line.Holders {
			began := cmp.Or(followed.entries[i].admitted, o.began)
			left := o.leases.remaining(followed.line.Holders[i].Session, now)
			f(EntryState{Name: name, Holds: true, For: now.Sub(began), Remaining: left})
		}
		for i := range followed.line.Waiters {
			began := cmp.Or(followed.entries[holders+i].joined, o.began)
			left := o.leases.remaining(followed.line.Waiters[i].Session, now)
			f(EntryState{Name: name, For: now.Sub(began), Remaining: left})
		}
	}
}
