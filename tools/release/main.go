// Command release makes a release of several modules of this repository, in one version, out of what is committed.
//
//	release [-tag] -proxy DIR -version v1.2.3 MODULE…
//
// A MODULE is a folder. In the repository the modules require each other in no version at all and replace each other by
// folders, which the go command refuses in what it installs. The release is made in a clone, where they require each other in
// the version, and replace nothing. As module zips it is put below DIR, which then serves them as a GOPROXY of the form
// file://DIR.
//
// That is all, unless -tag is given: then the release is a commit, which no branch has, and a tag of it for each module.
// Nothing is pushed.
package main

import (
	"bytes"
	"errors"
	"flag"
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
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

func main() {
	r := release{repo: ".", out: os.Stdout}
	tag := flag.Bool("tag", false, "commit and tag the release")
	flag.StringVar(&r.proxy, "proxy", "", "`directory` for the module zips")
	flag.StringVar(&r.version, "version", "", "`version` of all modules")
	flag.Parse()
	if err := r.run(flag.Args(), *tag); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

type release struct {
	repo    string // in the checkout
	version string
	proxy   string
	out     io.Writer

	clone string
	ours  map[string]*released // by module path
}

// released is a module of the release.
type released struct {
	dir  string // in the repository, with slashes; "" is the top
	path string
	file *modfile.File
	sums []string // the lines of go.sum about it, once it is packed
}

// tag is what git calls the module's version.
func (m *released) tag(version string) string {
	if m.dir == "" {
		return version
	}
	return m.dir + "/" + version
}

func (r *release) run(dirs []string, tag bool) (err error) {
	if r.proxy == "" || len(dirs) == 0 || semver.Canonical(r.version) != r.version {
		return fmt.Errorf("version %q: give -version v1.2.3, -proxy, and the folders of the modules", r.version)
	}
	if major := semver.Major(r.version); major != "v0" && major != "v1" {
		return fmt.Errorf("version %s: the paths of the modules would have to end with /%s", r.version, major)
	}
	if r.proxy, err = filepath.Abs(r.proxy); err != nil {
		return err
	}
	if changes, err := git(r.repo, "status", "--porcelain"); err != nil {
		return err
	} else if changes != "" {
		fmt.Fprintln(r.out, "what is not committed is left out")
	}
	if r.clone, err = os.MkdirTemp("", "release"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.clone)) }()
	if err := r.checkOut(); err != nil {
		return err
	}
	if err := r.read(dirs); err != nil {
		return err
	}
	order, err := r.order()
	if err != nil {
		return err
	}
	for _, m := range order {
		if err := r.pack(m); err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	return r.finish(order, tag)
}

// checkOut makes the clone, which shares the objects of the repository. git clone itself refuses a repository of another user,
// as a checkout in CI may be.
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

// read reads the modules' go.mod files.
func (r *release) read(dirs []string) error {
	r.ours = make(map[string]*released)
	for _, dir := range dirs {
		m := &released{dir: strings.TrimPrefix(filepath.ToSlash(filepath.Clean(dir)), ".")}
		name := filepath.Join(r.clone, m.dir, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if m.file, err = modfile.Parse(name, text, nil); err != nil {
			return err
		}
		m.path = m.file.Module.Mod.Path
		r.ours[m.path] = m
	}
	return nil
}

// order returns the modules so that each comes after those that it requires: the checksums of these are in its go.sum.
func (r *release) order() ([]*released, error) {
	var order []*released
	waiting := slices.Sorted(maps.Keys(r.ours))
	for len(waiting) > 0 {
		i := slices.IndexFunc(waiting, func(path string) bool {
			return !slices.ContainsFunc(r.ours[path].file.Require, func(q *modfile.Require) bool {
				return slices.Contains(waiting, q.Mod.Path)
			})
		})
		if i < 0 {
			return nil, fmt.Errorf("the modules %q require each other", waiting)
		}
		order = append(order, r.ours[waiting[i]])
		waiting = slices.Delete(waiting, i, i+1)
	}
	return order, nil
}

// pack writes the module's go.mod and go.sum as they are to be released, and the module into the proxy.
func (r *release) pack(m *released) error {
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
	dir := filepath.Join(r.proxy, filepath.FromSlash(escaped), "@v")
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
	if err := list(dir); err != nil {
		return err
	}
	all, err := dirhash.HashZip(base+".zip", dirhash.Hash1)
	if err != nil {
		return err
	}
	alone, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(mod)), nil
	})
	if err != nil {
		return err
	}
	m.sums = []string{
		fmt.Sprintf("%s %s %s", m.path, r.version, all),
		fmt.Sprintf("%s %s/go.mod %s", m.path, r.version, alone),
	}
	return nil
}

// list writes which versions of a module the proxy has.
func list(dir string) error {
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

// pin has the module require the others in the version that is released. It returns the new go.mod.
func (r *release) pin(m *released) ([]byte, error) {
	var sums []string
	for _, q := range m.file.Require {
		other := r.ours[q.Mod.Path]
		if other == nil {
			continue
		}
		if err := errors.Join(m.file.AddRequire(other.path, r.version), m.file.DropReplace(other.path, "")); err != nil {
			return nil, err
		}
		sums = append(sums, other.sums...)
	}
	for _, other := range m.file.Replace {
		if other.Old.Path != "" { // those that were dropped are empty
			return nil, fmt.Errorf("it replaces %s, which nobody could install", other.Old.Path)
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

// finish tags the modules, or says what would be tagged.
func (r *release) finish(order []*released, tag bool) error {
	var tags []string
	fmt.Fprintf(r.out, "GOPROXY=file://%s has, each after those that it requires:\n", r.proxy)
	for _, m := range order {
		tags = append(tags, m.tag(r.version))
		fmt.Fprintf(r.out, "\t%s@%s\ttag %s\n", m.path, r.version, m.tag(r.version))
	}
	push := "git push --atomic origin " + strings.Join(tags, " ")
	if !tag {
		fmt.Fprintf(r.out, "Nothing is committed or tagged. With TAG=yes all of these are tags of one commit, which is on no branch, to be published by\n\t%s\n", push)
		return nil
	}
	for _, t := range tags {
		if _, err := git(r.repo, "rev-parse", "-q", "--verify", "refs/tags/"+t); err == nil {
			return fmt.Errorf("there is a tag %s", t)
		}
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
	fmt.Fprintf(r.out, "All of these are tags of %s. To publish them:\n\t%s\n", commit, push)
	return nil
}

// commit commits the release in the clone and fetches it from there: the checkout's files and branches stay as they are.
func (r *release) commit() (string, error) {
	name, _ := git(r.repo, "config", "user.name") // if there is none, git commit says so
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

// git runs git in a directory and returns what it prints.
func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...)
	var failure strings.Builder
	cmd.Dir, cmd.Stderr = dir, &failure
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(failure.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
