//go:build linux

package guards_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stilelock/stile/lab/guards"
	"github.com/stilelock/stile/lab/torture/mutant"
)

// TestPauses_catchesMutants breaks a rule of each guard. What TestPauses reports means nothing unless it
// finds that out.
func TestPauses_catchesMutants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	caught := map[string]bool{} // kinds
	for _, m := range mutant.Guards() {
		t.Run(m.Name, func(t *testing.T) {
			dir := t.TempDir()
			overlay, err := m.Overlay(root, dir)
			if err != nil {
				t.Fatal(err)
			}
			writer, err := buildWriter(filepath.Join(dir, "writer"), "-overlay", overlay)
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range guards.Kinds() {
				if !strings.HasPrefix(kind.Name, m.Cluster) {
					continue
				}
				what, sum := "", tally{}
				for range 10 { // some show only if a holder is stopped within a part of its write
					if sum.add(torment(t, kind, writer, 30, 30)); len(sum.violations) > 0 {
						what = sum.violations[0]
						break
					}
				}
				t.Logf("%s: breaks %s: after %d pauses: %s", kind.Name, m.Breaks, sum.pauses, what)
				if what == "" {
					t.Errorf("%s: not caught in %d pauses", kind.Name, sum.pauses)
				}
				caught[kind.Name] = true
			}
		})
	}
	for _, kind := range guards.Kinds() {
		if !caught[kind.Name] {
			t.Errorf("no mutant breaks %s", kind.Name)
		}
	}
}
