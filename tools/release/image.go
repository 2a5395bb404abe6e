package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser is the user that the image runs as. examples/serve/Dockerfile has the same.
const imageUser = 2379

// image returns an OCI image layout, as a tar archive: an index named by the version, with an image
// for each of the programs. An image contains the program, its user and its data directory, and
// nothing else.
func (p *product) image(programs []*program) ([]byte, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, program := range programs {
		image, err := p.platformImage(program)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: program.platform.os, Architecture: program.platform.arch},
		}})
	}
	dir, err := os.MkdirTemp("", "release-image")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	written, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, err
	}
	err = written.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": p.version}))
	if err != nil {
		return nil, err
	}
	items, err := readTree(dir)
	if err != nil {
		return nil, err
	}
	return packTar(p.time, items)
}

func (p *product) platformImage(program *program) (v1.Image, error) {
	license, err := p.file("LICENSE")
	if err != nil {
		return nil, err
	}
	user := strconv.Itoa(imageUser)
	files, err := packTar(p.time, []item{
		{name: "etc", mode: fs.ModeDir | 0o755},
		{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nstile:x:" + user + ":\n")},
		{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/:/sbin/nologin\n" +
			"stile:x:" + user + ":" + user + ":Stile lock server:/var/lib/stile:/sbin/nologin\n")},
		{name: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{name: "usr", mode: fs.ModeDir | 0o755},
		{name: "usr/bin", mode: fs.ModeDir | 0o755},
		{name: "usr/bin/stile", mode: 0o755, data: program.data},
		{name: "usr/share", mode: fs.ModeDir | 0o755},
		{name: "usr/share/doc", mode: fs.ModeDir | 0o755},
		{name: "usr/share/doc/stile", mode: fs.ModeDir | 0o755},
		{name: "usr/share/doc/stile/LICENSE", mode: 0o644, data: license},
		{name: "usr/share/doc/stile/LICENSES-OF-MODULES", mode: 0o644, data: p.licenses},
		{name: "var", mode: fs.ModeDir | 0o755},
		{name: "var/lib", mode: fs.ModeDir | 0o755},
		{name: "var/lib/stile", mode: fs.ModeDir | 0o700, owner: imageUser},
	})
	if err != nil {
		return nil, err
	}
	compressed, err := packGzip(files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(compressed)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Created:      v1.Time{Time: p.time},
		OS:           program.platform.os,
		Architecture: program.platform.arch,
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:         user + ":" + user,
			Entrypoint:   []string{"/usr/bin/stile"},
			Cmd:          []string{"serve", "--help"},
			Env:          []string{"PATH=/usr/bin", "HOME=/var/lib/stile"},
			Volumes:      map[string]struct{}{"/var/lib/stile": {}},
			ExposedPorts: map[string]struct{}{"2379/tcp": {}, "2380/tcp": {}, "2381/tcp": {}},
			Labels: map[string]string{
				"org.opencontainers.image.title":    "stile",
				"org.opencontainers.image.version":  p.version,
				"org.opencontainers.image.revision": p.commit,
				"org.opencontainers.image.created":  p.time.Format(time.RFC3339),
				"org.opencontainers.image.source":   homepage,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: p.time}, CreatedBy: "tools/release", Comment: "stile " + p.version},
	})
}

// readTree returns the files and directories below dir.
func readTree(dir string) ([]item, error) {
	tree := os.DirFS(dir)
	var items []item
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		i := item{name: name, mode: 0o644}
		if d.IsDir() {
			i.mode = fs.ModeDir | 0o755
		} else if i.data, err = fs.ReadFile(tree, name); err != nil {
			return err
		}
		items = append(items, i)
		return nil
	})
	return items, err
}
