package storetest

import (
	"context"
	"slices"
	"testing"

	"github.com/stilelock/stile/store"
)

// A store that loses an ability must not silently lose its tests, and a store that gains one must
// be tested for it.
func TestHarness_withoutMustBeExact(t *testing.T) {
	t.Parallel()
	all := store.Capabilities{
		Fair: true, SharedModes: true, Fencing: true, ReleaseAfter: true, OwnerUpdates: true, Downgrades: true, Contention: true, SlotNumbers: true,
		Requeue:    true,
		EnqueueAll: func(context.Context, store.Session, []store.Request) ([]store.Ticket, error) { return nil, nil },
		Record:     func(context.Context, string) ([]byte, error) { return nil, nil },
		Follow:     func(context.Context, string, func(store.Changes)) error { return nil },
		SetLimit:   func(context.Context, string, int) error { return nil },
		ClearMarks: func(context.Context, string, []uint64) error { return nil },
	}
	lesser := all
	lesser.ClearMarks = nil
	cut := func(*testing.T, store.Store, string) func() { return nil }
	for _, c := range []struct {
		what  string
		h     Harness
		caps  store.Capabilities
		wrong int
	}{
		{"nothing is missing", Harness{Cut: cut}, all, 0},
		{"the missing abilities are listed", Harness{Without: []Ability{Markers, Cut}}, lesser, 0},
		{"a capability is missing", Harness{Cut: cut}, lesser, 1},
		{"Cut is missing", Harness{}, all, 1},
		{"a present capability is listed", Harness{Cut: cut, Without: []Ability{Fair}}, all, 1},
		{"Cut is present and listed", Harness{Cut: cut, Without: []Ability{Cut}}, all, 1},
		{"WaitersOrders is not in the capabilities", Harness{Cut: cut, Without: []Ability{WaitersOrders}}, all, 0},
		{"an unknown ability is listed", Harness{Cut: cut, Without: []Ability{"flying"}}, all, 1},
	} {
		if wrong := c.h.undeclared(c.caps); len(wrong) != c.wrong {
			t.Errorf("%s: got the differences %q, want %d", c.what, wrong, c.wrong)
		}
	}
	if s := (suite{h: Harness{}, caps: lesser}); s.needs(Fair, Fencing).leftOut || !s.needs(Fair, Markers).leftOut ||
		!slices.Contains(s.h.missing(lesser), Cut) {
		t.Error("needs: tests are not left out exactly if they need a missing ability")
	}
}
