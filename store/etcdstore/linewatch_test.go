package etcdstore

import (
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/delivery"
)

// A silent watch makes its line be read. The delay doubles with each read that finds nothing new, up to 32 intervals.
func TestLineWatch_recheckDelay(t *testing.T) {
	t.Parallel()
	w := &lineWatch{session: &session{store: &Store{times: times{recheckInterval: time.Second}}}}
	for emptyReads, want := range []time.Duration{1, 2, 4, 8, 16, 32, 32, 32} {
		w.emptyReads = emptyReads
		if got := w.recheckDelay(); got != want*time.Second {
			t.Errorf("after %d empty reads: got the delay %v, want %v", emptyReads, got, want*time.Second)
		}
	}
}

// A shared entry that is overwritten counts as exclusive, because its mode is unknown. An entry
// admitted beside it stays admitted.
func TestLineWatch_admittedStaysAdmitted(t *testing.T) {
	me := line.Entry{ID: "me", Order: 2, Mode: line.Shared}
	for _, ahead := range []line.Mode{line.Shared, line.Exclusive} {
		var delivered []store.Standing
		e := &entry{
			order:    me.Order,
			tracker:  line.NewTracker(me, []line.Entry{{ID: "other", Order: 1, Mode: ahead}}),
			delivery: delivery.New(func(st store.Standing) { delivered = append(delivered, st) }),
		}
		e.delivery.Deliver(store.Standing{State: store.Admitted, Order: me.Order})
		e.delivery.Begin()
		delivered = nil
		new(lineWatch).deliverLocked(e)
		if len(delivered) > 0 {
			t.Errorf("%v entry ahead: got standings %+v, want none", ahead, delivered)
		}
	}
}
