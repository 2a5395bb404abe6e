package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// debName is the Debian package.
const debName = "stile_0.0.0-check_amd64.deb"

// The bill of materials has the modules that the Go command finds in the program, each with what it
// depends on.
func checkContents(t *testing.T, r *release) {
	text, err := os.ReadFile(r.path("stile_0.0.0-check_linux_amd64.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bom cyclonedx.BOM
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	got := []string{bom.Metadata.Component.Name + " " + bom.Metadata.Component.Version}
	refs := map[string]bool{bom.Metadata.Component.BOMRef: true}
	for _, c := range *bom.Components {
		refs[c.BOMRef] = true
		if c.Name != "std" {
			got = append(got, c.Name+" "+c.Version)
		}
	}
	dir := t.TempDir()
	run(t, dir, nil, "tar", "-xzf", r.path("stile_0.0.0-check_linux_amd64.tar.gz"), "--strip-components=1")
	var want []string
	for line := range strings.Lines(run(t, dir, os.Environ(), "go", "version", "-m", "stile")) {
		if fields := strings.Fields(line); fields[0] == "mod" || fields[0] == "dep" {
			want = append(want, fields[1]+" "+fields[2])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) < 20 {
		t.Errorf("got modules %q\nwant %q", got, want)
	}
	dependsOn := map[string][]string{}
	for _, d := range *bom.Dependencies {
		dependsOn[d.Ref] = *d.Dependencies
		for _, ref := range *d.Dependencies {
			if !refs[ref] {
				t.Errorf("%s depends on %s, which is not listed", d.Ref, ref)
			}
		}
	}
	zkstore := "pkg:golang/" + stile + "/store/zkstore@" + version
	if on := dependsOn[zkstore]; !slices.ContainsFunc(on, func(ref string) bool {
		return strings.HasPrefix(ref, "pkg:golang/github.com/go-zookeeper/zk@")
	}) {
		t.Errorf("%s: got dependencies %q, want go-zookeeper among them", zkstore, on)
	}
}

// scratch is the root directory of a machine on which nothing is installed but the package.
type scratch struct {
	root string
	uid  int // of the user stile, and its group
}

// dpkg installs or removes the package. Its scripts run outside of the scratch directory, with
// DPKG_ROOT.
func (s *scratch) dpkg(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"--root=" + s.root, "--force-not-root", "--force-script-chrootless", "--force-confold"}, args...)
	run(t, "/", os.Environ(), "dpkg", args...)
}

func newScratch(t *testing.T) *scratch {
	t.Helper()
	s := &scratch{root: t.TempDir()}
	for _, dir := range []string{"dev", "proc", "etc", "run", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log"} {
		if err := os.MkdirAll(filepath.Join(s.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.root, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// files returns the files below the scratch directory that dpkg does not keep for itself.
func (s *scratch) files(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, s.root)
		if name == "/var/lib/dpkg" || name == "/var/log" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (s *scratch) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func checkDeb(t *testing.T, r *release) {
	need(t, "dpkg", "systemd-sysusers", "systemd-analyze", "chroot", "unshare", "ip", "ldd")
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: only root can install a package and run its service as its user")
	}
	s := newScratch(t)
	s.dpkg(t, "--install", r.path(debName))
	checkProgram(t, filepath.Join(s.root, "usr/bin/stile"))
	checkProgram(t, filepath.Join(s.root, "usr/bin/stiled"))
	checkLean(t, filepath.Join(s.root, "usr/bin/stile"))
	s.checkManPage(t)
	s.checkCompletions(t)
	s.checkUnit(t)
	s.findUser(t)
	s.checkService(t)

	// An upgrade keeps what the administrator has changed. Removing the package keeps that and the data; purging removes all
	// but the user.
	config := filepath.Join(s.root, "etc/stile/stile.yaml")
	if err := os.WriteFile(config, []byte("data: /var/lib/stile\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.dpkg(t, "--install", r.path(debName))
	if text := s.read(t, "etc/stile/stile.yaml"); text != "data: /var/lib/stile\n" {
		t.Errorf("an upgrade has replaced the configuration by\n%s", text)
	}
	s.dpkg(t, "--remove", "stile")
	if _, err := os.Stat(filepath.Join(s.root, "run/stile")); err == nil {
		t.Error("removing the package leaves /run/stile, so no stile on the machine could use another server")
	}
	if left := s.files(t); !slices.Contains(left, "/etc/stile/stile.yaml") || !strings.Contains(fmt.Sprint(left), "/var/lib/stile/") {
		t.Errorf("removing the package leaves %q, want the configuration and the data", left)
	}
	s.dpkg(t, "--purge", "stile")
	for _, name := range s.files(t) {
		if !slices.Contains([]string{"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/.pwd.lock"}, name) {
			t.Errorf("purging the package leaves %s", name)
		}
	}
}

func (s *scratch) checkManPage(t *testing.T) {
	t.Helper()
	page, err := gzip.NewReader(strings.NewReader(s.read(t, "usr/share/man/man1/stile-run.1.gz")))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(page)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := git(".", "show", "-s", "--format=%ct")
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := strconv.ParseInt(committed, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	day := time.Unix(seconds, 0).UTC().Format(time.DateOnly)
	title := fmt.Sprintf(`.TH "STILE\-RUN" "1" "%s" "stile %s" "Stile"`, day, strings.ReplaceAll(version, "-", `\-`))
	if !bytes.HasPrefix(text, []byte(title+"\n")) {
		t.Errorf("man page: got %.100q…, want it to begin with %q", text, title)
	}
}

func (s *scratch) checkCompletions(t *testing.T) {
	t.Helper()
	for name, want := range map[string]string{
		"usr/share/bash-completion/completions/stile":    "__start_stile",
		"usr/share/zsh/vendor-completions/_stile":        "#compdef stile",
		"usr/share/fish/vendor_completions.d/stile.fish": "complete -c stile",
	} {
		if !strings.Contains(s.read(t, name), want) {
			t.Errorf("%s does not contain %q", name, want)
		}
	}
}

// checkUnit checks the unit of the service. By the measure of systemd-analyze its exposure is below 2 of 10;
// without the restrictions it is above 9.
func (s *scratch) checkUnit(t *testing.T) {
	t.Helper()
	const exec = "\nExecStart=/usr/bin/stile "
	text := s.read(t, "usr/lib/systemd/system/stile.service")
	if !strings.Contains(text, exec) {
		t.Errorf("the unit does not start /usr/bin/stile:\n%s", text)
	}
	file := filepath.Join(t.TempDir(), "stile.service")
	text = strings.Replace(text, exec, "\nExecStart="+filepath.Join(s.root, "usr/bin/stile")+" ", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run(t, "/", os.Environ(), "systemd-analyze", "verify", file); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	run(t, "/", os.Environ(), "systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", file)
}

// findUser reads the id of the user that the package has created.
func (s *scratch) findUser(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(s.read(t, "etc/passwd")) {
		if fields := strings.Split(strings.TrimSpace(line), ":"); fields[0] == "stile" {
			s.uid, _ = strconv.Atoi(fields[2])
			if fields[2] != fields[3] || fields[5] != "/var/lib/stile" || fields[6] != "/usr/sbin/nologin" {
				t.Errorf("got user %q", line)
			}
		}
	}
	if s.uid == 0 {
		t.Fatalf("the package has not created the user stile:\n%s", s.read(t, "etc/passwd"))
	}
}

// command returns a command that runs the installed program in the scratch directory, as a user with
// the group stile, in a network of its own, where the ports of the configuration are free.
func (s *scratch) command(t *testing.T, uid int, args ...string) *exec.Cmd {
	t.Helper()
	const script = `set -e
ip link set lo up
mount --bind /dev "$1/dev"
mount --bind /proc "$1/proc"
umask 0007
root=$1 user=$2
shift 2
exec env -i PATH="$PATH" HOME=/nonexistent chroot --userspec="$user" --groups= "$root" /usr/bin/stile "$@"`
	user := fmt.Sprintf("%d:%d", uid, s.uid)
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--net", "--mount", "sh", "-c", script, "sh", s.root, user}, args...)...)
	cmd.Dir = "/"
	return cmd
}

// checkService runs the service as its unit does, with its configuration, and uses it without any
// configuration of the client.
func (s *scratch) checkService(t *testing.T) {
	t.Helper()
	for dir, mode := range map[string]fs.FileMode{"run/stile": 0o750, "var/lib/stile": 0o700} { // by systemd
		path := filepath.Join(s.root, dir)
		if err := os.MkdirAll(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, s.uid, s.uid); err != nil {
			t.Fatal(err)
		}
	}
	unit := s.read(t, "usr/lib/systemd/system/stile.service")
	for _, line := range []string{
		"ExecStart=/usr/bin/stile serve --config-file /etc/stile/stile.yaml", "User=stile", "Group=stile", "UMask=0007",
		"RuntimeDirectory=stile", "RuntimeDirectoryMode=0750", "StateDirectory=stile", "StateDirectoryMode=0700",
	} {
		if !strings.Contains(unit, "\n"+line+"\n") {
			t.Errorf("the unit has no line %s, with which this test runs the server", line)
		}
	}
	server := s.command(t, s.uid, "serve", "--config-file", "/etc/stile/stile.yaml")
	log, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	for lines := bufio.NewScanner(log); !strings.Contains(logged.String(), "msg=ready"); {
		if !lines.Scan() {
			t.Fatalf("the server has ended: %v\n%s", server.Wait(), &logged)
		}
		fmt.Fprintln(&logged, lines.Text())
	}
	go io.Copy(io.Discard, log)
	const member = 4242
	cmd := s.command(t, member, "version")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "/run/stile/stile.sock") {
		t.Errorf("a member of the group: got %v, %s; want the store at /run/stile/stile.sock", err, out)
	}
	cmd = s.command(t, member, "run", "demo", "--", "/usr/bin/stile", "assert", "demo")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("a command under a lock of the server: %v: %s", err, out)
	}
	if err := server.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("the server ended with %v\n%s", err, &logged)
	}
}

// The image is valid, belongs to the released commit, and its program runs from it alone.
func checkImage(t *testing.T, r *release) {
	need(t, "tar", "ldd")
	dir, root := t.TempDir(), t.TempDir()
	run(t, dir, nil, "tar", "-xf", r.path("stile_0.0.0-check_image.tar"))
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	top, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "0.0.0-check" {
		t.Fatalf("got %+v, want one index with the name of the version", top.Manifests)
	}
	platforms, err := index.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	images, err := platforms.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(images.Manifests) != 1 || !images.Manifests[0].Platform.Equals(v1.Platform{OS: "linux", Architecture: "amd64"}) {
		t.Fatalf("got images %+v, want one for linux/amd64", images.Manifests)
	}
	image, err := platforms.Image(images.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	head, err := git(".", "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config.Labels["org.opencontainers.image.revision"]; got != head {
		t.Errorf("got revision %s, want %s", got, head)
	}
	if config.Created.IsZero() || config.Created.After(time.Now()) {
		t.Errorf("got creation time %v, want that of the commit", config.Created)
	}
	files := mutate.Extract(image)
	defer files.Close()
	untar := exec.Command("tar", "-x", "-C", root)
	untar.Stdin = files
	if out, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	checkProgram(t, filepath.Join(root, config.Config.Entrypoint[0]))
	data, err := os.Stat(filepath.Join(root, "var/lib/stile"))
	if err != nil || data.Mode() != fs.ModeDir|0o700 {
		t.Errorf("the data directory: got %v, %v", data, err)
	}
	if os.Getuid() != 0 {
		return
	}
	args := append([]string{"--userspec=" + config.Config.User, "--groups=", root}, config.Config.Entrypoint...)
	cmd := exec.Command("chroot", append(args, config.Config.Cmd...)...)
	cmd.Dir, cmd.Env = "/", config.Config.Env
	cmd.Env = append(cmd.Env, "PATH=/usr/bin:/usr/sbin")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--config-file") {
		t.Errorf("the image's command: %v: %s", err, out)
	}
}

// checkLean checks that a program has no server in it.
func checkLean(t *testing.T, path string) {
	t.Helper()
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range info.Deps {
		if strings.HasPrefix(module.Path, "go.etcd.io/etcd/server/") {
			t.Errorf("%s contains %s", path, module.Path)
		}
	}
}
