// Command release makes a release of Stile from the last commit: its modules, all with the same
// version, and packages of the command.
//
//	release [-tag] -dir DIR -version v1.2.3 MODULE…
//
// A MODULE is a directory. In the repository the modules have no versions of each other and replace
// each other by directories. The go command refuses to install such modules. The release is made in
// a clone, in which the modules require each other in the released version and replace nothing. It
// is written below DIR/proxy as module zips, so that it serves as a module proxy with
// GOPROXY=file://DIR/proxy.
//
// The command is then installed from this proxy, as a user would install it, for each platform. The
// packages are in DIR/VERSION: archives, Debian packages, an image, lists of what the programs
// contain, and the checksums of all. They depend on nothing but the commit, the version and the
// version of Go: a second run writes the same bytes.
//
// With -tag, the release is also committed, on no branch, and the commit gets a tag for each
// module. Nothing is pushed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

func main() {
	r := release{repo: ".", platforms: allPlatforms, out: os.Stdout}
	tag := flag.Bool("tag", false, "commit and tag the release")
	flag.StringVar(&r.dir, "dir", "", "`directory` to write the release to")
	flag.StringVar(&r.version, "version", "", "`version` to release all modules as")
	flag.Parse()
	if err := r.run(flag.Args(), *tag); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

type release struct {
	repo      string // a directory in the checkout
	version   string
	dir       string
	platforms []platform // to package the command for; if there are none, only the modules are released
	out       io.Writer

	clone   string
	modules map[string]*releasedModule // by module path
}

// proxy returns the directory of the module proxy.
func (r *release) proxy() string { return filepath.Join(r.dir, "proxy") }

func (r *release) run(dirs []string, tag bool) (err error) {
	if r.dir == "" || len(dirs) == 0 || semver.Canonical(r.version) != r.version {
		return fmt.Errorf("invalid arguments: give -dir, -version as in v1.2.3 (got %q), and the directories of the modules", r.version)
	}
	if major := semver.Major(r.version); major != "v0" && major != "v1" {
		return fmt.Errorf("cannot release version %s: the modules' paths would have to end with /%s", r.version, major)
	}
	if r.dir, err = filepath.Abs(r.dir); err != nil {
		return err
	}
	if changes, err := git(r.repo, "status", "--porcelain"); err != nil {
		return err
	} else if changes != "" {
		fmt.Fprintln(r.out, "warning: uncommitted changes are not released")
	}
	if r.clone, err = os.MkdirTemp("", "release"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.clone)) }()
	if err := r.checkOut(); err != nil {
		return err
	}
	if err := r.checkChangelog(tag); err != nil {
		return err
	}
	if err := r.read(dirs); err != nil {
		return err
	}
	order, err := r.order()
	if err != nil {
		return err
	}
	if tag {
		if err := r.checkTags(order); err != nil {
			return err
		}
	}
	for _, m := range order {
		if err := r.pack(m); err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	if len(r.platforms) > 0 {
		if err := r.writePackages(); err != nil {
			return err
		}
	}
	return r.finish(order, tag)
}

// checkChangelog checks that the changelog says what the version contains. Versions such as
// v1.2.3-rc.1 need no section.
func (r *release) checkChangelog(tag bool) error {
	if semver.Prerelease(r.version) != "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(r.clone, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	number := strings.TrimPrefix(r.version, "v")
	if regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(number) + ` - \d{4}-\d\d-\d\d$`).Match(text) {
		return nil
	}
	missing := fmt.Sprintf("CHANGELOG.md has no section \"## %s - YEAR-MONTH-DAY\"", number)
	if tag {
		return errors.New(missing)
	}
	fmt.Fprintf(r.out, "warning: %s: it cannot be tagged yet\n", missing)
	return nil
}
