package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const (
	stile   = "github.com/stilelock/stile"
	version = "v0.0.0-check"
)

var amd64 = platform{"linux", "amd64"}

// newRelease releases the last commit, with packages for one platform.
func newRelease(t *testing.T) *release {
	t.Helper()
	var out strings.Builder
	r := &release{repo: ".", version: version, dir: t.TempDir(), platforms: []platform{amd64}, out: &out}
	if err := r.run(modules(t), false); err != nil {
		t.Fatal(err)
	}
	if want := "storeurl/" + version + " cmd/stile/" + version + "\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got output\n%s\nwant tags that end with %s", &out, want)
	}
	return r
}

// path returns the path of a package.
func (r *release) path(name string) string { return filepath.Join(r.dir, r.version, name) }

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
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// need skips the test if a program is missing or this machine cannot run the packages.
func need(t *testing.T, programs ...string) {
	t.Helper()
	missing := ""
	if runtime.GOOS != amd64.os || runtime.GOARCH != amd64.arch {
		missing = amd64.String()
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = p
		}
	}
	switch {
	case missing == "":
	case slices.Contains(strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ","), "all"):
		t.Fatalf("this test needs %s; run `make servers`", missing)
	default:
		t.Skipf("SKIPPED: this test needs %s; run `make servers`", missing)
	}
}

func TestRelease(t *testing.T) {
	need(t)
	r := newRelease(t)
	t.Run("again", func(t *testing.T) { releaseAgain(t, r) })
	t.Run("checksums", func(t *testing.T) {
		need(t, "sha256sum")
		run(t, filepath.Join(r.dir, version), nil, "sha256sum", "--check", "--strict", "SHA256SUMS")
	})
	t.Run("a program with the Redis store", func(t *testing.T) { buildRedisProgram(t, r) })
	t.Run("a clone of the command's tag", func(t *testing.T) { checkClone(t, r) })
	t.Run("archive", func(t *testing.T) { checkArchive(t, r) })
	t.Run("contents", func(t *testing.T) { checkContents(t, r) })
	t.Run("deb", func(t *testing.T) { checkDeb(t, r) })
	t.Run("image", func(t *testing.T) { checkImage(t, r) })
}

// A second release has the same bytes, although it is made in other directories, with other
// permissions, and in another time zone and language.
func releaseAgain(t *testing.T, first *release) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("TZ", "Asia/Kathmandu")
	t.Setenv("LC_ALL", "tr_TR.UTF-8")
	t.Setenv("GOFLAGS", "-buildvcs=false -tags=other")
	defer syscall.Umask(syscall.Umask(0o077))
	again := newRelease(t)
	var names []string
	err := filepath.WalkDir(first.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(first.dir, path)
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"proxy/" + command + "/@v/" + version + ".zip", version + "/stile_0.0.0-check_amd64.deb"} {
		if !slices.Contains(names, filepath.FromSlash(want)) {
			t.Errorf("got files %q, want %s among them", names, want)
		}
	}
	for _, name := range names {
		a, err1 := os.ReadFile(filepath.Join(first.dir, name))
		b, err2 := os.ReadFile(filepath.Join(again.dir, name))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: the two releases differ: %d and %d bytes; %v, %v", name, len(a), len(b), err1, err2)
		}
	}
}

// A user's program depends on the modules of its store and on no other store's.
func buildRedisProgram(t *testing.T, r *release) {
	b := newTestBuilder(t, r)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": "package main\n\nimport (\n\t\"" + stile + "\"\n\t\"" + stile + "/store/redisstore\"\n)\n\n" +
			"var _, _ = stile.New, redisstore.New\n\nfunc main() {}\n",
		"go.mod": "module example.com/program\n\ngo 1.26.0\n\nrequire " + stile + "/store/redisstore " + version + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, b.env, "go", "build", "-trimpath", "-mod=mod", ".") // -trimpath as in the packages, to reuse what was compiled
	all := strings.Split(run(t, dir, b.env, "go", "list", "-m", "all"), "\n")
	for _, path := range []string{stile, stile + "/store/redisstore"} {
		if !slices.Contains(all, path+" "+version) {
			t.Errorf("got modules %q, want %s %s among them", all, path, version)
		}
	}
	for _, m := range all {
		if strings.Contains(m, "etcd") || strings.Contains(m, "zookeeper") {
			t.Errorf("a program with the Redis store depends on %s", m)
		}
	}
}

// newTestBuilder returns a builder that needs only the release and the module cache, which has the
// modules of others because they were used to build the packages.
func newTestBuilder(t *testing.T, r *release) *builder {
	t.Helper()
	t.Setenv("GOPROXY", "off")
	b, err := newBuilder(r.proxy(), version)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// The module of the command builds from a clone of its tag too: its go.sum has the checksums of
// Stile's other modules.
func checkClone(t *testing.T, r *release) {
	dir := filepath.Join(t.TempDir(), "stile")
	m := module.Version{Path: command, Version: version}
	if err := zip.Unzip(dir, m, filepath.Join(r.proxy(), m.Path, "@v", version+".zip")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, newTestBuilder(t, r).env, "go", "list", "-mod=readonly", "-deps", ".")
	if _, err := os.Stat(filepath.Join(dir, "LICENSE")); err != nil {
		t.Errorf("the module of the command has no LICENSE: %v", err)
	}
}

// checkProgram checks that a program is static, and of the released version.
func checkProgram(t *testing.T, path string) {
	t.Helper()
	if out := run(t, t.TempDir(), []string{"HOME=" + t.TempDir()}, path, "version"); !strings.HasPrefix(out, "stile "+version+" ") {
		t.Errorf("%s version: got %q, want %s", path, out, version)
	}
	if out, err := exec.Command("ldd", path).CombinedOutput(); err == nil {
		t.Errorf("%s is linked to libraries:\n%s", path, out)
	}
}

func checkArchive(t *testing.T, r *release) {
	need(t, "tar", "ldd")
	dir := t.TempDir()
	base := fmt.Sprintf("stile_0.0.0-check_%s", amd64)
	run(t, dir, nil, "tar", "-xzf", r.path(base+".tar.gz"))
	for _, name := range []string{
		"stile", "LICENSE", "LICENSES-OF-MODULES", "CHANGELOG.md", "man/man1/stile.1", "man/man1/stile-run.1",
		"completions/bash/stile", "completions/zsh/_stile", "completions/fish/stile.fish",
	} {
		if info, err := os.Stat(filepath.Join(dir, base, name)); err != nil || info.Size() == 0 {
			t.Errorf("the archive has no %s: %v", name, err)
		}
	}
	checkProgram(t, filepath.Join(dir, base, "stile"))
	licenses, err := os.ReadFile(filepath.Join(dir, base, "LICENSES-OF-MODULES"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"==== Go: LICENSE ====", "==== go.uber.org/zap v"} {
		if !strings.Contains(string(licenses), name) {
			t.Errorf("LICENSES-OF-MODULES has no %q", name)
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
	r := release{repo: repo, version: "v0.9.0-test", dir: t.TempDir(), out: t.Output()}
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
	r.version = "v0.8765.0"
	if err := r.run(modules(t), true); err == nil || !strings.Contains(err.Error(), "CHANGELOG.md has no section") {
		t.Errorf("release of a version that the changelog does not have: got %v, want an error", err)
	}
	if tags := git("tag", "--list", "*0.8765.0"); tags != "" {
		t.Errorf("a refused release has set tags: %s", tags)
	}
}
