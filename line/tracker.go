package line

// A Tracker follows one entry while the entries ahead of it leave or are downgraded. A store that learns
// about a line through events has one Tracker for each of its own entries. The Tracker relies on the rule
// that entries join only at the end of a line, so the set of entries ahead can only shrink.
//
// A Tracker is not safe for concurrent use.
type Tracker struct {
	me    Entry
	limit int
	ahead map[string]Entry
}

// NewTracker returns a tracker of the entry me. It keeps those of the other entries that are ahead
// of me, and ignores the rest.
func NewTracker(me Entry, others []Entry) *Tracker {
	p := &Tracker{me: me}
	p.Reread(others)
	return p
}

// Left records that the entry with the given ID has left the line; at is the store's order at that
// moment. It reports whether that entry was ahead. An entry with the same ID whose order is not smaller
// than at joined later, and is kept.
func (p *Tracker) Left(id string, at uint64) bool {
	e, ok := p.ahead[id]
	if !ok || at <= e.Order {
		return false
	}
	delete(p.ahead, id)
	return true
}

// Downgraded records that the entry with the given ID and order has become [Shared]. It reports whether
// that entry was ahead and was not known to be shared. A downgrade is final, so reports of it may be
// repeated and late. Another entry with the same ID, which has another order, is not changed.
func (p *Tracker) Downgraded(id string, order uint64) bool {
	e, ok := p.ahead[id]
	if !ok || e.Order != order || e.Mode == Shared {
		return false
	}
	e.Mode = Shared
	p.ahead[id] = e
	return true
}

// Reread replaces the known line with a complete and newer reading of it.
func (p *Tracker) Reread(others []Entry) {
	p.ahead = nil // most entries have none ahead
	for _, e := range others {
		if e.ID != p.me.ID && e.Before(p.me) {
			if p.ahead == nil {
				p.ahead = make(map[string]Entry, len(others))
			}
			p.ahead[e.ID] = e
		}
	}
}

// SetLimit sets the operator's limit of the line; see [Mode.Within].
func (p *Tracker) SetLimit(limit int) { p.limit = limit }

// Entry returns the tracked entry.
func (p *Tracker) Entry() Entry { return p.me }

// Blocking returns how many entries must leave before the tracked entry is admitted; zero if it is
// admitted.
func (p *Tracker) Blocking() int {
	if p.me.Mode == Exclusive {
		return len(p.ahead)
	}
	modes := make([]Mode, 0, len(p.ahead))
	for _, e := range p.ahead {
		modes = append(modes, e.Mode)
	}
	return Blocking(p.me.Mode.Within(p.limit), modes)
}

// Admitted reports whether the tracked entry is admitted.
func (p *Tracker) Admitted() bool { return p.Blocking() == 0 }
