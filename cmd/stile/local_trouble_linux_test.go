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

// What can be wrong with the place of a local server is recovered from, or refused with one line that says what to do.

// mkdir makes a directory in the home directory, with those above it.
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

// put writes a file of the local server.
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

// freedSocketPath returns the path of the socket that the local server has had, and will have again; nothing is there.
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

// requireRoot skips the test where it cannot be somebody else, or mount something.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: this test has to be root")
	}
}

// mount mounts a file system in memory. Mounted again it gets other options.
func (m *machine) mount(dir, options string, flags uintptr) {
	m.t.Helper()
	requireRoot(m.t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		m.t.Skipf("SKIPPED: this machine does not let root mount a file system: %v", err)
	}
	if flags&syscall.MS_REMOUNT != 0 {
		return
	}
	m.t.Cleanup(func() {
		m.killServers()
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
	})
}

// A guest is a user that the system does not know, and whose home directory the machine's is.
type guest struct {
	*machine
	uid int
}

// asGuest makes the machine that of a user that nobody else is: all users share /tmp.
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

// run is run by the guest.
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
		"home is no directory": {
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
		"a directory where the socket should be": {
			func(m *machine) { m.mkdir(0o700, strings.TrimPrefix(m.freedSocketPath(), m.dir), "x") },
			[]string{"local server did not start", "local/server.sock", "--url"},
		},
		"a stranger where the socket should be": {
			func(m *machine) {
				l, err := net.Listen("unix", m.freedSocketPath())
				if err != nil {
					m.t.Fatal(err)
				}
				m.t.Cleanup(func() { l.Close() })
			},
			[]string{"local server did not start", "another program listens", "local/server.sock", "XDG_STATE_HOME", "--url"},
		},
		"home open to others": {
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
	t.Run("state directory of somebody else", func(t *testing.T) {
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

// sudo may leave HOME as it is: that must not become a reason to remove what the user has there.
func TestLocal_rootInHomeOfUser(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	g.run("demo", "--", "true").expectExit(0)
	c := g.machine.run("demo", "--", "true")
	c.expectExit(125, fmt.Sprintf("belongs to user %d", g.uid), "this is user root (0)", "run stile as that user", "sudo -H", "--url")
	if said := c.stderr.String(); strings.Contains(said, "remove") {
		t.Errorf("stderr says to remove something: %s", said)
	}
}

// checkPrivateTmpDir checks that the socket of a machine's server is in a private directory with a random name in /tmp,
// and returns the path of that directory.
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
		m.t.Errorf("the socket is in %s: %v, %v; want a private directory with a random name in /tmp", dir, info, err)
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
			t.Errorf("the socket is %s, %v, want it to be in %s", socket, err, m.home())
		}
		for _, dir := range []string{m.home(), m.path("run")} {
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil || slices.ContainsFunc(files, func(f string) bool {
				return !slices.Contains([]string{"data", "lock", "pid", "server.log", "server.sock", "socket"}, filepath.Base(f))
			}) {
				t.Errorf("there are %q, %v", files, err)
			}
		}
	})
	t.Run("the path is too long", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.useLongStateDir()
		m.run("demo", "--", "true").expectExit(0)
		m.checkPrivateTmpDir(os.Getuid())
	})
	// As with those file systems of other machines and of other operating systems that have no sockets.
	t.Run("a socket cannot be made", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.mkdir(0o700, ".local", "state", "stile", "local", "try.sock", "x")
		m.run("demo", "--", "true").expectExit(0)
		m.checkPrivateTmpDir(os.Getuid())
	})
	t.Run("of another user", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.useLongStateDir()
		g.run("demo", "--", "true").expectExit(0)
		g.checkPrivateTmpDir(g.uid)
	})
}

// A directory with a random name would stay there for good.
func TestLocal_removesTmpDir(t *testing.T) {
	t.Parallel()
	isGone := func(dir string) bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist)
	}
	t.Run("told to end", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.useLongStateDir()
		// A server that has not noticed yet that the last client has gone leaves the directory for it, and for the next server.
		eventually(t, "the end of the directory", func() bool {
			m.run("demo", "--", "true").expectExit(0)
			dir, pid := m.checkPrivateTmpDir(os.Getuid()), m.serverPID()
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the end of the server", func() bool { return !running(pid) })
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
		eventually(t, "the end of the directory", func() bool { return isGone(dir) })
		m.run("demo", "--", "true").expectExit(0)
	})
	t.Run("could not start", func(t *testing.T) {
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
			t.Errorf("%s is still there: %v", filepath.Dir(socket), err)
		}
	})
}

// Whoever holds something goes on looking for the server there: another user must not get that place.
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
		t.Errorf("the next server is in %s, after %s", again, dir)
	}
	m.run("-n", "demo", "--", "true").expectExit(75, "demo")
	m.endScript()
	holder.expectExit(0)
}

// Everybody may write to /tmp, and can be there first.
func TestLocal_tmpDirOccupied(t *testing.T) {
	t.Parallel()
	t.Run("of an earlier version", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.setenv("XDG_RUNTIME_DIR", "")
		squatted := fmt.Sprintf("/tmp/stile-%d", g.uid)
		if err := os.Mkdir(squatted, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(squatted) })
		g.run("demo", "--", "true").expectExit(0)
	})
	for name, occupy := range map[string]func(g *guest, dir string) error{
		"a directory":       func(_ *guest, dir string) error { return os.Mkdir(dir, 0o777) },
		"a link":            func(g *guest, dir string) error { return os.Symlink(g.dir, dir) },
		"a link to nothing": func(_ *guest, dir string) error { return os.Symlink("/no/such", dir) },
		"a server": func(g *guest, dir string) error {
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
				t.Errorf("the server is still in %s", dir)
			}
		})
	}
}

func TestLocal_replacesFilesInTheWay(t *testing.T) {
	t.Parallel()
	t.Run("of the socket", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		if err := os.WriteFile(m.prepareRuntimeSocket(), []byte("not a socket"), 0o600); err != nil {
			t.Fatal(err)
		}
		m.run("demo", "--", "true").expectExit(0)
	})
	t.Run("of the link", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.writeServerFile("not a link", "socket")
		m.run("demo", "--", "true").expectExit(0)
	})
}

// stopped reports whether every thread of a process has been stopped. A signal takes its time to reach them.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d has no threads: %v", pid, err)
	}
	return !slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		return err == nil && !strings.Contains(string(stat), ") T ")
	})
}

func TestLocal_hungServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").expectExit(0)
	pid := m.serverPID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "standstill of the server", func() bool { return stopped(t, pid) })
	m.run("demo", "--", "true").expectExit(125, "does not answer", fmt.Sprintf("kill -CONT %d", pid),
		fmt.Sprintf("kill -9 %d", pid), "--url")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.run("demo", "--", "true").expectExit(0)
	if again := m.serverPID(); again != pid {
		t.Errorf("another server was started: %d after %d", again, pid)
	}
}

// A runtime directory is removed at the last logout, /tmp is cleaned up, and an administrator may remove anything. That
// must not lock anybody out for as long as a job runs, nor let two have a lock.
func TestLocal_socketRemoved(t *testing.T) {
	t.Parallel()
	dirOf := func(m *machine) string {
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
		"the socket": {
			func(*machine) {},
			func(m *machine) error { return os.Remove(filepath.Join(m.home(), "server.sock")) },
		},
		"socket and link": {
			func(*machine) {},
			func(m *machine) error {
				return cmp.Or(os.Remove(filepath.Join(m.home(), "server.sock")), os.Remove(m.socketLink()))
			},
		},
		"a file in its place": {
			func(*machine) {},
			func(m *machine) error {
				socket := filepath.Join(m.home(), "server.sock")
				return cmp.Or(os.Remove(socket), os.WriteFile(socket, nil, 0o600))
			},
		},
		"the runtime directory": {
			func(m *machine) { m.prepareRuntimeSocket() },
			func(m *machine) error { return os.RemoveAll(m.path("run")) },
		},
		"a directory in /tmp": {
			(*machine).useLongStateDir,
			func(m *machine) error { return os.RemoveAll(dirOf(m)) },
		},
		"a directory in /tmp that another user makes again": {
			(*machine).useLongStateDir,
			func(m *machine) error {
				requireRoot(m.t)
				dir := dirOf(m)
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
				t.Errorf("another server was started: %d after %d", again, pid)
			}
			m.endScript()
			holder.expectExit(0)
			m.run("-n", "demo", "--", "true").expectExit(0)
		})
	}
}

// A home on a network file system is that of several machines.
func TestLocal_serverOnAnotherMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.writeServerFile("999999999\n", "pid") // no process has that number
	defer m.lockPIDFile().Unlock()
	c := m.run("demo", "--", "true")
	c.expectExit(125, "another machine", "XDG_STATE_HOME", "--url")
	if said := c.stderr.String(); strings.Contains(said, "kill") {
		t.Errorf("stderr says to kill a process here: %s", said)
	}
}

func TestLocal_unusableData(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(t *testing.T, member string)
		parts  []string
	}{
		"a damaged database": {
			func(t *testing.T, member string) { overwrite(t, filepath.Join(member, "snap", "db")) },
			[]string{"database"},
		},
		"a damaged log": {
			func(t *testing.T, member string) {
				logs, err := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
				if err != nil || len(logs) == 0 {
					t.Fatalf("found %v, %v", logs, err)
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

// overwrite damages the beginning of a file.
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

// setVersion makes the data look as if that version of etcd had written it.
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
