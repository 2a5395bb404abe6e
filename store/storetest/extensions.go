package storetest

import (
	"testing"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

func extensions(s suite) {
	s.test("tickets have what the capabilities say and nothing else", func(t *testing.T, w *world) {
		if w.caps.ClearMarks != nil && !w.caps.Fencing {
			t.Error("the store keeps markers and has no orders: by what are markers known?")
		}
		name := w.name("lock")
		held, other := w.openKept().hold(name, line.Exclusive), w.openKept().enqueue(name, line.Exclusive)
		withdrawn := w.openKept().hold(w.name("other"), line.Exclusive)
		withdrawn.withdraw()
		for _, p := range []*place{held, other, withdrawn} {
			agree(t, w.caps, p.ticket.Extensions())
		}
	})
}

// agree checks that each function of a ticket is there if the capabilities say so, and otherwise is not.
func agree(t *testing.T, caps store.Capabilities, e store.Extensions) {
	t.Helper()
	for _, f := range []struct {
		function, capability string
		is, should           bool
	}{
		{"WithdrawAfter", "ReleaseAfter", e.WithdrawAfter != nil, caps.ReleaseAfter},
		{"Mark", "ClearMarks", e.Mark != nil, caps.ClearMarks != nil},
		{"SetOwner", "OwnerUpdates", e.SetOwner != nil, caps.OwnerUpdates},
		{"NotifyContended", "Contention", e.NotifyContended != nil, caps.Contention},
	} {
		if f.is != f.should {
			t.Errorf("tickets have %s: %v; the capabilities say %s: %v", f.function, f.is, f.capability, f.should)
		}
	}
}
