package main_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

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
	tmp string // where its socket goes without a runtime directory
}

// asGuest makes the machine that of a user that nobody else is: all users share /tmp.
func (m *machine) asGuest() *guest {
	m.t.Helper()
	needsRoot(m.t)
	uid := 100_000 + rand.IntN(1_000_000_000)
	g := &guest{machine: m, uid: uid, tmp: fmt.Sprintf("/tmp/stile-%d", uid)}
	m.t.Cleanup(func() { os.RemoveAll(g.tmp) })
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
			[]string{"local server did not start", "no space left on device", "make room", "XDG_STATE_HOME", "--url"},
		},
		"runtime directory is full": {
			func(m *machine) { m.mount(m.path("run"), "size=64k,nr_inodes=1,mode=700", 0) },
			[]string{"run/stile", "no space left on device", "make room", "XDG_RUNTIME_DIR", "--url"},
		},
		"runtime directory too long": {
			func(m *machine) { m.set("XDG_RUNTIME_DIR", m.mkdir(0o700, strings.Repeat("x", 100))) },
			[]string{"socket", "bytes", "XDG_RUNTIME_DIR", "--url"},
		},
		"socket's directory open to others": {
			func(m *machine) { m.mkdir(0o755, "run", "stile") },
			[]string{"run/stile", "open to others", "chmod 700", "--url"},
		},
		"socket's directory is a link": {
			func(m *machine) { m.symlink(m.dir, m.path("run", "stile")) },
			[]string{"run/stile", "should be a directory", "remove it", "--url"},
		},
		"socket's directory is a link to nothing": {
			func(m *machine) { m.symlink("/no/such", m.path("run", "stile")) },
			[]string{"run/stile", "should be a directory", "remove it", "--url"},
		},
		"a directory where the socket should be": {
			func(m *machine) { m.mkdir(0o700, strings.TrimPrefix(m.usedSocket(), m.dir), "x") },
			[]string{"local server did not start", "run/stile/local-", "--url"},
		},
		"a stranger where the socket should be": {
			func(m *machine) {
				l, err := net.Listen("unix", m.usedSocket())
				if err != nil {
					m.t.Fatal(err)
				}
				m.t.Cleanup(func() { l.Close() })
			},
			[]string{"local server did not start", "another program listens", "run/stile/local-", "XDG_RUNTIME_DIR", "--url"},
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
	m.run("demo", "--", "true").wants(125, "no space left on device", "make room")
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
	t.Run("runtime directory", func(t *testing.T) {
		t.Parallel()
		g := newMachine(t).asGuest()
		g.mkdir(0o500, "run")
		g.run("demo", "--", "true").wants(125, "run/stile", "permission denied", "XDG_RUNTIME_DIR", "--url")
	})
	t.Run("state directory of somebody else", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t)
		m.put("", "lock")
		g := m.asGuest()
		if err := os.Chown(m.home(), 0, 0); err != nil {
			t.Fatal(err)
		}
		g.run("demo", "--", "true").wants(125, "stile/local belongs to user 0", "XDG_STATE_HOME", "--url")
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

// A cron job has none, after su(1) it belongs to somebody else, and in a container it may not be there.
func TestWithoutARuntimeDirectoryTheSocketIsInTmp(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(g *guest) error{
		"not set":         func(g *guest) error { g.set("XDG_RUNTIME_DIR", ""); return nil },
		"missing":         func(g *guest) error { return os.Remove(g.path("run")) },
		"somebody else's": func(g *guest) error { return os.Chown(g.path("run"), 0, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newMachine(t).asGuest()
			if err := prepare(g); err != nil {
				t.Fatal(err)
			}
			g.run("demo", "--", "true").wants(0)
			info, err := os.Lstat(g.tmp)
			if err != nil || info.Mode() != os.ModeDir|0o700 {
				t.Errorf("%s: %v, %v; want a private directory", g.tmp, info, err)
			}
		})
	}
}

// Everybody may write to /tmp, and can be there first.
func TestWhatOthersPutIntoTmpIsNotUsed(t *testing.T) {
	t.Parallel()
	const notOurs = "belongs to user 0"
	for name, c := range map[string]struct {
		make func(g *guest) error
		want string
	}{
		"a directory":       {func(g *guest) error { return os.Mkdir(g.tmp, 0o700) }, notOurs},
		"a link":            {func(g *guest) error { return os.Symlink(g.dir, g.tmp) }, notOurs},
		"a link to nothing": {func(g *guest) error { return os.Symlink("/no/such", g.tmp) }, notOurs},
		"a link of ours": {func(g *guest) error {
			return cmp.Or(os.Symlink(g.dir, g.tmp), os.Lchown(g.tmp, g.uid, g.uid))
		}, "should be a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newMachine(t).asGuest()
			g.set("XDG_RUNTIME_DIR", "")
			if err := c.make(g); err != nil {
				t.Fatal(err)
			}
			g.run("demo", "--", "true").wants(125, g.tmp, c.want, "set XDG_RUNTIME_DIR", "--url")
		})
	}
}

func TestAServerOfSomebodyElseIsNotTrusted(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	m := newMachine(t)
	m.run("demo", "--", "true").wants(0)
	if err := os.Chown(m.path("run", "stile"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	m.run("demo", "--", "true").wants(125, "run/stile", "belongs to user 65534", "--url")
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

// logOut removes the runtime directory, as happens when the last login of a user ends, and makes an empty one.
func (m *machine) logOut() {
	m.t.Helper()
	if err := os.RemoveAll(m.path("run")); err != nil {
		m.t.Fatal(err)
	}
	m.mkdir(0o700, "run")
}

func TestAServerWhoseSocketIsGoneMakesRoom(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").wants(0)
	before := m.server()
	m.logOut()
	m.run("demo", "--", "true").wants(0)
	if after := m.server(); after == before {
		t.Errorf("it is the same server still: %d", after)
	}
	eventually(t, "end of the server whose socket is gone", func() bool { return !running(before) })
}

func TestAServerWhoseSocketIsGoneIsNotTakenFromItsHolders(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	holder := m.start(sleeper, "demo")
	pid := m.server()
	m.logOut()
	m.run("demo", "--", "true").wants(125, "did not start", "cannot be reached", fmt.Sprintf("kill %d", pid), "--url")
	select {
	case <-holder.done:
		t.Errorf("the holder has ended: %s", holder.stderr)
	default:
	}
	holder.signal(syscall.SIGTERM)
	holder.code()
	m.run("demo", "--", "true").wants(0) // nobody needs the old server any more
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
