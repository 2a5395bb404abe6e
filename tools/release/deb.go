package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

const homepage = "https://github.com/stilelock/stile"

// deb returns the Debian package of a program: with its man pages and completions, and with the
// service of examples/serve.
func (p *product) deb(program *program) ([]byte, error) {
	items, err := p.installed(program)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "release-deb")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	contents := files.Contents{
		{Destination: "/etc/stile", Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: p.time}},
	}
	for n, i := range items {
		source := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(source, i.data, 0o600); err != nil {
			return nil, err
		}
		kind := files.TypeFile
		if strings.HasPrefix(i.name, "/etc/") {
			kind = files.TypeConfigNoReplace
		}
		contents = append(contents, &files.Content{
			Source: source, Destination: i.name, Type: kind, FileInfo: &files.ContentFileInfo{Mode: i.mode, MTime: p.time},
		})
	}
	script := func(name string) string { return filepath.Join(p.source, "tools", "release", "debian", name) }
	var packed bytes.Buffer
	err = deb.Default.Package(nfpm.WithDefaults(&nfpm.Info{
		Name:       "stile",
		Version:    p.version,
		Arch:       program.platform.arch,
		Platform:   "linux",
		Section:    "admin",
		Priority:   "optional",
		Maintainer: "Stile maintainers <stilelock@users.noreply.github.com>",
		Homepage:   homepage,
		License:    "Apache-2.0",
		Description: "distributed locks for commands and programs\n" +
			"stile runs commands under locks of etcd, Redis or ZooKeeper, shows and breaks\n" +
			"these locks, and is a lock server itself where there is no such store.\n" +
			"The package has a service stile, which is not enabled by the installation.",
		MTime:           p.time,
		DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Suggests: []string{"bash-completion"},
			Contents: contents,
			Scripts:  nfpm.Scripts{PostInstall: script("postinst"), PreRemove: script("prerm"), PostRemove: script("postrm")},
		},
	}), &packed)
	return packed.Bytes(), err
}

// installed returns the files of the Debian package. All below /etc are configuration files: an
// upgrade keeps the changes of the machine's administrator.
func (p *product) installed(program *program) ([]item, error) {
	unit, err := p.unit()
	if err != nil {
		return nil, err
	}
	config, err1 := p.file("examples/serve/stile.yaml")
	users, err2 := p.file("tools/release/debian/stile.sysusers")
	changes, err3 := p.file("CHANGELOG.md")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	copyright := "Stile is licensed under the Apache License 2.0: /usr/share/common-licenses/Apache-2.0\n" +
		"Its source is at " + homepage + "\n" +
		"The program contains modules of others, with the licenses in LICENSES-OF-MODULES.gz beside this file.\n"
	items := []item{
		// The program starts in half the time without the server. Where it needs it, it starts stiled.
		{name: "/usr/bin/stile", mode: 0o755, data: program.lean},
		{name: "/usr/bin/stiled", mode: 0o755, data: program.data},
		{name: "/usr/lib/systemd/system/stile.service", data: unit},
		{name: "/usr/lib/sysusers.d/stile.conf", data: users},
		{name: "/etc/stile/stile.yaml", data: config},
		{name: "/usr/share/doc/stile/copyright", data: []byte(copyright)},
	}
	compressed := []item{
		{name: "/usr/share/doc/stile/CHANGELOG.md", data: changes},
		{name: "/usr/share/doc/stile/LICENSES-OF-MODULES", data: p.licenses},
	}
	for _, page := range p.man {
		compressed = append(compressed, item{name: "/usr/share/man/man1/" + page.name, data: page.data})
	}
	for _, i := range compressed {
		i.name += ".gz"
		if i.data, err = packGzip(i.data); err != nil {
			return nil, err
		}
		items = append(items, i)
	}
	for _, script := range p.shells {
		shell, file, _ := strings.Cut(script.name, "/")
		dir := map[string]string{
			"bash": "bash-completion/completions", "zsh": "zsh/vendor-completions", "fish": "fish/vendor_completions.d",
		}[shell]
		items = append(items, item{name: "/usr/share/" + dir + "/" + file, data: script.data})
	}
	for n := range items {
		if items[n].mode == 0 {
			items[n].mode = fs.FileMode(0o644)
		}
	}
	return items, nil
}

// unit returns the unit of examples/serve, for a program in /usr/bin.
func (p *product) unit() ([]byte, error) {
	text, err := p.file("examples/serve/stile.service")
	if err != nil {
		return nil, err
	}
	const example = "\nExecStart=/usr/local/bin/stile "
	if bytes.Count(text, []byte(example)) != 1 {
		return nil, errors.New("examples/serve/stile.service does not start /usr/local/bin/stile")
	}
	return bytes.Replace(text, []byte(example), []byte("\nExecStart=/usr/bin/stile "), 1), nil
}
