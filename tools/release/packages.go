package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// product is what the packages are made of.
type product struct {
	version  string // without the v
	commit   string
	time     time.Time // of the commit; all files in packages have it
	source   string    // directory of the commit's files
	licenses []byte    // of the modules in the programs
	man      []item    // man pages, such as stile.1
	shells   []item    // completions, such as bash/stile
}

// item is a file or directory in a package.
type item struct {
	name  string      // with slashes
	mode  fs.FileMode // with fs.ModeDir for a directory
	owner int         // id of user and group
	data  []byte
}

// writePackages builds the command for all platforms and writes its packages, the lists of their
// modules, and the checksums.
func (r *release) writePackages() (err error) {
	dir := filepath.Join(r.dir, r.version)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o750)); err != nil {
		return err
	}
	b, err := newBuilder(r.proxy(), r.version)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	var programs []*program
	for _, p := range r.platforms {
		built, err := b.install(p)
		if err != nil {
			return err
		}
		programs = append(programs, built)
	}
	p, err := r.newProduct(b, programs)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	var linux []*program
	for _, program := range programs {
		base := fmt.Sprintf("stile_%s_%s", p.version, program.platform)
		if files[base+".cdx.json"], err = p.contents(b, program); err != nil {
			return err
		}
		if program.platform.os == "windows" {
			files[base+".zip"], err = p.zip(base, program)
		} else {
			files[base+".tar.gz"], err = p.tarGz(base, program)
		}
		if err != nil {
			return err
		}
		if program.platform.os != "linux" {
			continue
		}
		linux = append(linux, program)
		if files[fmt.Sprintf("stile_%s_%s.deb", p.version, program.platform.arch)], err = p.deb(program); err != nil {
			return err
		}
	}
	if files[fmt.Sprintf("stile_%s_image.tar", p.version)], err = p.image(linux); err != nil {
		return err
	}
	return r.writeFiles(dir, files)
}

// writeFiles writes files and their checksums into dir.
func (r *release) writeFiles(dir string, files map[string][]byte) error {
	var sums bytes.Buffer
	fmt.Fprintf(r.out, "%s has these packages:\n", dir)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[name]), name)
		fmt.Fprintf(r.out, "\t%s\n", name)
		if err := os.WriteFile(filepath.Join(dir, name), files[name], 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintln(r.out, "\tSHA256SUMS")
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), sums.Bytes(), 0o644)
}

func (r *release) newProduct(b *builder, programs []*program) (*product, error) {
	p := &product{version: strings.TrimPrefix(r.version, "v"), source: r.clone}
	var err error
	if p.commit, err = git(r.clone, "rev-parse", "HEAD"); err != nil {
		return nil, err
	}
	committed, err := git(r.clone, "show", "-s", "--format=%ct")
	if err != nil {
		return nil, err
	}
	seconds, err := strconv.ParseInt(committed, 10, 64)
	if err != nil {
		return nil, err
	}
	p.time = time.Unix(seconds, 0).UTC()
	if p.licenses, err = licenses(b, programs); err != nil {
		return nil, err
	}
	here := slices.IndexFunc(programs, func(p *program) bool {
		return p.platform == platform{runtime.GOOS, runtime.GOARCH}
	})
	if here < 0 || runtime.GOOS != "linux" {
		return nil, errors.New("packages are made on Linux, because the program for Linux writes its own man pages and completions")
	}
	return p, p.print(programs[here])
}

// print takes the man pages and completions from the program.
func (p *product) print(program *program) error {
	dir, err := os.MkdirTemp("", "release-man")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command(program.path, args...)
		cmd.Env = []string{"HOME=" + dir, "LC_ALL=C.UTF-8", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", p.time.Unix())}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("stile %s: %w: %s", strings.Join(args, " "), err, stderr.String())
		}
		return out, nil
	}
	for _, c := range []struct{ shell, file string }{{"bash", "stile"}, {"zsh", "_stile"}, {"fish", "stile.fish"}} {
		script, err := run("completion", c.shell)
		if err != nil {
			return err
		}
		p.shells = append(p.shells, item{name: c.shell + "/" + c.file, mode: 0o644, data: script})
	}
	if _, err := run("man", dir); err != nil {
		return err
	}
	pages, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, page := range pages {
		data, err := os.ReadFile(filepath.Join(dir, page.Name()))
		if err != nil {
			return err
		}
		p.man = append(p.man, item{name: page.Name(), mode: 0o644, data: data})
	}
	return nil
}

// file returns a file of the commit.
func (p *product) file(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(p.source, filepath.FromSlash(name)))
}

// archived returns the files of an archive, below the directory base.
func (p *product) archived(base string, program *program) ([]item, error) {
	license, err := p.file("LICENSE")
	if err != nil {
		return nil, err
	}
	changes, err := p.file("CHANGELOG.md")
	if err != nil {
		return nil, err
	}
	items := []item{
		{name: program.name, mode: 0o755, data: program.data},
		{name: "LICENSE", mode: 0o644, data: license},
		{name: "LICENSES-OF-MODULES", mode: 0o644, data: p.licenses},
		{name: "CHANGELOG.md", mode: 0o644, data: changes},
	}
	if program.platform.os != "windows" {
		for _, page := range p.man {
			page.name = "man/man1/" + page.name
			items = append(items, page)
		}
		for _, script := range p.shells {
			script.name = "completions/" + script.name
			items = append(items, script)
		}
	}
	for i := range items {
		items[i].name = path.Join(base, items[i].name)
	}
	return items, nil
}

// licenses returns the licenses of Go and of all modules in the programs. Most demand to be passed on
// with a program.
func licenses(b *builder, programs []*program) ([]byte, error) {
	goroot, err := b.run("", programs[0].platform, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{"Go": strings.TrimSpace(string(goroot))}
	for _, program := range programs {
		for _, m := range program.info.Deps {
			if !ours(m.Path) {
				if dirs[m.Path+" "+m.Version], err = b.source(m.Path, m.Version); err != nil {
					return nil, err
				}
			}
		}
	}
	var text bytes.Buffer
	text.WriteString("Stile's programs contain Go and these modules, with these licenses.\n")
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		files, err := os.ReadDir(dirs[name])
		if err != nil {
			return nil, err
		}
		found := 0
		for _, f := range files {
			if !licenseFile.MatchString(f.Name()) || f.IsDir() {
				continue
			}
			data, err := os.ReadFile(filepath.Join(dirs[name], f.Name()))
			if err != nil {
				return nil, err
			}
			found++
			fmt.Fprintf(&text, "\n==== %s: %s ====\n\n%s\n", name, f.Name(), bytes.TrimSpace(data))
		}
		if found == 0 {
			return nil, fmt.Errorf("module %s has no license that could be passed on with the program", name)
		}
	}
	return text.Bytes(), nil
}

// licenseFile matches the names of files with a license, or with what a license demands to be passed on.
var licenseFile = regexp.MustCompile(`(?i)^(LICEN[CS]E|COPYING|NOTICE|PATENTS)(\W|$)`)

// ours reports whether a module is one of Stile's.
func ours(module string) bool {
	const root = "github.com/stilelock/stile"
	return module == root || strings.HasPrefix(module, root+"/")
}
