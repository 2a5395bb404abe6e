package arrows

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A rule says what some packages may use, themselves or through others. Packages are named by import path; a path
// that ends with /... stands for everything below it, too.
type rule struct {
	who, except []string // the packages that the rule is about
	only        []string // beside the standard library they use nothing but this; nil: anything
	never       []string // they do not use this
	most        int      // but so many of it
	why         string
}

// A graph has the packages that are built, by import path.
type graph map[string]node

type node struct {
	standard bool // part of the standard library
	imports  []string
}

// matches reports whether path is one of the patterns, or below one that ends with /...
func matches(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		root, below := strings.CutSuffix(pattern, "/...")
		return path == root || below && strings.HasPrefix(path, root+"/")
	})
}

// check returns how the packages break the rule. That the rule is about nobody counts as breaking it: most likely a
// package has been renamed.
func (r rule) check(g graph) (broken []string) {
	about := 0
	for _, path := range sortedKeys(g) {
		if !matches(path, r.who) || matches(path, r.except) {
			continue
		}
		about++
		chains := g.uses(path)
		var seen []string
		for _, used := range sortedKeys(chains) {
			outside := r.only != nil && !g[used].standard && !matches(used, r.only)
			if used != path && (outside || matches(used, r.never)) {
				seen = append(seen, used)
			}
		}
		if len(seen) <= r.most {
			continue
		}
		for _, used := range seen {
			between := chains[used][1 : len(chains[used])-1]
			if slices.ContainsFunc(between, func(b string) bool { return slices.Contains(seen, b) }) {
				continue // it comes with another that is reported
			}
			broken = append(broken, fmt.Sprintf("%s must not use %s (%s): %s",
				path, used, strings.Join(chains[used], " -> "), r.why))
		}
	}
	if about == 0 {
		broken = append(broken, fmt.Sprintf("there is no package %s: the rule about it protects nothing",
			strings.Join(r.who, ", ")))
	}
	return broken
}

// uses returns everything that the package at path uses, each with a shortest chain of imports that leads there.
func (g graph) uses(path string) map[string][]string {
	chains := map[string][]string{path: {path}}
	for queue := []string{path}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		for _, to := range g[from].imports {
			if chains[to] == nil {
				chains[to] = append(slices.Clone(chains[from]), to)
				queue = append(queue, to)
			}
		}
	}
	return chains
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func TestArrows(t *testing.T) {
	readEverything(t)
	for _, system := range []string{"linux", "darwin", "windows"} {
		t.Run(system, func(t *testing.T) {
			g := list(t, system)
			for _, r := range rules {
				for _, b := range r.check(g) {
					t.Error(b)
				}
			}
		})
	}
}

// readEverything reads the repository's directories, so that go test knows that the result depends on them and does
// not take it from its cache when an import has changed.
func readEverything(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../..", func(_ string, d os.DirEntry, err error) error {
		if name := d.Name(); err == nil && d.IsDir() && (name == ".git" || name == ".bin") {
			return filepath.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// list asks the go command for all packages of the workspace, and all that they use, on the given system.
func list(t *testing.T, system string) graph {
	t.Helper()
	work, err := filepath.Abs("../../go.work")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-f", `{{.ImportPath}} {{.Standard}}{{range .Imports}} {{.}}{{end}}`, "work")
	cmd.Dir, cmd.Stderr = filepath.Dir(work), os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK="+work, "GOOS="+system, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	g := graph{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		g[fields[0]] = node{standard: fields[1] == "true", imports: fields[2:]}
	}
	return g
}

func TestRulesAreChecked(t *testing.T) {
	g := graph{
		"fmt":        {standard: true, imports: []string{"unsafe"}},
		"unsafe":     {standard: true},
		"x/pure":     {imports: []string{"fmt"}},
		"x/contract": {imports: []string{"fmt", "x/pure"}},
		"x/one":      {imports: []string{"x/contract", "y/client"}},
		"x/two":      {imports: []string{"x/contract"}},
		"x/all":      {imports: []string{"x/one", "x/two"}},
		"y/client":   {imports: []string{"y/client/deep"}},
		// client/deep is used by nobody but client.
		"y/client/deep": {imports: []string{"fmt"}},
		"y/clients":     {},
	}
	for _, c := range []struct {
		name string
		rule rule
		want []string
	}{
		{"pure is pure", rule{who: []string{"x/pure"}, only: []string{}}, nil},
		{
			"only, directly",
			rule{who: []string{"x/contract"}, only: []string{}, why: "because"},
			[]string{"x/contract must not use x/pure (x/contract -> x/pure): because"},
		},
		{"only, allowed", rule{who: []string{"x/contract"}, only: []string{"x/pure"}}, nil},
		{
			"only, through others",
			rule{who: []string{"x/two"}, only: []string{"x/contract"}, why: "because"},
			[]string{"x/two must not use x/pure (x/two -> x/contract -> x/pure): because"},
		},
		{
			"never, through others, where it begins",
			rule{who: []string{"x/all"}, never: []string{"y/client/..."}, why: "because"},
			[]string{"x/all must not use y/client (x/all -> x/one -> y/client): because"},
		},
		{
			"never, below the pattern",
			rule{who: []string{"x/one"}, never: []string{"y/client/deep/..."}, why: "because"},
			[]string{"x/one must not use y/client/deep (x/one -> y/client -> y/client/deep): because"},
		},
		{"never, exactly", rule{who: []string{"x/pure"}, never: []string{"y/client"}}, nil},
		{"a package may be what others may not use", rule{who: []string{"x/two"}, never: []string{"x/two"}}, nil},
		{
			"everybody but",
			rule{who: []string{"x/..."}, except: []string{"x/all"}, never: []string{"y/client"}, why: "because"},
			[]string{"x/one must not use y/client (x/one -> y/client): because"},
		},
		{
			"one at most",
			rule{who: []string{"x/..."}, never: []string{"x/one", "x/two"}, most: 1, why: "because"},
			[]string{
				"x/all must not use x/one (x/all -> x/one): because",
				"x/all must not use x/two (x/all -> x/two): because",
			},
		},
		{
			"a rule about nobody",
			rule{who: []string{"x/tow"}, only: []string{}},
			[]string{"there is no package x/tow: the rule about it protects nothing"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.rule.check(g); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}
