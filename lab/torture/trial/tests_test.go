//go:build linux

package trial

import (
	"testing"

	"github.com/stilelock/stile/lab/torture/mutant"
)

// The tests of a package catch the mutants that no run can show, and find nothing without them.
func TestRunTests_mutants(t *testing.T) {
	for _, m := range mutant.All() {
		if m.Package == "" {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			if caught, err := RunTests(t.Context(), m, t.TempDir()); !caught || err != nil {
				t.Errorf("got caught %t, %v, want true", caught, err)
			}
			m.Edits = nil
			if caught, err := RunTests(t.Context(), m, t.TempDir()); caught || err != nil {
				t.Errorf("without the mutant: got caught %t, %v, want false", caught, err)
			}
		})
	}
}
