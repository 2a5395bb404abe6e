// Package delivery delivers the standings of one entry to its owner.
//
// A store learns of a standing from several sources: the reply to its own request, an event, a
// reading. The owner gets
//
//   - each standing once: one that equals the last is not delivered;
//   - no step back: an admitted entry does not wait again, and nothing follows the standing that it
//     is gone;
//   - nothing before [Delivery.Begin], because Enqueue may still fail, and then the last standing
//     known by that time;
//   - nothing after [Delivery.Silence], because the owner has withdrawn the entry.
//
// A Delivery has no mutex. The store guards it with the mutex of the entry, which is held while the
// owner is called, so that the calls are in order and one at a time. The owner must therefore not
// call the store.
package delivery

import "github.com/stilelock/stile/store"

// Delivery delivers the standings of one entry to one owner. The zero Delivery has no owner; use
// [New].
type Delivery struct {
	notify   func(store.Standing)
	last     store.Standing
	known    bool // last is set
	begun    bool
	silenced bool
}

// New returns a Delivery that calls notify, which may be nil. It calls nothing before
// [Delivery.Begin].
func New(notify func(store.Standing)) Delivery { return Delivery{notify: notify} }

// Begin enables the calls of the owner. If a standing is known it is delivered at once.
func (d *Delivery) Begin() {
	d.begun = true
	if d.known {
		d.call()
	}
}

// Deliver records a standing, and reports whether it is new. If it is, and [Delivery.Begin] has
// been called, the owner is called.
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

// Silence ends the delivery: no further standing is recorded or delivered.
func (d *Delivery) Silence() { d.silenced = true }

// Last returns the last new standing. known is false if there was none; the standing is then that
// of a waiting entry.
func (d *Delivery) Last() (last store.Standing, known bool) { return d.last, d.known }

// Waiting reports whether the delivery has begun and not ended, and the entry's last standing is
// that it waits.
func (d *Delivery) Waiting() bool { return d.begun && !d.silenced && d.last.State == store.Waiting }

// Admitted reports whether the last standing is that the entry is admitted.
func (d *Delivery) Admitted() bool { return d.last.State == store.Admitted }

// Over reports whether nothing more will be delivered: the owner was silenced, or the entry is
// gone.
func (d *Delivery) Over() bool { return d.silenced || d.last.State == store.Gone }
