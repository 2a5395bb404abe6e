package line

// Tracker follows one entry from the middle of its line to the front. A store that learns of a line by events
// keeps one for each entry of its own and tells it what it hears; the place says whose turn it is.
//
// What it relies on: entries join at the end only, so the set of entries ahead can only shrink.
//
// A Tracker is not safe for concurrent use.
type Tracker struct {
	me    Entry
	ahead map[string]Entry
}

// NewTracker returns the place of me behind those of the others that are ahead of it; the rest, and me itself,
// are ignored.
func NewTracker(me Entry, others []Entry) *Tracker {
	p := &Tracker{me: me}
	p.Reread(others)
	return p
}

// Left tells the place that the entry named id left the line at the given point of the store's order, and
// reports whether that entry had been ahead. An entry that joined under the same id at a later point is
// another one, and stays.
func (p *Tracker) Left(id string, at uint64) bool {
	e, ok := p.ahead[id]
	if !ok || at <= e.Order {
		return false
	}
	delete(p.ahead, id)
	return true
}

// Reread replaces what is known of the line by a complete and newer reading of it.
func (p *Tracker) Reread(others []Entry) {
	p.ahead = make(map[string]Entry, len(others))
	for _, e := range others {
		if e.ID != p.me.ID && e.Before(p.me) {
			p.ahead[e.ID] = e
		}
	}
}

// Entry returns the entry whose place this is.
func (p *Tracker) Entry() Entry { return p.me }

// Blocking says how many entries must leave before this one is admitted; zero means that it is its turn.
func (p *Tracker) Blocking() int {
	if p.me.Mode == Exclusive {
		return len(p.ahead)
	}
	modes := make([]Mode, 0, len(p.ahead))
	for _, e := range p.ahead {
		modes = append(modes, e.Mode)
	}
	return Blocking(p.me.Mode, modes)
}

// Admitted reports whether it is the entry's turn.
func (p *Tracker) Admitted() bool { return p.Blocking() == 0 }
