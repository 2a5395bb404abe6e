package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// releasedModule is one module of the release.
type releasedModule struct {
	dir  string // in the repository, with slashes; "" is the root
	path string
	file *modfile.File
	sums []string // its lines for go.sum; set by pack
}

// tag returns the git tag of the module's version.
func (m *releasedModule) tag(version string) string {
	if m.dir == "" {
		return version
	}
	return m.dir + "/" + version
}

// checkOut makes the clone, which shares the repository's objects. It does not use git clone, which
// refuses a repository that belongs to another user, as a checkout in CI may.
func (r *release) checkOut() error {
	objects, err := git(r.repo, "rev-parse", "--path-format=absolute", "--git-path", "objects")
	if err != nil {
		return err
	}
	head, err := git(r.repo, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if _, err := git(r.clone, "init", "-q"); err != nil {
		return err
	}
	alternates := filepath.Join(r.clone, ".git", "objects", "info", "alternates")
	if err := os.WriteFile(alternates, []byte(objects+"\n"), 0o600); err != nil {
		return err
	}
	_, err = git(r.clone, "reset", "-q", "--hard", head)
	return err
}

// read parses the modules' go.mod files.
func (r *release) read(dirs []string) error {
	r.modules = make(map[string]*releasedModule)
	for _, dir := range dirs {
		m := &releasedModule{dir: strings.TrimPrefix(filepath.ToSlash(filepath.Clean(dir)), ".")}
		name := filepath.Join(r.clone, m.dir, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if m.file, err = modfile.Parse(name, text, nil); err != nil {
			return err
		}
		m.path = m.file.Module.Mod.Path
		r.modules[m.path] = m
	}
	return nil
}

// order sorts the modules so that each comes after the modules it requires, because its go.sum has
// their checksums.
func (r *release) order() ([]*releasedModule, error) {
	var order []*releasedModule
	remaining := slices.Sorted(maps.Keys(r.modules))
	for len(remaining) > 0 {
		i := slices.IndexFunc(remaining, func(path string) bool {
			return !slices.ContainsFunc(r.modules[path].file.Require, func(q *modfile.Require) bool {
				return slices.Contains(remaining, q.Mod.Path)
			})
		})
		if i < 0 {
			return nil, fmt.Errorf("modules require each other in a cycle: %q", remaining)
		}
		order = append(order, r.modules[remaining[i]])
		remaining = slices.Delete(remaining, i, i+1)
	}
	return order, nil
}

// pack writes the module's go.mod and go.sum for the release, and adds the module to the proxy.
func (r *release) pack(m *releasedModule) error {
	mod, err := r.pin(m)
	if err != nil {
		return err
	}
	if _, err := git(r.clone, "add", "--all"); err != nil {
		return err
	}
	tree, err := git(r.clone, "write-tree")
	if err != nil {
		return err
	}
	committed, err := git(r.clone, "show", "-s", "--format=%cI")
	if err != nil {
		return err
	}
	escaped, err := module.EscapePath(m.path)
	if err != nil {
		return err
	}
	dir := filepath.Join(r.proxy(), filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := zip.CreateFromVCS(&packed, module.Version{Path: m.path, Version: r.version}, r.clone, tree, m.dir); err != nil {
		return err
	}
	base := filepath.Join(dir, r.version)
	for name, text := range map[string][]byte{
		base + ".zip":  packed.Bytes(),
		base + ".mod":  mod,
		base + ".info": fmt.Appendf(nil, "{\"Version\": %q, \"Time\": %q}\n", r.version, committed),
	} {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	if err := writeList(dir); err != nil {
		return err
	}
	zipHash, err := dirhash.HashZip(base+".zip", dirhash.Hash1)
	if err != nil {
		return err
	}
	modHash, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(mod)), nil
	})
	if err != nil {
		return err
	}
	m.sums = []string{
		fmt.Sprintf("%s %s %s", m.path, r.version, zipHash),
		fmt.Sprintf("%s %s/go.mod %s", m.path, r.version, modHash),
	}
	return nil
}

// writeList writes the proxy's list of a module's versions.
func writeList(dir string) error {
	infos, err := filepath.Glob(filepath.Join(dir, "*.info"))
	if err != nil {
		return err
	}
	var versions strings.Builder
	for _, name := range infos {
		fmt.Fprintln(&versions, strings.TrimSuffix(filepath.Base(name), ".info"))
	}
	return os.WriteFile(filepath.Join(dir, "list"), []byte(versions.String()), 0o644)
}

// pin makes the module require the other modules in the released version. It returns the new
// go.mod.
func (r *release) pin(m *releasedModule) ([]byte, error) {
	var sums []string
	for _, q := range m.file.Require {
		other := r.modules[q.Mod.Path]
		if other == nil {
			continue
		}
		if err := errors.Join(m.file.AddRequire(other.path, r.version), m.file.DropReplace(other.path, "")); err != nil {
			return nil, err
		}
		sums = append(sums, other.sums...)
	}
	for _, other := range m.file.Replace {
		if other.Old.Path != "" { // a dropped replacement is empty
			return nil, fmt.Errorf("go.mod replaces %s: the go command could not install it", other.Old.Path)
		}
	}
	m.file.Cleanup()
	mod, err := m.file.Format()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(r.clone, m.dir, "go.mod"), mod, 0o644); err != nil {
		return nil, err
	}
	if len(sums) == 0 {
		return mod, nil
	}
	name := filepath.Join(r.clone, m.dir, "go.sum")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		sums = append(sums, strings.TrimSuffix(line, "\n"))
	}
	slices.Sort(sums)
	return mod, os.WriteFile(name, []byte(strings.Join(sums, "\n")+"\n"), 0o644)
}

// checkTags checks that the release's tags do not exist yet.
func (r *release) checkTags(modules []*releasedModule) error {
	for _, m := range modules {
		t := m.tag(r.version)
		if _, err := git(r.repo, "rev-parse", "-q", "--verify", "refs/tags/"+t); err == nil {
			return fmt.Errorf("tag %s already exists", t)
		}
	}
	return nil
}

// finish tags the modules, or prints the tags that it would set.
func (r *release) finish(order []*releasedModule, tag bool) error {
	var tags []string
	fmt.Fprintf(r.out, "GOPROXY=file://%s has these modules, in the order of their requirements:\n", r.proxy())
	for _, m := range order {
		tags = append(tags, m.tag(r.version))
		fmt.Fprintf(r.out, "\t%s@%s\ttag %s\n", m.path, r.version, m.tag(r.version))
	}
	push := "git push --atomic origin " + strings.Join(tags, " ")
	if !tag {
		fmt.Fprintf(r.out, "Nothing was committed or tagged. With TAG=yes the tags are set on one commit, which is on no branch. To publish them then:\n\t%s\n", push)
		return nil
	}
	commit, err := r.commit()
	if err != nil {
		return err
	}
	for _, t := range tags {
		if _, err := git(r.repo, "tag", "-a", "-m", "Release "+r.version, t, commit); err != nil {
			return err
		}
	}
	fmt.Fprintf(r.out, "The tags are set on commit %s. To publish them:\n\t%s\n", commit, push)
	return nil
}

// commit commits the release in the clone and fetches the commit into the repository. The files and
// branches of the checkout stay unchanged.
func (r *release) commit() (string, error) {
	name, _ := git(r.repo, "config", "user.name") // if there is none, git commit reports it
	email, _ := git(r.repo, "config", "user.email")
	const branch = "release"
	for _, args := range [][]string{
		{"checkout", "-q", "-b", branch},
		{"-c", "user.name=" + name, "-c", "user.email=" + email, "commit", "-q", "-m", "Release " + r.version},
	} {
		if _, err := git(r.clone, args...); err != nil {
			return "", err
		}
	}
	if _, err := git(r.repo, "fetch", "-q", "--no-write-fetch-head", "--no-tags", r.clone, branch); err != nil {
		return "", err
	}
	return git(r.clone, "rev-parse", branch)
}

// git runs git in a directory and returns its output, trimmed.
func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...)
	var stderr strings.Builder
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
