package etcdstore

import (
	"strconv"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/delivery"
)

// A silent watch makes its line be read. The delay doubles with each read that finds nothing new,
// and is shorter the fewer entries are ahead.
func TestLineWatch_recheckDelay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		ahead      []int // of each entry of this session in the line
		emptyReads int
		want       time.Duration
	}{
		{[]int{1}, 0, 1 * time.Second},
		{[]int{1}, 1, 2 * time.Second},
		{[]int{1}, 2, 4 * time.Second},
		{[]int{1}, 3, 4 * time.Second},
		{[]int{1}, 1000, 4 * time.Second},
		{[]int{3}, 3, 8 * time.Second},
		{[]int{3}, 1000, 12 * time.Second},
		{[]int{1000}, 0, 1 * time.Second},
		{[]int{1000}, 1000, 32 * time.Second},
		{[]int{7, 2, 9}, 1000, 8 * time.Second},
		{[]int{0}, 0, 1 * time.Second}, // it holds the lock, and no entry of the session waits
		{nil, 0, 1 * time.Second},
	} {
		w := &lineWatch{session: &session{store: &Store{times: times{recheckInterval: time.Second}}}, emptyReads: tt.emptyReads, mine: make(map[*entry]struct{})}
		for _, n := range tt.ahead {
			w.mine[standingEntry(n)] = struct{}{}
		}
		w.mine[&entry{state: joining}] = struct{}{} // its place is not known yet
		if got := w.recheckDelay(); got != tt.want {
			t.Errorf("entries ahead %v, %d empty reads: got delay %v, want %v", tt.ahead, tt.emptyReads, got, tt.want)
		}
	}
}

func standingEntry(n int) *entry {
	var others []line.Entry
	for i := range n {
		others = append(others, line.Entry{ID: strconv.Itoa(i), Order: uint64(i + 1)})
	}
	return &entry{state: inLine, tracker: line.NewTracker(line.Entry{ID: "me", Order: uint64(n + 1)}, others)}
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
