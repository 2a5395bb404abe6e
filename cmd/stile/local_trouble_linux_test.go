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
func (m *machine) put(text string, elem ...string) {
	m.t.Helper()
	path := filepath.Join(append([]string{m.home()}, elem...)...)
	if err := os.MkdirAll(m.home(), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// usedSocket returns the path of the socket that the local server has had, and will have again; nothing is there.
func (m *machine) usedSocket() string {
	m.t.Helper()
	m.run("demo", "--", "true").wants(0)
	m.killServer()
	socket, err := os.Readlink(m.link())
	for _, file := range []string{m.link(), socket} {
		err = cmp.Or(err, os.Remove(file))
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return socket
}

// needsRoot skips the test where it cannot be somebody else, or mount something.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: this test has to be root")
	}
}

// mount mounts a file system in memory. Mounted again it gets other options.
func (m *machine) mount(dir, options string, flags uintptr) {
	m.t.Helper()
	needsRoot(m.t)
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
	needsRoot(m.t)
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
	c.begin().code()
	return c
}

func TestNoPlaceForALocalServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(m *machine)
		parts   []string
	}{
		"home is no directory": {
			func(m *machine) { m.set("HOME", m.write("file", "", 0o600)) },
			[]string{"file", "XDG_STATE_HOME", "--url"},
		},
		"home is relative": {
			func(m *machine) { m.set("HOME", "here") },
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
			func(m *machine) { m.mkdir(0o700, strings.TrimPrefix(m.usedSocket(), m.dir), "x") },
			[]string{"local server did not start", "local/server.sock", "--url"},
		},
		"a stranger where the socket should be": {
			func(m *machine) {
				l, err := net.Listen("unix", m.usedSocket())
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
			func(m *machine) { m.put("", "data") },
			[]string{"local server did not start", "local/data", "not a directory", "--url"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			c.prepare(m)
			m.run("demo", "--", "true").wants(125, c.parts...)
		})
	}
}

func TestAFullDiskIsAllRightAgainWithRoom(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	dir := m.mkdir(0o700, ".local")
	m.mount(dir, "size=64k", 0)
	m.run("demo", "--", "true").wants(125, "no space left on device", "free some space")
	m.mount(dir, "size=200m", syscall.MS_REMOUNT)
	m.run("demo", "--", "true").wants(0)
}

func TestPlacesThatTheUserMayNotWriteTo(t *testing.T) {
	t.Parallel()
	t.Run("home", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.mkdir(0o500)
		g.run("demo", "--", "true").wants(125, ".local", "permission denied", "XDG_STATE_HOME", "--url")
	})
	t.Run("state directory of somebody else", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.put("", "lock")
		g := m.asGuest()
		if err := os.Chown(m.home(), 0, 0); err != nil {
			t.Fatal(err)
		}
		g.run("demo", "--", "true").wants(125, "stile/local belongs to user root (0)", "XDG_STATE_HOME", "--url")
	})
}

func TestWithoutAHomeDirectory(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	g.set("HOME", "")
	g.run("demo", "--", "true").wants(125, "HOME is not set", "set HOME or XDG_STATE_HOME")
	g.set("XDG_STATE_HOME", g.path(".local", "state"))
	g.run("demo", "--", "true").wants(0)
}

// sudo may leave HOME as it is: that must not become a reason to remove what the user has there.
func TestRootIsNotToldToRemoveTheDataOfAUser(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	g.run("demo", "--", "true").wants(0)
	c := g.machine.run("demo", "--", "true")
	c.wants(125, fmt.Sprintf("belongs to user %d", g.uid), "this is user root (0)", "run stile as that user", "sudo -H", "--url")
	if said := c.stderr.String(); strings.Contains(said, "remove") {
		t.Errorf("stderr says to remove something: %s", said)
	}
}

// hasPrivatePlaceInTmp checks that the socket of a machine's server is in a private directory with a random name in /tmp,
// and returns the path of that directory.
func (m *machine) hasPrivatePlaceInTmp(uid int) string {
	m.t.Helper()
	socket, err := os.Readlink(m.link())
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

func TestWhereTheSocketIs(t *testing.T) {
	t.Parallel()
	t.Run("in the state directory", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.run("demo", "--", "true").wants(0)
		if socket, err := os.Readlink(m.link()); err != nil || socket != filepath.Join(m.home(), "server.sock") {
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
		m.lengthen()
		m.run("demo", "--", "true").wants(0)
		m.hasPrivatePlaceInTmp(os.Getuid())
	})
	// As with those file systems of other machines and of other operating systems that have no sockets.
	t.Run("a socket cannot be made", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.mkdir(0o700, ".local", "state", "stile", "local", "try.sock", "x")
		m.run("demo", "--", "true").wants(0)
		m.hasPrivatePlaceInTmp(os.Getuid())
	})
	t.Run("of another user", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.lengthen()
		g.run("demo", "--", "true").wants(0)
		g.hasPrivatePlaceInTmp(g.uid)
	})
}

// A directory with a random name would stay there for good.
func TestAServerInTmpLeavesNothingThere(t *testing.T) {
	t.Parallel()
	isGone := func(dir string) bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist)
	}
	t.Run("told to end", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.lengthen()
		// A server that has not noticed yet that the last client has gone leaves the directory for it, and for the next server.
		eventually(t, "the end of the directory", func() bool {
			m.run("demo", "--", "true").wants(0)
			dir, pid := m.hasPrivatePlaceInTmp(os.Getuid()), m.server()
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the end of the server", func() bool { return !running(pid) })
			return isGone(dir)
		})
		m.run("demo", "--", "true").wants(0)
	})
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.lengthen()
		m.run("demo", "--", "true").wants(0)
		dir := m.hasPrivatePlaceInTmp(os.Getuid())
		m.killServer()
		socket, err := os.Readlink(m.link())
		if err != nil {
			t.Fatal(err)
		}
		m.background(socket, time.Second)
		eventually(t, "the end of the directory", func() bool { return isGone(dir) })
		m.run("demo", "--", "true").wants(0)
	})
	t.Run("could not start", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.lengthen()
		m.put("", "data")
		m.run("demo", "--", "true").wants(125, "not a directory")
		socket, err := os.Readlink(m.link())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Dir(socket)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", filepath.Dir(socket), err)
		}
	})
}

// Whoever holds something goes on looking for the server there: another user must not get that place.
func TestAPlaceInTmpIsKeptForThoseWhoHoldSomething(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.lengthen()
	holder := m.start(untilTold, "demo")
	dir, before := m.hasPrivatePlaceInTmp(os.Getuid()), m.server()
	if err := syscall.Kill(before, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another server", func() bool { return m.server() != before && running(m.server()) })
	if again := m.hasPrivatePlaceInTmp(os.Getuid()); again != dir {
		t.Errorf("the next server is in %s, after %s", again, dir)
	}
	m.run("-n", "demo", "--", "true").wants(75, "demo")
	m.tellEnd()
	holder.wants(0)
}

// Everybody may write to /tmp, and can be there first.
func TestAnotherUserCannotOccupyThePlace(t *testing.T) {
	t.Parallel()
	t.Run("of an earlier version", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.set("XDG_RUNTIME_DIR", "")
		squatted := fmt.Sprintf("/tmp/stile-%d", g.uid)
		if err := os.Mkdir(squatted, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(squatted) })
		g.run("demo", "--", "true").wants(0)
	})
	for name, occupy := range map[string]func(g *guest, dir string) error{
		"a directory":       func(_ *guest, dir string) error { return os.Mkdir(dir, 0o777) },
		"a link":            func(g *guest, dir string) error { return os.Symlink(g.dir, dir) },
		"a link to nothing": func(_ *guest, dir string) error { return os.Symlink("/no/such", dir) },
		"a server": func(g *guest, dir string) error {
			if err := os.Mkdir(dir, 0o777); err != nil {
				return err
			}
			socket, err := os.Readlink(g.link())
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
			g.lengthen()
			g.run("demo", "--", "true").wants(0)
			dir := g.hasPrivatePlaceInTmp(g.uid)
			g.killServer()
			if err := cmp.Or(os.RemoveAll(dir), occupy(g, dir)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			g.run("demo", "--", "true").wants(0)
			if again := g.hasPrivatePlaceInTmp(g.uid); again == dir {
				t.Errorf("the server is still in %s", dir)
			}
		})
	}
}

func TestFilesInTheWayAreReplaced(t *testing.T) {
	t.Parallel()
	t.Run("of the socket", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		if err := os.WriteFile(m.place(), []byte("not a socket"), 0o600); err != nil {
			t.Fatal(err)
		}
		m.run("demo", "--", "true").wants(0)
	})
	t.Run("of the link", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.put("not a link", "socket")
		m.run("demo", "--", "true").wants(0)
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

func TestAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").wants(0)
	pid := m.server()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "standstill of the server", func() bool { return stopped(t, pid) })
	m.run("demo", "--", "true").wants(125, "does not answer", fmt.Sprintf("kill -CONT %d", pid),
		fmt.Sprintf("kill -9 %d", pid), "--url")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.run("demo", "--", "true").wants(0)
	if again := m.server(); again != pid {
		t.Errorf("another server was started: %d after %d", again, pid)
	}
}

// A runtime directory is removed at the last logout, /tmp is cleaned up, and an administrator may remove anything. That
// must not lock anybody out for as long as a job runs, nor let two have a lock.
func TestAServerWhoseSocketIsRemovedListensAgain(t *testing.T) {
	t.Parallel()
	dirOf := func(m *machine) string {
		socket, err := os.Readlink(m.link())
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
				return cmp.Or(os.Remove(filepath.Join(m.home(), "server.sock")), os.Remove(m.link()))
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
			func(m *machine) { m.place() },
			func(m *machine) error { return os.RemoveAll(m.path("run")) },
		},
		"a directory in /tmp": {
			(*machine).lengthen,
			func(m *machine) error { return os.RemoveAll(dirOf(m)) },
		},
		"a directory in /tmp that another user makes again": {
			(*machine).lengthen,
			func(m *machine) error {
				needsRoot(m.t)
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
			holder := m.start(untilTold, "demo")
			pid := m.server()
			if err := c.remove(m); err != nil {
				t.Fatal(err)
			}
			m.run("-n", "demo", "--", "true").wants(75, "demo")
			if again := m.server(); again != pid {
				t.Errorf("another server was started: %d after %d", again, pid)
			}
			m.tellEnd()
			holder.wants(0)
			m.run("-n", "demo", "--", "true").wants(0)
		})
	}
}

// A home on a network file system is that of several machines.
func TestAServerOnAnotherMachine(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.put("999999999\n", "pid") // no process has that number
	defer m.lockPID().Unlock()
	c := m.run("demo", "--", "true")
	c.wants(125, "another machine", "XDG_STATE_HOME", "--url")
	if said := c.stderr.String(); strings.Contains(said, "kill") {
		t.Errorf("stderr says to kill a process here: %s", said)
	}
}

func TestDataThatCannotBeUsed(t *testing.T) {
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
			m.run("demo", "--", "true").wants(0)
			m.killServer()
			c.damage(t, filepath.Join(m.home(), "data", "etcd", "member"))
			parts := append([]string{"local server did not start", "local/data", "move the directory away", "--url"}, c.parts...)
			m.run("demo", "--", "true").wants(125, parts...)
			if err := os.RemoveAll(filepath.Join(m.home(), "data")); err != nil {
				t.Fatal(err)
			}
			m.run("demo", "--", "true").wants(0)
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
