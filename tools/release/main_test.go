package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const stile = "github.com/stilelock/stile"

// A sandbox has a release and the environment of a user that installs it.
type sandbox struct {
	version, proxy, bin string
	env                 []string
}

// newSandbox releases the last commit into a proxy, which is the only one that the go command may
// use. Modules of others come from the module cache, which has them because the command and the
// stores were built. The released modules are cached too. So that they do not mask the next
// release, the version is unique, and is removed from the cache when the test ends.
func newSandbox(t *testing.T) *sandbox {
	w := &sandbox{
		version: fmt.Sprintf("v0.0.0-check.%d", time.Now().UnixNano()), proxy: t.TempDir(), bin: t.TempDir(),
	}
	w.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOPROXY=file://"+filepath.ToSlash(w.proxy), "GOSUMDB=off",
		"GOPRIVATE=", "GONOPROXY=", "GOBIN="+w.bin)
	var out strings.Builder
	r := release{repo: ".", version: w.version, proxy: w.proxy, out: &out}
	if err := r.run(modules(t), false); err != nil {
		t.Fatal(err)
	}
	if want := "storeurl/" + w.version + " cmd/stile/" + w.version + "\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got output\n%s\nwant tags that end with %s", &out, want)
	}
	t.Cleanup(func() { w.removeFromCache(t) })
	return w
}

// modules returns the directories of the modules that the Makefile releases.
func modules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\nMODULES := ")
	line, _, _ := strings.Cut(after, "\n")
	if !found {
		t.Fatal("the Makefile has no MODULES")
	}
	return strings.Fields(line)
}

// run runs a program in a directory and returns its output, trimmed.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr strings.Builder
	cmd.Dir, cmd.Env, cmd.Stderr = dir, env, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// removeFromCache removes the release from the module cache.
func (w *sandbox) removeFromCache(t *testing.T) {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output() // without the test's context, which has ended
	if err != nil {
		t.Error(err)
		return
	}
	cache := strings.TrimSpace(string(out))
	for _, pattern := range []string{"", "/*", "/*/*"} {
		for _, path := range []string{
			filepath.Join(cache, stile+pattern+"@"+w.version),
			filepath.Join(cache, "cache/download", stile+pattern, "@v", w.version+".*"),
			filepath.Join(cache, "cache/download", stile+pattern, "@v", "list"), // the go command recreates it
		} {
			found, err := filepath.Glob(path)
			if err != nil {
				t.Error(err)
			}
			for _, f := range found {
				if err := os.RemoveAll(f); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func TestRelease(t *testing.T) {
	w := newSandbox(t)
	t.Run("install the command", func(t *testing.T) { installCommand(t, w) })
	t.Run("build a program with the Redis store", func(t *testing.T) { buildRedisProgram(t, w) })
}

func installCommand(t *testing.T, w *sandbox) {
	run(t, t.TempDir(), w.env, "go", "install", stile+"/cmd/stile@"+w.version)
	if out := run(t, t.TempDir(), w.env, filepath.Join(w.bin, "stile"), "version"); !strings.HasPrefix(out, "stile "+w.version+" ") {
		t.Errorf("stile version: got %q, want %s", out, w.version)
	}

	// The module builds from a clone of its tag too: its go.sum has the checksums of Stile's other
	// modules.
	dir := filepath.Join(t.TempDir(), "stile")
	m := module.Version{Path: stile + "/cmd/stile", Version: w.version}
	if err := zip.Unzip(dir, m, filepath.Join(w.proxy, m.Path, "@v", w.version+".zip")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, w.env, "go", "list", "-mod=readonly", "-deps", ".")
	if _, err := os.Stat(filepath.Join(dir, "LICENSE")); err != nil {
		t.Errorf("the module of the command has no LICENSE: %v", err)
	}
}

func buildRedisProgram(t *testing.T, w *sandbox) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": "package main\n\nimport (\n\t\"" + stile + "\"\n\t\"" + stile + "/store/redisstore\"\n)\n\n" +
			"var _, _ = stile.New, redisstore.New\n\nfunc main() {}\n",
		"go.mod": "module example.com/program\n\ngo 1.26.0\n\nrequire " + stile + "/store/redisstore " + w.version + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, w.env, "go", "build", "-mod=mod", ".")
	all := strings.Split(run(t, dir, w.env, "go", "list", "-m", "all"), "\n")
	for _, path := range []string{stile, stile + "/store/redisstore"} {
		if !slices.Contains(all, path+" "+w.version) {
			t.Errorf("got modules %q, want %s %s among them", all, path, w.version)
		}
	}
	for _, m := range all {
		if strings.Contains(m, "etcd") || strings.Contains(m, "zookeeper") {
			t.Errorf("a program with the Redis store depends on %s", m)
		}
	}
}

// With -tag there is one commit with a tag for every module, and the checkout is unchanged.
func TestRelease_tags(t *testing.T) {
	repo := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		return run(t, repo, nil, "git", args...)
	}
	source := release{repo: ".", clone: repo}
	if err := source.checkOut(); err != nil {
		t.Fatal(err)
	}
	git("config", "user.name", "Test")
	git("config", "user.email", "somebody@example.com")
	head := git("rev-parse", "HEAD")
	r := release{repo: repo, version: "v0.9.0-test", proxy: t.TempDir(), out: t.Output()}
	if err := r.run(modules(t), true); err != nil {
		t.Fatal(err)
	}
	if now := git("rev-parse", "HEAD"); now != head || git("status", "--porcelain") != "" {
		t.Errorf("got HEAD %s, want %s, and no changes:\n%s", now, head, git("status"))
	}
	commit := git("rev-parse", "v0.9.0-test^{commit}")
	if parent := git("rev-parse", commit+"^"); parent != head {
		t.Errorf("got a release of commit %s, want %s", parent, head)
	}
	for _, dir := range modules(t) {
		tag := strings.TrimPrefix(dir+"/", "./") + "v0.9.0-test"
		if at := git("rev-parse", tag+"^{commit}"); at != commit {
			t.Errorf("tag %s: got commit %s, want %s", tag, at, commit)
		}
		if mod := git("show", tag+":"+filepath.Join(dir, "go.mod")); strings.Contains(mod, "replace") {
			t.Errorf("tag %s: go.mod has a replacement:\n%s", tag, mod)
		}
	}
	if err := r.run(modules(t), true); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("second release of the same version: got %v, want an error", err)
	}
}
