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

// clients are the modules that talk to the servers of the stores, and the stores that need them, by store.
var clients = map[string][]string{
	stile + "/store/etcdstore":    {stile + "/store/etcdstore", "go.etcd.io/...", "google.golang.org/grpc"},
	stile + "/store/redisstore":   {stile + "/store/redisstore", "github.com/redis/..."},
	stile + "/store/redlockstore": {stile + "/store/redlockstore", "github.com/redis/..."},
	stile + "/store/zkstore":      {stile + "/store/zkstore", "github.com/go-zookeeper/..."},
}

// The library's module and its tests require golang.org/x/sys, and nothing else: what it requires is a lower bound for the
// versions of every program that uses Stile.
func TestModules_LibraryRequiresOnlySys(t *testing.T) {
	readEverything(t)
	want := []string{stile, "golang.org/x/sys"}
	if got := allModules(t, repository(t)); !slices.Equal(got, want) {
		t.Errorf("the library's module needs the modules %q, want %q", got, want)
	}
}

// A program downloads no client but that of its own store.
func TestModules_ProgramGetsOneClient(t *testing.T) {
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
			// It adds to go.mod what go mod tidy would, but for the tests of others.
			goTool(t, dir, "list", "-mod=mod", "-deps", ".")
			all := allModules(t, dir)
			if !slices.Contains(all, used) {
				t.Errorf("the program does not need %s, but %q: this shows nothing", used, all)
			}
			for other, never := range clients {
				for _, path := range all {
					if matches(path, never) && !matches(path, clients[used]) {
						t.Errorf("a program that uses %s only needs the module %s, which is for %s", used, path, other)
					}
				}
			}
		})
	}
}

// What several modules require they require in the same version: it is compiled once for all of them, and tested as the
// command has it. tools/etcd is the etcd that the command contains.
func TestModules_AgreeOnVersions(t *testing.T) {
	root := repository(t)
	type requirement struct{ version, by string }
	first := map[string]requirement{}
	for _, dir := range append(workspace(t, root), "tools/etcd") {
		for path, version := range requirements(t, filepath.Join(root, dir)) {
			if other, seen := first[path]; !seen {
				first[path] = requirement{version, dir}
			} else if other.version != version {
				t.Errorf("%s requires %s %s, and %s requires %s: in %[1]s, go get %[2]s@%[5]s, or the other way round",
					dir, path, version, other.by, other.version)
			}
		}
	}
	if len(first) < 20 {
		t.Errorf("only %d modules are required: the files are not read as they are written", len(first))
	}
}

// No module is left out of make test and make check.
func TestModules_AreAllChecked(t *testing.T) {
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
			t.Fatalf("the Makefile has no %s", name)
		}
		return strings.Fields(found[1])
	}
	modules, beside := list("MODULES"), list("BESIDE")
	all := slices.Concat(modules, beside)
	slices.Sort(all)
	if want := workspace(t, root); !slices.Equal(all, want) {
		t.Errorf("the Makefile's MODULES and BESIDE are %q, but go.work has %q", all, want)
	}
	var tested []string
	for _, line := range regexp.MustCompile(`(?m)^\ttest_modules (.*) >>"\$events" &$`).FindAllStringSubmatch(read("tools/test-events"), -1) {
		tested = append(tested, strings.Fields(line[1])...)
	}
	slices.Sort(tested)
	slices.Sort(modules)
	if !slices.Equal(tested, modules) {
		t.Errorf("tools/test-events tests %q, but the Makefile's MODULES are %q", tested, modules)
	}
}

// repository returns the top of the repository.
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

// requirements returns the versions that the module in a folder requires, by module.
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

// readJSON reads what the go command says of a file. It opens the file itself too, so that go test knows that the result
// depends on it.
func readJSON(t *testing.T, file string, to any, args ...string) {
	t.Helper()
	if _, err := os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(goTool(t, filepath.Dir(file), append(args, file)...)), to); err != nil {
		t.Fatal(err)
	}
}

// allModules returns the modules that may be needed by the module in a folder and by its tests.
func allModules(t *testing.T, dir string) []string {
	t.Helper()
	return strings.Fields(goTool(t, dir, "list", "-m", "-f", "{{.Path}}", "all"))
}

// goTool runs the go command in a folder, without the workspace.
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
