package observe

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile"
)

// Blame says for how long others waited while an owner held a lock.
type Blame struct {
	Name string
	// Holder is the owner of the latest hold, without what belongs to that hold alone. Holds of a name
	// count together if host, user, command and reason are the same.
	Holder stile.Owner
	// Waited is the sum over all waiters. Several holders share it equally.
	Waited time.Duration
	// Waiters and Holds are how many of them there were.
	Waiters, Holds int
}

// Blame charges the waiting of the last hour to the holders at that time, the largest sum first. Waiting for a
// free lock is charged to no holder. Waiting is known from since on; for a name with more changes than are kept
// it is known from later on.
func (o *Observer) Blame() (since time.Time, blame []Blame) {
	now := time.Now()
	o.mu.Lock()
	since = latest(now.Add(-maxAge), o.began, o.history.begin)
	var all []story
	for name := range o.history.byName {
		if o.waitedLocked(name) {
			all = append(all, o.storyLocked(name, since))
		}
	}
	for name, f := range o.lines {
		if o.history.byName[name] == nil && len(f.line.Waiters) > 0 {
			all = append(all, o.storyLocked(name, since))
		}
	}
	o.mu.Unlock()
	for _, s := range all {
		blame = append(blame, s.blame(now)...)
	}
	slices.SortFunc(blame, func(a, b Blame) int {
		return cmp.Or(cmp.Compare(b.Waited, a.Waited), strings.Compare(a.Name, b.Name), strings.Compare(a.Holder.String(), b.Holder.String()))
	})
	return since, blame
}

// waitedLocked reports whether there may have been a waiter in a line with a history.
func (o *Observer) waitedLocked(name string) bool {
	if f := o.lines[name]; f != nil && len(f.line.Waiters) > 0 {
		return true
	}
	for _, r := range o.history.byName[name] {
		for i := range r.events {
			if e := &r.events[i]; e.What == Waits || e.What == Left || e.What == Holds && e.known {
				return true
			}
		}
	}
	return false
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// story is what is known about a line from begin on: what happened, and its present state.
type story struct {
	name   string
	begin  time.Time
	events [][]Event // of each update
	line   stile.Line
}

func (o *Observer) storyLocked(name string, begin time.Time) story {
	s := story{name: name, begin: begin, line: NoEntries(name)}
	for _, r := range o.history.byName[name] {
		s.events = append(s.events, r.events)
	}
	if f := o.lines[name]; f != nil {
		s.line = f.line
	}
	if of := o.history.byName[name]; len(of) == maxPerName { // earlier events may be forgotten
		s.begin = latest(begin, of[0].at)
	}
	return s
}

// span is a time in which an entry waited or held.
type span struct {
	entry    *stile.Entry
	holds    bool
	from, to time.Time
}

// spans returns the spans of all entries.
func (s story) spans(now time.Time) (all []span) {
	open := make(map[identity]*span)
	take := func(e *stile.Entry) *span {
		p := place{entry: e}
		for _, id := range []identity{p.identity(), p.identityWithoutToken()} { // a store may assign tokens late
			if o := open[id]; o != nil {
				delete(open, id)
				return o
			}
		}
		return nil
	}
	// end ends the span of an entry. If its begin was not seen, it is known from how long it lasted, or it is
	// before everything else.
	end := func(e *stile.Entry, holds bool, at time.Time, lasted time.Duration) {
		sp := take(e)
		switch {
		case sp != nil:
		case lasted > 0:
			sp = &span{from: at.Add(-lasted)}
		default:
			sp = &span{from: s.begin}
		}
		sp.entry, sp.holds, sp.from, sp.to = e, holds, latest(sp.from, s.begin), at
		if sp.from.Before(sp.to) {
			all = append(all, *sp)
		}
	}
	for _, update := range s.events {
		for i := range update {
			e := &update[i]
			id := place{entry: &e.Entry}.identity()
			switch e.What {
			case Waits:
				open[id] = &span{from: e.Time}
			case Holds:
				if e.known {
					end(&e.Entry, false, e.Time, e.Waited)
				}
				open[id] = &span{from: e.Time}
			case Ended:
				end(&e.Entry, true, e.Time, e.Held)
			case Left:
				end(&e.Entry, false, e.Time, e.Waited)
			}
		}
	}
	for _, p := range places(s.line) {
		end(p.entry, p.holds, now, 0)
	}
	return all
}

// charge is the account of the holds that count together.
type charge struct {
	Blame
	waiters map[int]bool // indices of spans
}

// blame charges each moment of waiting to the holders at that moment.
func (s story) blame(now time.Time) (blame []Blame) {
	spans := s.spans(now)
	type change struct {
		at    time.Time
		begin bool
		span  int
	}
	var changes []change
	for i, sp := range spans {
		changes = append(changes, change{sp.from, true, i}, change{sp.to, false, i})
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		if order := a.at.Compare(b.at); order != 0 || a.begin == b.begin {
			return order
		}
		if b.begin { // ends first: a hold that begins as a wait ends has not caused it
			return -1
		}
		return 1
	})
	charges := make(map[account]*charge)
	holding, waiting := make(map[int]*charge), make(map[int]bool)
	var before time.Time
	for _, c := range changes {
		if lasted := c.at.Sub(before); len(holding) > 0 && len(waiting) > 0 {
			share := lasted * time.Duration(len(waiting)) / time.Duration(len(holding))
			for _, h := range holding {
				h.Waited += share
			}
		}
		before = c.at
		sp := spans[c.span]
		switch {
		case !c.begin:
			delete(holding, c.span)
			delete(waiting, c.span)
		case sp.holds:
			h := charges[accountOf(sp.entry.Owner)]
			if h == nil {
				h = &charge{Blame{Name: s.name}, make(map[int]bool)}
				charges[accountOf(sp.entry.Owner)] = h
			}
			h.Holder = ownerOnly(sp.entry.Owner)
			h.Holds++
			holding[c.span] = h
			for w := range waiting {
				h.waiters[w] = true
			}
		default:
			waiting[c.span] = true
			for _, h := range holding {
				h.waiters[c.span] = true
			}
		}
	}
	for _, c := range charges {
		if c.Waited > 0 {
			c.Blame.Waiters = len(c.waiters)
			blame = append(blame, c.Blame)
		}
	}
	return blame
}

// account is what holds that count together have in common.
type account struct{ host, user, command, reason string }

func accountOf(o stile.Owner) account { return account{o.Host, o.User, o.Command, o.Reason} }

// ownerOnly returns an owner without what belongs to one of its holds.
func ownerOnly(o stile.Owner) stile.Owner {
	o.Since, o.Obtained, o.Waits, o.Under = time.Time{}, time.Time{}, nil, nil
	return o
}
