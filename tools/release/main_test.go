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

// A workshop is where a release is used as users do.
type workshop struct {
	version, proxy, bin string
	env                 []string
}

// newWorkshop releases what is committed, into a proxy that is all that the go command may ask. The modules of others come
// from the module cache: those that build the command and the stores have been downloaded. Ours would be in the way of what is
// released next, so the version is like no other, and is removed when the test ends.
func newWorkshop(t *testing.T) *workshop {
	w := &workshop{
		version: fmt.Sprintf("v0.0.0-check.%d", time.Now().UnixNano()), proxy: t.TempDir(), bin: t.TempDir(),
	}
	w.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOPROXY=file://"+filepath.ToSlash(w.proxy), "GOSUMDB=off",
		"GOPRIVATE=", "GONOPROXY=", "GOBIN="+w.bin)
	var said strings.Builder
	r := release{repo: ".", version: w.version, proxy: w.proxy, out: &said}
	if err := r.run(modules(t), false); err != nil {
		t.Fatal(err)
	}
	if want := "storeurl/" + w.version + " cmd/stile/" + w.version + "\n"; !strings.HasSuffix(said.String(), want) {
		t.Errorf("it says\n%s\nwant tags that end with %s", &said, want)
	}
	t.Cleanup(func() { w.forget(t) })
	return w
}

// modules returns the folders of the modules that the Makefile releases.
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

// run runs a program in a directory, and returns what it prints.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var failure strings.Builder
	cmd.Dir, cmd.Env, cmd.Stderr = dir, env, &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &failure)
	}
	return strings.TrimSpace(string(out))
}

// forget removes the release from the module cache.
func (w *workshop) forget(t *testing.T) {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output() // the test's context has ended
	if err != nil {
		t.Error(err)
		return
	}
	cache := strings.TrimSpace(string(out))
	for _, pattern := range []string{"", "/*", "/*/*"} {
		for _, path := range []string{
			filepath.Join(cache, stile+pattern+"@"+w.version),
			filepath.Join(cache, "cache/download", stile+pattern, "@v", w.version+".*"),
			filepath.Join(cache, "cache/download", stile+pattern, "@v", "list"), // the go command writes it again
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
	w := newWorkshop(t)
	t.Run("the command installs", func(t *testing.T) { installCommand(t, w) })
	t.Run("a program with locks in Redis builds", func(t *testing.T) { buildRedisProgram(t, w) })
}

func installCommand(t *testing.T, w *workshop) {
	run(t, t.TempDir(), w.env, "go", "install", stile+"/cmd/stile@"+w.version)
	if said := run(t, t.TempDir(), w.env, filepath.Join(w.bin, "stile"), "version"); !strings.HasPrefix(said, "stile "+w.version+" ") {
		t.Errorf("the command says that it is %q, want %s", said, w.version)
	}

	// A clone of the tag builds too: the checksums of our own modules are in go.sum.
	dir := filepath.Join(t.TempDir(), "stile")
	m := module.Version{Path: stile + "/cmd/stile", Version: w.version}
	if err := zip.Unzip(dir, m, filepath.Join(w.proxy, m.Path, "@v", w.version+".zip")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, w.env, "go", "list", "-mod=readonly", "-deps", ".")
	if _, err := os.Stat(filepath.Join(dir, "LICENSE")); err != nil {
		t.Errorf("the module of the command has no license: %v", err)
	}
}

func buildRedisProgram(t *testing.T, w *workshop) {
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
	for _, ours := range []string{stile, stile + "/store/redisstore"} {
		if !slices.Contains(all, ours+" "+w.version) {
			t.Errorf("the program needs %q, want %s %s among it", all, ours, w.version)
		}
	}
	for _, m := range all {
		if strings.Contains(m, "etcd") || strings.Contains(m, "zookeeper") {
			t.Errorf("a program with locks in Redis needs %s", m)
		}
	}
}

// With -tag there is a commit that has a tag for every module, and the checkout is as it was.
func TestRelease_Tags(t *testing.T) {
	repo := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		return run(t, repo, nil, "git", args...)
	}
	here := release{repo: ".", clone: repo}
	if err := here.checkOut(); err != nil {
		t.Fatal(err)
	}
	git("config", "user.name", "Somebody")
	git("config", "user.email", "somebody@example.com")
	head := git("rev-parse", "HEAD")
	r := release{repo: repo, version: "v0.9.0-test", proxy: t.TempDir(), out: t.Output()}
	if err := r.run(modules(t), true); err != nil {
		t.Fatal(err)
	}
	if now := git("rev-parse", "HEAD"); now != head || git("status", "--porcelain") != "" {
		t.Errorf("the checkout was at %s, and is at %s:\n%s", head, now, git("status"))
	}
	commit := git("rev-parse", "v0.9.0-test^{commit}")
	if parent := git("rev-parse", commit+"^"); parent != head {
		t.Errorf("the release is made of %s, want %s", parent, head)
	}
	for _, dir := range modules(t) {
		tag := strings.TrimPrefix(dir+"/", "./") + "v0.9.0-test"
		if at := git("rev-parse", tag+"^{commit}"); at != commit {
			t.Errorf("%s is a tag of %s, want %s", tag, at, commit)
		}
		if mod := git("show", tag+":"+filepath.Join(dir, "go.mod")); strings.Contains(mod, "replace") {
			t.Errorf("%s replaces:\n%s", tag, mod)
		}
	}
	if err := r.run(modules(t), true); err == nil || !strings.Contains(err.Error(), "there is a tag") {
		t.Errorf("a second release of the same version: %v", err)
	}
}
