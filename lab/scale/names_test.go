//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Every store lists its names, with Client.Lines and with the command.
func TestNames(t *testing.T) {
	program := filepath.Join(t.TempDir(), "stile")
	if out, err := exec.Command("go", "build", "-C", "../../cmd/stile", "-buildvcs=false", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build stile: %v\n%s", err, out)
	}
	t.Run("stores", func(t *testing.T) { // which end before the program is removed
		for _, store := range stores {
			t.Run(store, func(t *testing.T) {
				t.Parallel()
				for _, r := range measureOne(t, "-store", store, "-measure", "names", "-n", "30", "-stile", program) {
					n := r.Names
					if n.Lines <= 0 {
						t.Errorf("%v: got %+v", r, n)
					}
					if (store == memoryStore) != (n.Ls == nil) {
						t.Errorf("%v: got %+v of the command", r, n.Ls)
					}
					if l := n.Ls; l != nil && (l.Name <= 0 || l.Name > l.Took || l.Memory <= 0 || l.CPU <= 0) {
						t.Errorf("%v: got %+v of the command", r, l)
					}
				}
			})
		}
	})
}
