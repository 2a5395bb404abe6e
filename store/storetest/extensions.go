package storetest

import (
	"maps"
	"slices"
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func extensions(s suite) {
	s.test("tickets have exactly the extensions that the capabilities report", func(t *testing.T, w *testEnv) {
		if w.caps.ClearMarks != nil && !w.caps.Fencing {
			t.Error("the store has ClearMarks but not Fencing; markers are identified by orders")
		}
		if w.caps.Downgrades && !w.caps.SharedModes {
			t.Error("the store has Downgrades but not SharedModes; a downgraded entry is shared")
		}
		if w.caps.SlotNumbers && !(w.caps.SharedModes && w.caps.Fencing) {
			t.Error("the store has SlotNumbers but not SharedModes and Fencing")
		}
		if w.caps.SetLimit != nil && !w.caps.SharedModes {
			t.Error("the store has SetLimit but not SharedModes")
		}
		name := w.name("lock")
		held, other := w.openKept().hold(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		withdrawn := w.openKept().hold(w.name("other"), line.Exclusive)
		withdrawn.withdraw()
		keys := map[string]bool{}
		for _, p := range []*entry{held, other, withdrawn} {
			checkExtensions(t, w.caps, p.ticket.Extensions())
			keys[p.ticket.Extensions().Key] = true
		}
		if n := len(keys); n != 3 && !keys[""] || n != 1 && keys[""] {
			t.Errorf("the keys of three tickets: got %v, want three keys or none", slices.Collect(maps.Keys(keys)))
		}
	})
}

// checkExtensions checks that each function of a ticket is set if and only if its capability is.
func checkExtensions(t *testing.T, caps store.Capabilities, e store.Extensions) {
	t.Helper()
	for _, f := range []struct {
		function, capability string
		set, want            bool
	}{
		{"WithdrawAfter", "ReleaseAfter", e.WithdrawAfter != nil, caps.ReleaseAfter},
		{"Mark", "ClearMarks", e.Mark != nil, caps.ClearMarks != nil},
		{"SetOwner", "OwnerUpdates", e.SetOwner != nil, caps.OwnerUpdates},
		{"Downgrade", "Downgrades", e.Downgrade != nil, caps.Downgrades},
		{"NotifyContended", "Contention", e.NotifyContended != nil, caps.Contention},
		{"Requeue", "Requeue", e.Requeue != nil, caps.Requeue},
		{"SetRecord", "Record", e.SetRecord != nil, caps.Record != nil},
		{"ClaimNumber", "SlotNumbers", e.ClaimNumber != nil, caps.SlotNumbers},
	} {
		if f.set != f.want {
			t.Errorf("tickets have %s: %v; the store has the capability %s: %v; want the same", f.function, f.set, f.capability, f.want)
		}
	}
}
