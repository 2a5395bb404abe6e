package localserver_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/filelock"
	"github.com/stilelock/stile/internal/localserver"
)

// checkVar makes the test program check the path that is its value.
const checkVar = "STILE_TEST_CHECK_PATH"

func TestMain(m *testing.M) {
	if path := os.Getenv(checkVar); path != "" {
		if err := localserver.CheckPath(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// otherUser is no user of this machine.
const otherUser = 123_456

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: this test needs root")
	}
}

// A place is a directory in which a test makes files. Its own path is safe.
type place struct {
	*testing.T
	dir string
}

func newPlace(t *testing.T) place { return place{t, t.TempDir()} }

func (p place) path(name string) string { return filepath.Join(p.dir, name) }

// mkdir creates a directory with this mode and returns its path.
func (p place) mkdir(name string, mode os.FileMode) string {
	p.Helper()
	p.must(os.MkdirAll(p.path(name), 0o700))
	p.must(os.Chmod(p.path(name), mode))
	return p.path(name)
}

// link makes a symbolic link and returns its path.
func (p place) link(target, name string) string {
	p.Helper()
	p.must(os.Symlink(target, p.path(name)))
	return p.path(name)
}

// give gives a file to another user.
func (p place) give(name string) string {
	p.Helper()
	requireRoot(p.T)
	p.must(os.Lchown(p.path(name), otherUser, otherUser))
	return p.path(name)
}

func (p place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func TestCheckPath_accepts(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]func(p place) string{
		"root":                    func(place) string { return "/" },
		"private directory":       func(p place) string { return p.mkdir("home", 0o700) },
		"directory to be created": func(p place) string { return p.path("home/.local/state") },
		"home of a private group": func(p place) string { p.mkdir("home", 0o775); return p.mkdir("home/stile", 0o700) },
		"below a sticky directory": func(p place) string {
			p.mkdir("tmp", 0o777|os.ModeSticky)
			return p.mkdir("tmp/home", 0o700)
		},
		"home on another disk": func(p place) string {
			p.mkdir("usr/home/ann", 0o755)
			return filepath.Join(p.link("usr/home", "home"), "ann", "state")
		},
		"link with two dots": func(p place) string {
			p.mkdir("disk/state", 0o755)
			p.mkdir("home", 0o755)
			return filepath.Join(p.link("../disk/./state", "home/.local"), "stile")
		},
		"absolute link": func(p place) string { return p.link(p.mkdir("disk", 0o755), "home") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := localserver.CheckPath(path(newPlace(t))); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCheckPath_refuses(t *testing.T) {
	t.Parallel()
	belongs := fmt.Sprintf("belongs to user %d, and this is ", otherUser)
	for name, c := range map[string]struct {
		path func(p place) string
		want []string
	}{
		"home of another user": {
			func(p place) string { p.mkdir("ann/.local", 0o755); return filepath.Join(p.give("ann"), ".local") },
			[]string{"/ann " + belongs, ": run as that user or use sudo -H, or " + advice()},
		},
		"directory that another user may fill": {
			func(p place) string { p.mkdir("ann/.local", 0o755); p.give("ann"); return p.path("ann/.local/none") },
			[]string{"/ann " + belongs},
		},
		"link of another user": {
			func(p place) string {
				p.mkdir("tmp", 0o777|os.ModeSticky)
				p.link(p.mkdir("home", 0o755), "tmp/link")
				return p.give("tmp/link")
			},
			[]string{"/tmp/link " + belongs},
		},
		"link to a directory of another user": {
			func(p place) string {
				p.mkdir("ann/state", 0o755)
				p.give("ann")
				return p.link("ann/state", "home")
			},
			[]string{"/ann " + belongs},
		},
		"open directory": {
			func(p place) string { p.mkdir("open", 0o777); return p.mkdir("open/home", 0o700) },
			[]string{"every user can replace files in ", "/open: chmod o-w or chmod +t it, or " + advice()},
		},
		"links in a circle": {
			func(p place) string { p.link("b", "a"); return p.link("a", "b") },
			[]string{"too many levels of symbolic links"},
		},
		"file": {
			func(p place) string { p.must(os.WriteFile(p.path("file"), nil, 0o600)); return p.path("file/state") },
			[]string{"/file/state: not a directory"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := c.path(newPlace(t))
			err := localserver.CheckPath(path)
			if err == nil {
				t.Fatalf("%s was accepted", path)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not contain %q: %v", want, err)
				}
			}
		})
	}
}

// advice is what an error says about other state directories.
func advice() string {
	if os.Getuid() == 0 {
		return "set XDG_STATE_HOME=" + filepath.Join(localserver.RootHome(), ".local/state")
	}
	return "set HOME or XDG_STATE_HOME to another directory of your own"
}

// An error does not advise to use a directory that is refused for the same reason.
func TestOtherDir(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	state := filepath.Join(localserver.RootHome(), ".local/state")
	if err := localserver.CheckPath(state); err != nil {
		t.Errorf("the directory that root is advised to use is refused: %v", err)
	}
	for path, named := range map[string]bool{
		"/": false, localserver.RootHome(): false, state: false, state + "/stile/local": false,
		localserver.RootHome() + "2": true, "/github/home": true,
	} {
		if got := localserver.OtherDir(path); strings.Contains(got, state) != named {
			t.Errorf("%s is refused: got the advice %q, want one that names %s: %v", path, got, state, named)
		}
	}
}

// A user namespace may have no number for the machine's root. Then / belongs to the overflow uid, which is trusted. In a
// namespace with a number for root, it is not.
func TestCheckPath_userNamespace(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	p := newPlace(t)
	p.must(os.Chmod(filepath.Dir(p.dir), 0o755)) // for the other user
	program := p.path("program")
	p.must(copyFile(os.Args[0], program))
	home := p.give(filepath.Base(p.mkdir("home", 0o700)))
	check := func(inside, outside int) (string, error) {
		cmd := exec.Command(program)
		cmd.Env = []string{checkVar + "=" + home}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: inside, HostID: outside, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: inside, HostID: outside, Size: 1}},
			Credential:  &syscall.Credential{Uid: uint32(inside), Gid: uint32(inside), NoSetGroups: true},
		}
		out, err := cmd.CombinedOutput()
		if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
			t.Skipf("SKIPPED: no user namespaces: %v", err)
		}
		return string(out), err
	}
	if out, err := check(1000, otherUser); err != nil {
		t.Errorf("home of the user: %v: %s", err, out)
	}
	if out, err := check(0, 0); err == nil || !strings.Contains(out, "/home belongs to ") {
		t.Errorf("home of a user without a number: got %v, %q; want it refused", err, out)
	}
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// Nothing is created in the home of another user.
func TestMakeDir_homeOfAnotherUser(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.mkdir("ann", 0o755)
	p.give("ann")
	if err := localserver.MakeDir(p.path("ann/.local/state/stile")); err == nil {
		t.Error("MakeDir used the directory of another user")
	}
	if _, err := os.Lstat(p.path("ann/.local")); err == nil {
		t.Error("MakeDir created a part of the path")
	}
}

func TestMakeDir(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for range 2 {
		if err := localserver.MakeDir(p.path("a/b")); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "a/b"} {
			if err := localserver.CheckPrivate(p.path(name)); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestFind_none(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(p place){
		"no directory":    func(p place) { p.must(os.Remove(p.path("local"))) },
		"empty directory": func(place) {},
		"file in place of the link": func(p place) {
			p.must(os.WriteFile(p.path("local/socket"), nil, 0o600))
		},
		"server has ended": func(p place) { p.link(p.listen(), "local/socket") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.mkdir("local", 0o700)
			prepare(p)
			if socket, err := localserver.Dir(p.path("local")).Find(t.Context()); !errors.Is(err, localserver.ErrNone) {
				t.Errorf("got %q, %v; want ErrNone", socket, err)
			}
		})
	}
}

// listen listens on the socket of the server in the directory local.
func (p place) listen() string {
	p.Helper()
	l, err := net.Listen("unix", p.path("local/server.sock"))
	p.must(err)
	p.Cleanup(func() { l.Close() })
	return p.path("local/server.sock")
}

// run makes this process the server in the directory local.
func (p place) run() {
	p.Helper()
	pid, err := filelock.Try(p.path("local/pid"), filelock.Exclusive)
	p.must(err)
	p.Cleanup(pid.Unlock)
}

// An idle server looks at the lock's modification time before it stops.
func TestFind_keepsServer(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.mkdir("local", 0o700)
	socket := p.listen()
	p.link(socket, "local/socket")
	p.run()
	lock := localserver.Dir(p.path("local")).LockFile()
	now := time.Now()
	old := now.Add(-time.Hour)
	p.must(os.WriteFile(lock, nil, 0o600))
	p.must(os.Chtimes(lock, old, old))
	found, err := localserver.Dir(p.path("local")).Find(t.Context())
	if err != nil || found != socket {
		t.Fatalf("got %q, %v; want %q", found, err, socket)
	}
	if info, err := os.Stat(lock); err != nil || info.ModTime().Before(now.Add(-time.Minute)) {
		t.Errorf("the lock was last used at %v, %v; want now", info.ModTime(), err)
	}
}

// A socket in a directory of another user is not that of our server.
func TestFind_socketOfAnotherUser(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.mkdir("local", 0o700)
	p.run()
	p.mkdir("tmp", 0o700)
	l, err := net.Listen("unix", p.path("tmp/s"))
	p.must(err)
	t.Cleanup(func() { l.Close() })
	p.link(p.path("tmp/s"), "local/socket")
	p.give("tmp")
	if socket, err := localserver.Dir(p.path("local")).Find(t.Context()); !errors.Is(err, localserver.ErrNone) {
		t.Errorf("got %q, %v; want ErrNone", socket, err)
	}
}

// A link in place of a file is not followed: it would create or truncate a file elsewhere.
func TestFind_linkInPlaceOfLock(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.mkdir("local", 0o700)
	p.link(p.path("created"), "local/lock")
	if _, err := localserver.Dir(p.path("local")).Find(t.Context()); err == nil || errors.Is(err, localserver.ErrNone) {
		t.Errorf("got %v, want an error that names the lock", err)
	}
	if _, err := os.Lstat(p.path("created")); err == nil {
		t.Error("a file was created through the link")
	}
}
