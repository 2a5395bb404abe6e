// Package mutant breaks Stile on purpose, one rule at a time. A harness that does not find what is wrong with these need not
// be believed when it finds nothing wrong with Stile.
//
// A mutant is a few edits of Stile's source, which exist only in what is built for a run: the go command is told to read
// the edited files in the place of the real ones.
package mutant

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Mutant is Stile with one rule broken.
type Mutant struct {
	// Name is what it is called in a target: "stile+Name@cluster".
	Name string
	// Breaks says which rule it breaks, in words.
	Breaks string
	// Edits break it.
	Edits []Edit
	// Cluster, Workload and Faults are those under which it is caught.
	Cluster, Workload, Faults string
	// CaughtBy are the names of the rules of package verdict by which it is: at least one of them must be found broken.
	CaughtBy []string
}

// Edit replaces a text in a file, which has it exactly once.
type Edit struct {
	File     string // relative to the repository
	Old, New string
}

// ByName returns the mutant of a name.
func ByName(name string) (Mutant, error) {
	all := All()
	i := slices.IndexFunc(all, func(m Mutant) bool { return m.Name == name })
	if i < 0 {
		names := make([]string, len(all))
		for i, m := range all {
			names[i] = m.Name
		}
		return Mutant{}, fmt.Errorf("no mutant is called %q: there are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// Overlay writes what the go command has to be told to build the mutant, in dir, and returns the path to give to -overlay.
// The source of Stile is at root. An edit that does not fit the source any more is an error.
func (m Mutant) Overlay(root, dir string) (string, error) {
	edited := map[string]string{} // contents by path
	for _, e := range m.Edits {
		path := filepath.Join(root, e.File)
		text, begun := edited[path]
		if !begun {
			b, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return "", fmt.Errorf("mutant %s: %s has %d times, and not once: %s", m.Name, e.File, n, e.Old)
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
