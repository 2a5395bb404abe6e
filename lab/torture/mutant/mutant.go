// Package mutant breaks Stile on purpose, one rule at a time. A harness proves nothing by finding
// no violation in Stile until it has found those of the mutants.
//
// A mutant is a few edits of Stile's source. They exist only in the build of one run: the go
// command reads the edited files instead of the real ones.
package mutant

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Mutant is Stile with one rule broken.
type Mutant struct {
	// Name is its name in a target: "stile+Name@cluster".
	Name string
	// Breaks says which rule of Stile it breaks, and how.
	Breaks string
	// Edits are the changes of the source.
	Edits []Edit
	// Cluster, Workload and Faults are those under which it is caught.
	Cluster, Workload, Faults string
	// Linger is Options.Linger of the clients.
	Linger time.Duration
	// CaughtBy are the names of the rules of package verdict that catch it: at least one of them
	// must be found broken.
	CaughtBy []string
	// Package and Tests are set, and Cluster to CaughtBy are not, if a run cannot show the bug: tests of this
	// package, whose names match Tests, catch it. The package is a folder of the repository.
	Package, Tests string
}

// Edit replaces a text that occurs exactly once in a file.
type Edit struct {
	File     string // the path in the repository
	Old, New string
}

// ByName returns the mutant with that name.
func ByName(name string) (Mutant, error) {
	all := All()
	i := slices.IndexFunc(all, func(m Mutant) bool { return m.Name == name })
	if i < 0 {
		names := make([]string, len(all))
		for i, m := range all {
			names[i] = m.Name
		}
		return Mutant{}, fmt.Errorf("unknown mutant %q: the mutants are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// Overlay writes the edited files and an overlay file for the go command to dir, and returns the
// path of the overlay file, for the flag -overlay. The source of Stile is at root. An edit whose
// old text does not occur exactly once is an error.
func (m Mutant) Overlay(root, dir string) (string, error) {
	edited := map[string]string{} // the new contents by path
	for _, e := range m.Edits {
		path := filepath.Join(root, e.File)
		text, found := edited[path]
		if !found {
			b, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return "", fmt.Errorf("mutant %s: the text to replace occurs %d times in %s, want once: %s", m.Name, n, e.File, e.Old)
		}
		edited[path] = strings.Replace(text, e.Old, e.New, 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for path, text := range edited {
		name := filepath.Join(dir, fmt.Sprintf("%s-%d-%s", m.Name, len(overlay.Replace), filepath.Base(path)))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[path] = name
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, m.Name+".json")
	return list, os.WriteFile(list, b, 0o600)
}
