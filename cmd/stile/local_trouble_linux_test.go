package main_test

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// If something is wrong with the directory of a local server, stile recovers, or fails with one
// line that says what to do.

// mkdir creates a directory in the home directory, with its parents.
func (m *machine) mkdir(mode os.FileMode, elem ...string) string {
	m.t.Helper()
	dir := m.path(elem...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		m.t.Fatal(err)
	}
	return dir
}

// symlink makes a symbolic link to target.
func (m *machine) symlink(target, path string) {
	m.t.Helper()
	if err := os.Symlink(target, path); err != nil {
		m.t.Fatal(err)
	}
}

// writeServerFile writes a file into the directory of the local server.
func (m *machine) writeServerFile(text string, elem ...string) {
	m.t.Helper()
	path := filepath.Join(append([]string{m.home()}, elem...)...)
	if err := os.MkdirAll(m.home(), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// freedSocketPath returns the path of the socket that the local server had and will use again. No
// file exists there.
func (m *machine) freedSocketPath() string {
	m.t.Helper()
	m.run("demo", "--", "true").expectExit(0)
	m.killServer()
	socket, err := os.Readlink(m.socketLink())
	for _, file := range []string{m.socketLink(), socket} {
		err = cmp.Or(err, os.Remove(file))
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return socket
}

// requireRoot skips a test that has to act as another user or mount a file system.
func requireRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: this test needs root")
	}
}

// mount mounts a file system in memory. With MS_REMOUNT it changes the options of a mounted one.
func (m *machine) mount(dir, options string, flags uintptr) {
	m.t.Helper()
	requireRoot(m.t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		m.t.Skipf("SKIPPED: root cannot mount a file system on this machine: %v", err)
	}
	if flags&syscall.MS_REMOUNT != 0 {
		return
	}
	m.t.Cleanup(func() {
		m.killServers()
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
	})
}

// guest is a machine whose user is unknown to the system and owns the home directory.
type guest struct {
	*machine
	uid int
}

// asGuest gives the machine to a user id that no other test uses, because all users share /tmp.
func (m *machine) asGuest() *guest {
	m.t.Helper()
	requireRoot(m.t)
	uid := 100_000 + rand.IntN(1_000_000_000)
	g := &guest{machine: m, uid: uid}
	err := filepath.WalkDir(m.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
	if err != nil {
		m.t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(stile), 0o755); err != nil {
		m.t.Fatal(err)
	}
	return g
}

// run runs stile run as the guest.
func (g *guest) run(args ...string) *command {
	g.t.Helper()
	c := g.command(append([]string{"run"}, args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(g.uid), Gid: uint32(g.uid)}}
	c.spawn().exitCode()
	return c
}

func TestLocal_unusableDirectory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(m *machine)
		parts   []string
	}{
		"home is a file": {
			func(m *machine) { m.setenv("HOME", m.write("file", "", 0o600)) },
			[]string{"file", "XDG_STATE_HOME", "--url"},
		},
		"home is relative": {
			func(m *machine) { m.setenv("HOME", "here") },
			[]string{"home directory is unknown", "set HOME or XDG_STATE_HOME"},
		},
		"home is read-only": {
			func(m *machine) { m.mount(m.mkdir(0o700, ".local"), "", syscall.MS_RDONLY) },
			[]string{"read-only file system", "XDG_STATE_HOME", "--url"},
		},
		"home is full": {
			func(m *machine) { m.mount(m.mkdir(0o700, ".local"), "size=64k", 0) },
			[]string{"local server did not start", "no space left on device", "free some space", "XDG_STATE_HOME", "--url"},
		},
		"directory in place of the socket": {
			func(m *machine) { m.mkdir(0o700, strings.TrimPrefix(m.freedSocketPath(), m.dir), "x") },
			[]string{"local server did not start", "local/server.sock", "--url"},
		},
		"another program at the socket": {
			func(m *machine) {
				l, err := net.Listen("unix", m.freedSocketPath())
				if err != nil {
					m.t.Fatal(err)
				}
				m.t.Cleanup(func() { l.Close() })
			},
			[]string{"local server did not start", "another program listens", "local/server.sock", "XDG_STATE_HOME", "--url"},
		},
		"home accessible to others": {
			func(m *machine) { m.mkdir(0o755, ".local", "state", "stile", "local") },
			[]string{"stile/local", "accessible to other users", "chmod 700", "--url"},
		},
		"home is a link": {
			func(m *machine) {
				m.mkdir(0o700, ".local", "state", "stile")
				m.symlink(m.dir, m.home())
			},
			[]string{"stile/local", "is not a directory", "move it away", "--url"},
		},
		"data is a file": {
			func(m *machine) { m.writeServerFile("", "data") },
			[]string{"local server did not start", "local/data", "not a directory", "--url"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			c.prepare(m)
			m.run("demo", "--", "true").expectExit(125, c.parts...)
		})
	}
}

func TestLocal_recoversFromFullDisk(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	dir := m.mkdir(0o700, ".local")
	m.mount(dir, "size=64k", 0)
	m.run("demo", "--", "true").expectExit(125, "no space left on device", "free some space")
	m.mount(dir, "size=200m", syscall.MS_REMOUNT)
	m.run("demo", "--", "true").expectExit(0)
}

func TestLocal_permissionDenied(t *testing.T) {
	t.Parallel()
	t.Run("home", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.mkdir(0o500)
		g.run("demo", "--", "true").expectExit(125, ".local", "permission denied", "XDG_STATE_HOME", "--url")
	})
	t.Run("state directory of another user", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.writeServerFile("", "lock")
		g := m.asGuest()
		if err := os.Chown(m.home(), 0, 0); err != nil {
			t.Fatal(err)
		}
		g.run("demo", "--", "true").expectExit(125, "stile/local belongs to user root (0)", "XDG_STATE_HOME", "--url")
	})
}

func TestLocal_withoutHome(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	g.setenv("HOME", "")
	g.run("demo", "--", "true").expectExit(125, "HOME is not set", "set HOME or XDG_STATE_HOME")
	g.setenv("XDG_STATE_HOME", g.path(".local", "state"))
	g.run("demo", "--", "true").expectExit(0)
}

// sudo may keep the user's HOME. The advice to root must not be to remove the user's data.
func TestLocal_rootInHomeOfUser(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	g.run("demo", "--", "true").expectExit(0)
	c := g.machine.run("demo", "--", "true")
	c.expectExit(125, fmt.Sprintf("belongs to user %d", g.uid), "this is user root (0)", "run as that user", "sudo -H", "--url")
	if stderr := c.stderr.String(); strings.Contains(stderr, "remove") {
		t.Errorf("stderr advises to remove something: %s", stderr)
	}
}

// The user of the home directory has made links to files of root. Root does not create or truncate them,
// neither as a client of the local server nor with stile serve.
func TestLocal_rootFollowsNoLinksOfUser(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"client": {"run", "demo", "--", "true"}, "server": {"serve", "--listen", "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newMachine(t).asGuest()
			secret := filepath.Join(t.TempDir(), "secret") // of root
			if err := os.MkdirAll(secret, 0o700); err != nil {
				t.Fatal(err)
			}
			g.mkdir(0o755, ".local", "state")
			link := g.path(".local", "state", "stile")
			g.symlink(secret, link)
			for _, path := range []string{g.path(".local"), g.path(".local", "state"), link} {
				if err := os.Lchown(path, g.uid, g.uid); err != nil {
					t.Fatal(err)
				}
			}
			c := g.machine.stile(args...)
			c.expectExit(125, fmt.Sprintf("belongs to user %d", g.uid), "sudo -H")
			if created, err := os.ReadDir(secret); err != nil || len(created) != 0 {
				t.Errorf("root has created %v, %v in its own directory", created, err)
			}
		})
	}
}

// Links in place of the files that the server writes are not followed.
func TestLocal_followsNoLinks(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"lock", "server.log"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			target := m.write("target", "text", 0o600)
			m.mkdir(0o700, ".local", "state", "stile", "local")
			m.symlink(target, filepath.Join(m.home(), file))
			m.run("demo", "--", "true").expectExit(125, "/"+file, "too many levels of symbolic links")
			if got := m.read("target"); got != "text" {
				t.Errorf("the target of the link has changed to %q", got)
			}
		})
	}
}

// A home directory that is a link, on another disk, or writable to its user's own group is no danger.
func TestLocal_unusualHome(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.mkdir(0o775, "disk", "home")
	m.mkdir(0o755, "disk", "local")
	m.symlink("disk/home", m.path("link"))
	m.symlink("../local", m.path("disk", "home", ".local"))
	m.setenv("HOME", m.path("link"))
	m.run("demo", "--", "true").expectExit(0)
	if !m.exists("disk/local/state/stile/local/pid") {
		t.Error("the server is not in the state directory of the home directory")
	}
}

// checkPrivateTmpDir checks that the socket of the machine's server is in a private directory with
// a random name in /tmp, and returns the path of that directory.
func (m *machine) checkPrivateTmpDir(uid int) string {
	m.t.Helper()
	socket, err := os.Readlink(m.socketLink())
	if err != nil {
		m.t.Fatal(err)
	}
	dir := filepath.Dir(socket)
	info, err := os.Lstat(dir)
	if err != nil || info.Mode() != os.ModeDir|0o700 || info.Sys().(*syscall.Stat_t).Uid != uint32(uid) ||
		!regexp.MustCompile(`^/tmp/stile-[0-9]+$`).MatchString(dir) || dir == fmt.Sprintf("/tmp/stile-%d", uid) {
		m.t.Errorf("the directory of the socket is %s: %v, %v; want a private directory with a random name in /tmp", dir, info, err)
	}
	return dir
}

func TestLocal_socketPath(t *testing.T) {
	t.Parallel()
	t.Run("in the state directory", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.run("demo", "--", "true").expectExit(0)
		if socket, err := os.Readlink(m.socketLink()); err != nil || socket != filepath.Join(m.home(), "server.sock") {
			t.Errorf("the socket is %s, %v, want it in %s", socket, err, m.home())
		}
		for _, dir := range []string{m.home(), m.path("run")} {
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil || slices.ContainsFunc(files, func(f string) bool {
				return !slices.Contains([]string{"data", "lock", "pid", "server.log", "server.sock", "server.sock.tether", "socket"}, filepath.Base(f))
			}) {
				t.Errorf("got unexpected files in %q, %v", files, err)
			}
		}
	})
	t.Run("path too long", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.useLongStateDir()
		m.run("demo", "--", "true").expectExit(0)
		m.checkPrivateTmpDir(os.Getuid())
	})
	// Some network file systems and those of some other operating systems do not support sockets.
	t.Run("no sockets on the file system", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.mkdir(0o700, ".local", "state", "stile", "local", "try.sock", "x")
		m.run("demo", "--", "true").expectExit(0)
		m.checkPrivateTmpDir(os.Getuid())
	})
	t.Run("another user", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.useLongStateDir()
		g.run("demo", "--", "true").expectExit(0)
		g.checkPrivateTmpDir(g.uid)
	})
}

// A directory with a random name would otherwise stay in /tmp forever.
func TestLocal_removesTmpDir(t *testing.T) {
	t.Parallel()
	isGone := func(dir string) bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist)
	}
	t.Run("terminated", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.useLongStateDir()
		// A server that has not noticed yet that its last client has disconnected leaves the
		// directory to that client and to the next server. So this may take more than one attempt.
		eventually(t, "removal of the directory", func() bool {
			m.run("demo", "--", "true").expectExit(0)
			dir, pid := m.checkPrivateTmpDir(os.Getuid()), m.serverPID()
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			eventually(t, "end of the server", func() bool { return !running(pid) })
			return isGone(dir)
		})
		m.run("demo", "--", "true").expectExit(0)
	})
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.useLongStateDir()
		m.run("demo", "--", "true").expectExit(0)
		dir := m.checkPrivateTmpDir(os.Getuid())
		m.killServer()
		socket, err := os.Readlink(m.socketLink())
		if err != nil {
			t.Fatal(err)
		}
		m.startBackground(socket, time.Second)
		eventually(t, "removal of the directory", func() bool { return isGone(dir) })
		m.run("demo", "--", "true").expectExit(0)
	})
	t.Run("start failed", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.useLongStateDir()
		m.writeServerFile("", "data")
		m.run("demo", "--", "true").expectExit(125, "not a directory")
		socket, err := os.Readlink(m.socketLink())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Dir(socket)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s still exists: %v", filepath.Dir(socket), err)
		}
	})
}

// A holder keeps looking for the server at that path, so another user must not get it.
func TestLocal_keepsTmpDirForHolders(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.useLongStateDir()
	holder := m.start(endableScript, "demo")
	dir, before := m.checkPrivateTmpDir(os.Getuid()), m.serverPID()
	if err := syscall.Kill(before, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another server", func() bool { return m.serverPID() != before && running(m.serverPID()) })
	if again := m.checkPrivateTmpDir(os.Getuid()); again != dir {
		t.Errorf("the next server's socket is in %s, want %s", again, dir)
	}
	m.run("-n", "demo", "--", "true").expectExit(75, "demo")
	m.endScript()
	holder.expectExit(0)
}

// All users can write to /tmp, so another user can create a directory first.
func TestLocal_tmpDirOccupied(t *testing.T) {
	t.Parallel()
	t.Run("earlier version", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.setenv("XDG_RUNTIME_DIR", "")
		occupied := fmt.Sprintf("/tmp/stile-%d", g.uid)
		if err := os.Mkdir(occupied, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(occupied) })
		g.run("demo", "--", "true").expectExit(0)
	})
	for name, occupy := range map[string]func(g *guest, dir string) error{
		"directory":     func(_ *guest, dir string) error { return os.Mkdir(dir, 0o777) },
		"link":          func(g *guest, dir string) error { return os.Symlink(g.dir, dir) },
		"dangling link": func(_ *guest, dir string) error { return os.Symlink("/no/such", dir) },
		"server": func(g *guest, dir string) error {
			if err := os.Mkdir(dir, 0o777); err != nil {
				return err
			}
			socket, err := os.Readlink(g.socketLink())
			if err != nil {
				return err
			}
			l, err := net.Listen("unix", socket)
			if err == nil {
				g.t.Cleanup(func() { l.Close() })
				err = cmp.Or(os.Chmod(socket, 0o777), os.Chmod(dir, 0o777))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newMachine(t).asGuest()
			g.useLongStateDir()
			g.run("demo", "--", "true").expectExit(0)
			dir := g.checkPrivateTmpDir(g.uid)
			g.killServer()
			if err := cmp.Or(os.RemoveAll(dir), occupy(g, dir)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			g.run("demo", "--", "true").expectExit(0)
			if again := g.checkPrivateTmpDir(g.uid); again == dir {
				t.Errorf("the server's socket is still in %s", dir)
			}
		})
	}
}

func TestLocal_replacesFilesInTheWay(t *testing.T) {
	t.Parallel()
	t.Run("socket", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		if err := os.WriteFile(m.prepareRuntimeSocket(), []byte("not a socket"), 0o600); err != nil {
			t.Fatal(err)
		}
		m.run("demo", "--", "true").expectExit(0)
	})
	t.Run("link", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.writeServerFile("not a link", "socket")
		m.run("demo", "--", "true").expectExit(0)
	})
}

func TestLocal_hungServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").expectExit(0)
	pid := m.serverPID()
	pause(t, pid)
	m.run("demo", "--", "true").expectExit(125, "does not answer", fmt.Sprintf("kill -CONT %d", pid),
		fmt.Sprintf("kill -9 %d", pid), "--url")
	kill(t, pid, syscall.SIGCONT)
	m.run("demo", "--", "true").expectExit(0)
	if again := m.serverPID(); again != pid {
		t.Errorf("another server was started: got PID %d, want %d", again, pid)
	}
}

// A runtime directory is removed at the last logout, /tmp is cleaned up, and an administrator may
// remove anything. That must not lock out other clients while a command runs, and must not let two
// clients hold one lock.
func TestLocal_socketRemoved(t *testing.T) {
	t.Parallel()
	socketDir := func(m *machine) string {
		socket, err := os.Readlink(m.socketLink())
		if err != nil {
			m.t.Fatal(err)
		}
		return filepath.Dir(socket)
	}
	for name, c := range map[string]struct {
		prepare func(m *machine)
		remove  func(m *machine) error
	}{
		"socket": {
			func(*machine) {},
			func(m *machine) error { return os.Remove(filepath.Join(m.home(), "server.sock")) },
		},
		"socket and link": {
			func(*machine) {},
			func(m *machine) error {
				return cmp.Or(os.Remove(filepath.Join(m.home(), "server.sock")), os.Remove(m.socketLink()))
			},
		},
		"file in place of the socket": {
			func(*machine) {},
			func(m *machine) error {
				socket := filepath.Join(m.home(), "server.sock")
				return cmp.Or(os.Remove(socket), os.WriteFile(socket, nil, 0o600))
			},
		},
		"runtime directory": {
			func(m *machine) { m.prepareRuntimeSocket() },
			func(m *machine) error { return os.RemoveAll(m.path("run")) },
		},
		"directory in /tmp": {
			(*machine).useLongStateDir,
			func(m *machine) error { return os.RemoveAll(socketDir(m)) },
		},
		"directory in /tmp, recreated by another user": {
			(*machine).useLongStateDir,
			func(m *machine) error {
				requireRoot(m.t)
				dir := socketDir(m)
				m.t.Cleanup(func() { os.RemoveAll(dir) })
				return cmp.Or(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.Chown(dir, 65534, 65534))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			c.prepare(m)
			holder := m.start(endableScript, "demo")
			pid := m.serverPID()
			if err := c.remove(m); err != nil {
				t.Fatal(err)
			}
			m.run("-n", "demo", "--", "true").expectExit(75, "demo")
			if again := m.serverPID(); again != pid {
				t.Errorf("another server was started: got PID %d, want %d", again, pid)
			}
			m.endScript()
			holder.expectExit(0)
			m.run("-n", "demo", "--", "true").expectExit(0)
		})
	}
}

func TestLocal_unusableData(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(t *testing.T, member string)
		parts  []string
	}{
		"damaged database": {
			func(t *testing.T, member string) { overwrite(t, filepath.Join(member, "snap", "db")) },
			[]string{"database"},
		},
		"damaged log": {
			func(t *testing.T, member string) {
				logs, err := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
				if err != nil || len(logs) == 0 {
					t.Fatalf("got log files %v, %v, want at least one", logs, err)
				}
				overwrite(t, logs[0])
			},
			nil,
		},
		"data of a later version": {
			func(t *testing.T, member string) { setVersion(t, filepath.Join(member, "snap", "db"), "3.99.0") },
			[]string{"3.99"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.run("demo", "--", "true").expectExit(0)
			m.killServer()
			c.damage(t, filepath.Join(m.home(), "data", "etcd", "member"))
			parts := append([]string{"local server did not start", "local/data", "move the directory away", "--url"}, c.parts...)
			m.run("demo", "--", "true").expectExit(125, parts...)
			if err := os.RemoveAll(filepath.Join(m.home(), "data")); err != nil {
				t.Fatal(err)
			}
			m.run("demo", "--", "true").expectExit(0)
		})
	}
}

// overwrite damages a file near its beginning.
func overwrite(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(strings.Repeat("damaged ", 2000)), 32); err != nil {
		t.Fatal(err)
	}
}

// setVersion makes the data look as if this version of etcd had written it.
func setVersion(t *testing.T, path, version string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("storageVersion"), []byte(version))
	})
	if err != nil {
		t.Fatal(err)
	}
}
