// Package delivery passes the standings of one entry on to its owner.
//
// A store learns of a standing from several sources: the reply to its own request, an event, a reading. The owner gets
//
//   - each standing once: one that is equal to the last is not passed on;
//   - no step back: an entry that was admitted does not wait again, and nothing follows the standing that it is gone;
//   - nothing before the delivery begins, because Enqueue may still fail, and then the last standing of that time first;
//   - nothing after the owner has been silenced, because it has withdrawn the entry.
//
// A Delivery has no mutex of its own. The store guards it with the one that guards the entry, which is held while the owner
// is called: that keeps the calls in order, one at a time. So the owner must not call the store.
package delivery

import "github.com/stilelock/stile/store"

// Delivery is what the owner of one entry has been told. The zero Delivery has nobody to tell; use [New].
type Delivery struct {
	notify   func(store.Standing)
	last     store.Standing
	known    bool // last is set
	begun    bool
	silenced bool
}

// New returns a delivery to notify, which may be nil. It has not begun.
func New(notify func(store.Standing)) Delivery { return Delivery{notify: notify} }

// Begin begins to call the owner: now, if a standing is known already.
func (d *Delivery) Begin() {
	d.begun = true
	if d.known {
		d.call()
	}
}

// Deliver takes in a standing, and reports whether it is news. If it is, and the delivery has begun, the owner is called.
func (d *Delivery) Deliver(now store.Standing) bool {
	if d.silenced || d.known && (now.State < d.last.State || now.State == d.last.State && now.Ahead == d.last.Ahead) {
		return false
	}
	d.last, d.known = now, true
	if d.begun {
		d.call()
	}
	return true
}

func (d *Delivery) call() {
	if d.notify != nil && !d.silenced {
		d.notify(d.last)
	}
}

// Silence makes this the end: no standing is taken in or passed on any more.
func (d *Delivery) Silence() { d.silenced = true }

// Last returns the last standing that was news, and whether there has been one. If there was none it is that of an entry
// that waits.
func (d *Delivery) Last() (last store.Standing, known bool) { return d.last, d.known }

// Waiting reports whether the owner awaits the entry's turn: the delivery has begun, and not ended with another standing.
func (d *Delivery) Waiting() bool { return d.begun && !d.silenced && d.last.State == store.Waiting }

// Admitted reports whether the last standing was that it is the entry's turn.
func (d *Delivery) Admitted() bool { return d.last.State == store.Admitted }

// Over reports whether there is nothing more to deliver: the owner was silenced, or the entry is gone.
func (d *Delivery) Over() bool { return d.silenced || d.last.State == store.Gone }
