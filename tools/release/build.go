package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// command is the module and the package of the command.
const command = "github.com/stilelock/stile/cmd/stile"

// platform is a system and a processor, as in GOOS and GOARCH.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "_" + p.arch }

// allPlatforms are those that the command is released for.
var allPlatforms = []platform{
	{"linux", "amd64"},
	{"linux", "arm64"},
	{"darwin", "amd64"},
	{"darwin", "arm64"},
	{"windows", "amd64"},
	{"windows", "arm64"},
}

// builder installs the command from the module proxy of a release, as a user would. So everybody can
// build the same programs from the published modules.
//
// It has a module cache of its own. The user's may already have other modules with the version, from
// an earlier dry run. Modules of others are taken from there.
type builder struct {
	gopath  string
	version string
	env     []string
}

// newBuilder returns a builder whose cache is temporary; close removes it.
func newBuilder(proxy, version string) (*builder, error) {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	cache, others, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	gopath, err := os.MkdirTemp("", "release-build")
	if err != nil {
		return nil, err
	}
	b := &builder{gopath: gopath, version: version, env: os.Environ()}
	for name, value := range map[string]string{
		"GOPATH":      gopath,
		"GOMODCACHE":  filepath.Join(gopath, "pkg", "mod"),
		"GOPROXY":     "file://" + filepath.ToSlash(proxy) + ",file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download")) + "," + others,
		"GONOPROXY":   "none",
		"GOSUMDB":     "off", // it does not know the release yet; the sums of the others are in go.sum
		"GOFLAGS":     "-modcacherw",
		"GOTOOLCHAIN": "local",
		"GOWORK":      "off",
		// These would change the programs.
		"CGO_ENABLED":  "0", // so programs for Linux are static
		"GOENV":        "off",
		"GOAMD64":      "v1",
		"GOARM64":      "v8.0",
		"GOEXPERIMENT": "",
		"GOFIPS140":    "off",
		"GOBIN":        "", // must be unset to install for other platforms
	} {
		b.env = append(b.env, name+"="+value)
	}
	return b, nil
}

func (b *builder) close() error { return os.RemoveAll(b.gopath) }

// install builds the command for p and returns the program.
func (b *builder) install(p platform) (*program, error) {
	var lean []byte
	if p.os == "linux" {
		without, err := b.build(p, "lean,grpcnotrace")
		if err != nil {
			return nil, err
		}
		lean = without.data
	}
	built, err := b.build(p, "")
	if err != nil {
		return nil, err
	}
	built.lean = lean
	return built, nil
}

// build builds the command with build tags. It replaces the program that was built for p before.
func (b *builder) build(p platform, tags string) (*program, error) {
	_, err := b.run("", p, "install", "-trimpath", "-ldflags=-s -w", "-tags="+tags, command+"@"+b.version)
	if err != nil {
		return nil, err
	}
	name := "stile"
	if p.os == "windows" {
		name += ".exe"
	}
	path := filepath.Join(b.gopath, "bin", p.String(), name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) { // programs for this machine are elsewhere
		path = filepath.Join(b.gopath, "bin", name)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &program{platform: p, path: path, name: name, data: data, info: info}, nil
}

// run runs the go command for p in a directory and returns its output.
func (b *builder) run(dir string, p platform, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	var stderr strings.Builder
	cmd.Dir, cmd.Stderr = dir, &stderr
	cmd.Env = append(slices.Clip(b.env), "GOOS="+p.os, "GOARCH="+p.arch)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s for %s: %w: %s", strings.Join(args, " "), p, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// source returns the directory of a module in the cache.
func (b *builder) source(path, version string) (string, error) {
	escapedPath, err := module.EscapePath(path)
	if err != nil {
		return "", err
	}
	escapedVersion, err := module.EscapeVersion(version)
	return filepath.Join(b.gopath, "pkg", "mod", filepath.FromSlash(escapedPath)+"@"+escapedVersion), err
}

// program is the command, built for a platform.
type program struct {
	platform platform
	path     string
	name     string // stile, or stile.exe
	data     []byte
	lean     []byte // the same without the server, for the Debian package; nil if the platform has none
	info     *buildinfo.BuildInfo
}
