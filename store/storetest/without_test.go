package storetest

import (
	"context"
	"slices"
	"testing"

	"github.com/stilelock/stile/store"
)

// A store that loses an ability loses the tests of it, and a store that gains one is to be tested.
func TestWithoutIsExactlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	all := store.Capabilities{
		Fair: true, SharedModes: true, Fencing: true, ReleaseAfter: true, OwnerUpdates: true, Contention: true,
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
		{"what is missing is named", Harness{Without: []Ability{Markers, Cut}}, lesser, 0},
		{"a capability is missing", Harness{Cut: cut}, lesser, 1},
		{"Cut is missing", Harness{}, all, 1},
		{"a capability is named that is there", Harness{Cut: cut, Without: []Ability{Fair}}, all, 1},
		{"Cut is named and there", Harness{Cut: cut, Without: []Ability{Cut}}, all, 1},
		{"only a test can tell about the orders of waiters", Harness{Cut: cut, Without: []Ability{WaitersOrders}}, all, 0},
		{"an ability is named that the suite does not know", Harness{Cut: cut, Without: []Ability{"flying"}}, all, 1},
	} {
		if wrong := c.h.undeclared(c.caps); len(wrong) != c.wrong {
			t.Errorf("%s: found wrong %q, want %d things", c.what, wrong, c.wrong)
		}
	}
	if s := (suite{h: Harness{}, caps: lesser}); s.needs(Fair, Fencing).leftOut || !s.needs(Fair, Markers).leftOut ||
		!slices.Contains(s.h.missing(lesser), Cut) {
		t.Error("the tests that are left out are not those that need what is missing")
	}
}
