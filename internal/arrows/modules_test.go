package arrows

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// clients maps each store to the modules that only it, or a store with the same client, may
// require.
var clients = map[string][]string{
	stile + "/store/etcdstore":    {stile + "/store/etcdstore", "go.etcd.io/...", "google.golang.org/grpc"},
	stile + "/store/redisstore":   {stile + "/store/redisstore", "github.com/redis/..."},
	stile + "/store/redlockstore": {stile + "/store/redlockstore", "github.com/redis/..."},
	stile + "/store/zkstore":      {stile + "/store/zkstore", "github.com/go-zookeeper/..."},
}

// The library's module and its tests require only golang.org/x/sys, because its requirements are
// lower bounds for every program that uses Stile.
func TestModules_libraryRequiresOnlySys(t *testing.T) {
	readEverything(t)
	want := []string{stile, "golang.org/x/sys"}
	if got := allModules(t, repository(t)); !slices.Equal(got, want) {
		t.Errorf("the library's module requires %q, want %q", got, want)
	}
}

// A program that uses a store downloads only the client of that store.
func TestModules_programGetsOneClient(t *testing.T) {
	readEverything(t)
	root := repository(t)
	for used := range clients {
		t.Run(filepath.Base(used), func(t *testing.T) {
			sum, err := os.ReadFile(filepath.Join(root, strings.TrimPrefix(used, stile), "go.sum"))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			const version = "v0.0.0-00010101000000-000000000000"
			for name, text := range map[string]string{
				"main.go": fmt.Sprintf("package main\n\nimport _ %q\n\nfunc main() {}\n", used),
				"go.sum":  string(sum),
				"go.mod": fmt.Sprintf("module example.com/program\n\ngo 1.26.0\n\nrequire (\n%s %s\n%s %s\n)\n\nreplace (\n%s => %s\n%s => %s\n)\n",
					stile, version, used, version, stile, root, used, filepath.Join(root, strings.TrimPrefix(used, stile))),
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			// Adds to go.mod what go mod tidy would, without the tests of dependencies.
			goTool(t, dir, "list", "-mod=mod", "-deps", ".")
			all := allModules(t, dir)
			if !slices.Contains(all, used) {
				t.Errorf("the program does not require %s but %q, so this test is inconclusive", used, all)
			}
			for other, forbidden := range clients {
				for _, path := range all {
					if matches(path, forbidden) && !matches(path, clients[used]) {
						t.Errorf("a program that uses only %s requires the module %s, which belongs to %s", used, path, other)
					}
				}
			}
		})
	}
}

// Modules that share a dependency require the same version, so that it is compiled once and each
// module is tested with the version in the command. tools/etcd is the etcd that the command
// contains.
func TestModules_agreeOnVersions(t *testing.T) {
	root := repository(t)
	type requirement struct{ version, by string }
	first := map[string]requirement{}
	for _, dir := range append(workspace(t, root), "tools/etcd") {
		for path, version := range requirements(t, filepath.Join(root, dir)) {
			if other, seen := first[path]; !seen {
				first[path] = requirement{version, dir}
			} else if other.version != version {
				t.Errorf("%s requires %s %s, and %s requires %s: run go get %[2]s@%[5]s in %[1]s, or update the other",
					dir, path, version, other.by, other.version)
			}
		}
	}
	if len(first) < 20 {
		t.Errorf("got only %d required modules; the files are not parsed correctly", len(first))
	}
}

// make test and make check include every module.
func TestModules_allAreChecked(t *testing.T) {
	root := repository(t)
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	list := func(name string) []string {
		found := regexp.MustCompile(`(?m)^` + name + ` +:= (.*)$`).FindStringSubmatch(read("Makefile"))
		if found == nil {
			t.Fatalf("the Makefile does not define %s", name)
		}
		return strings.Fields(found[1])
	}
	modules, beside := list("MODULES"), list("BESIDE")
	all := slices.Concat(modules, beside)
	slices.Sort(all)
	if want := workspace(t, root); !slices.Equal(all, want) {
		t.Errorf("the Makefile's MODULES and BESIDE are %q, want %q as in go.work", all, want)
	}
	var tested []string
	for _, line := range regexp.MustCompile(`(?m)^\t+test_modules (.*) (?:>>"\$events" &|\|\| status=1)$`).FindAllStringSubmatch(read("tools/test-events"), -1) {
		tested = append(tested, strings.Fields(line[1])...)
	}
	slices.Sort(tested)
	slices.Sort(modules)
	if !slices.Equal(tested, modules) {
		t.Errorf("tools/test-events tests %q, want %q as in the Makefile's MODULES", tested, modules)
	}
}

// repository returns the root of the repository.
func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// workspace returns the folders of the modules in go.work, sorted.
func workspace(t *testing.T, root string) []string {
	t.Helper()
	var work struct{ Use []struct{ DiskPath string } }
	readJSON(t, filepath.Join(root, "go.work"), &work, "work", "edit", "-json")
	var dirs []string
	for _, use := range work.Use {
		dirs = append(dirs, filepath.Clean(use.DiskPath))
	}
	slices.Sort(dirs)
	return dirs
}

// requirements returns the required version of each module in the go.mod of dir.
func requirements(t *testing.T, dir string) map[string]string {
	t.Helper()
	var mod struct {
		Require []struct{ Path, Version string }
	}
	readJSON(t, filepath.Join(dir, "go.mod"), &mod, "mod", "edit", "-json")
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Path] = r.Version
	}
	return versions
}

// readJSON decodes the go command's JSON output for a file. It also opens the file, so that go test
// includes the file in its cache key.
func readJSON(t *testing.T, file string, to any, args ...string) {
	t.Helper()
	if _, err := os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(goTool(t, filepath.Dir(file), append(args, file)...)), to); err != nil {
		t.Fatal(err)
	}
}

// allModules returns all modules in the build list of the module in dir.
func allModules(t *testing.T, dir string) []string {
	t.Helper()
	return strings.Fields(goTool(t, dir, "list", "-m", "-f", "{{.Path}}", "all"))
}

// goTool runs the go command in dir, without the workspace.
func goTool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s in %s: %v", cmd, dir, err)
	}
	return string(out)
}
