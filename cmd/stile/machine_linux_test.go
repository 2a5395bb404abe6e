package main_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/internal/testservers"
)

// withOwnMounts returns the arguments for unshare(1) that run args as the user uid, with an /etc
// and a /run of their own in which the script setUp has been run.
func withOwnMounts(t testing.TB, setUp string, uid int, args ...string) []string {
	t.Helper()
	requireRoot(t)
	if err := exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "none", "/run").Run(); err != nil {
		t.Skipf("SKIPPED: root cannot mount a file system on this machine: %v", err)
	}
	script := "set -e; umask 022; mount -t tmpfs -o mode=755 none /etc; mount -t tmpfs -o mode=755 none /run; mkdir /etc/stile; " +
		setUp + fmt.Sprintf(`; exec setpriv --reuid %d --regid %[1]d --clear-groups "$@"`, uid)
	return append([]string{"-m", "sh", "-c", script, "sh"}, args...)
}

// runWithOwnMounts runs stile with an /etc and a /run of its own, see withOwnMounts.
func (m *machine) runWithOwnMounts(setUp string, uid int, args ...string) *command {
	m.t.Helper()
	c := m.command()
	found, err := exec.LookPath("unshare")
	if err != nil {
		m.t.Fatal(err)
	}
	c.Path, c.Args = found, append([]string{found}, withOwnMounts(m.t, setUp, uid, append([]string{stile}, args...)...)...)
	c.spawn().exitCode()
	return c
}

func TestMachineStore_configFile(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	s := shared(t)
	setUp := "echo 'url: " + s.url + "' >/etc/stile/config"
	g.runWithOwnMounts(setUp, g.uid, "run", "demo", "--", "sh", "-c", `test "$STILE_URL" = `+s.url).expectExit(0)
	c := g.runWithOwnMounts(setUp, g.uid, "version")
	c.expectExit(0)
	if stdout := c.stdout.String(); !strings.Contains(stdout, "\nstore "+s.url+" (named by /etc/stile/config)\n") {
		t.Errorf("stile version does not name the store and its source: %s", stdout)
	}
	c = g.runWithOwnMounts(setUp, g.uid, "version", "-o", "json")
	c.expectExit(0)
	if stdout := c.stdout.String(); !strings.Contains(stdout, `"store": "`+s.url+`"`) || !strings.Contains(stdout, `"store_from": "/etc/stile/config"`) {
		t.Errorf("stile version does not name the store and its source: %s", stdout)
	}
	g.runWithOwnMounts("echo 'url: etcd://127.0.0.1:1' >/etc/stile/config", g.uid, "ls").
		expectExit(125, "connection refused", "the store is named by /etc/stile/config")
	g.runWithOwnMounts(setUp+"; chmod o+w /etc/stile/config", g.uid, "run", "demo", "--", "true").
		expectExit(125, "/etc/stile/config", "can be written to by other users", "--url")
	g.runWithOwnMounts(setUp+"; chmod 600 /etc/stile/config", g.uid, "run", "demo", "--", "true").
		expectExit(125, "/etc/stile/config", "permission denied", "--url")
	if files, err := filepath.Glob(g.home()); err != nil || len(files) > 0 {
		t.Errorf("a local server was started: %q, %v", files, err)
	}
}

// The server is set up as in examples/serve/stile.service.
func TestMachineStore_socketOfGroup(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	srv, err := os.MkdirTemp("/tmp", "st")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(srv) })
	s := newMachine(t).serve("--socket", filepath.Join(srv, "stile.sock"), "--data", t.TempDir())
	setUp := "mkdir /run/stile; mount --bind " + srv + " /run/stile"
	chown := func(gid int) {
		t.Helper()
		for path, mode := range map[string]os.FileMode{srv: 0o750, filepath.Join(srv, "stile.sock"): 0o660} {
			if err := os.Chown(path, 65534, gid); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	chown(g.uid)
	c := g.runWithOwnMounts(setUp, g.uid, "run", "demo", "--", "sh", "-c", "echo $STILE_URL")
	c.expectExit(0)
	if stdout := c.stdout.String(); stdout != "etcd+unix:///run/stile/stile.sock\n" {
		t.Errorf("got store %s, want the server's socket", stdout)
	}
	chown(0)
	c = g.runWithOwnMounts(setUp, g.uid, "run", "demo", "--", "sh", "-c", "echo $STILE_URL")
	c.expectExit(0) // no notice, because stderr is not a terminal
	if stdout := c.stdout.String(); stdout != "local:\n" {
		t.Errorf("got store %s for a user outside the group, want local:", stdout)
	}
	at := g.atTerminal("unshare", withOwnMounts(t, setUp, g.uid, "sh", "-c", "for i in 1 2; do "+stile+" run demo -- true; done; echo over")...)
	at.awaitScreen("you may not connect to /run/stile/stile.sock")
	at.awaitScreen("do not exclude each other")
	at.awaitScreen("over")
	if n := strings.Count(at.screenText(), "do not exclude each other"); n != 1 {
		t.Errorf("got %d notices, want 1: %s", n, at.screenText())
	}
	chown(g.uid)
	s.signal(syscall.SIGKILL)
	s.exitCode()
	g.runWithOwnMounts(setUp, g.uid, "run", "demo", "--", "true").expectExit(125, "connection refused", "/run/stile/stile.sock")
	if err := os.Remove(filepath.Join(srv, "stile.sock")); err != nil {
		t.Fatal(err)
	}
	g.runWithOwnMounts(setUp, g.uid, "run", "demo", "--", "true").expectExit(125, "does not run", "systemctl start stile", "--url")
}

func TestLocal_noticeOfOtherUsers(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	g.run("demo", "--", "true").expectExit(0) // another user's server on this machine
	for name, prepare := range map[string]func(m *machine){
		"socket in the state directory": func(*machine) {},
		"socket in /tmp":                (*machine).useLongStateDir,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t).asGuest()
			prepare(m.machine)
			m.run("demo", "--", "true").expectExit(0) // no notice without a terminal
			m.showNeighborNotice = true
			c := m.atTerminal("setpriv", "--reuid", fmt.Sprint(m.uid), "--regid", fmt.Sprint(m.uid), "--clear-groups",
				"sh", "-c", "for i in 1 2 3; do "+stile+" run demo -- true; done; echo over")
			c.awaitScreen("over")
			notices := regexp.MustCompile(`stile: user \S+( \(\d+\))? uses a local lock server on this machine too`).FindAllString(c.screenText(), -1)
			if len(notices) != 1 {
				t.Errorf("got %d notices, want 1: %s", len(notices), c.screenText())
			}
		})
	}
	t.Run("explicit URL", func(t *testing.T) {
		t.Parallel()
		m := newMachine(t).asGuest()
		m.showNeighborNotice = true
		c := m.atTerminal("setpriv", "--reuid", fmt.Sprint(m.uid), "--regid", fmt.Sprint(m.uid), "--clear-groups",
			"sh", "-c", stile+" run --url local: demo -- true; echo over")
		c.awaitScreen("over")
		if strings.Contains(c.screenText(), "exclude") {
			t.Errorf("got a notice, want none: %s", c.screenText())
		}
	})
}

func TestPasswordFile_accessibleToOthers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t, "requirepass hunter2")
	file := m.write("password", "hunter2", 0o644)
	url := "redis://" + redis.Addr() + "?password_file=" + file
	m.command("ls", "--url", url).spawn().expectExit(0) // no notice without a terminal
	c := m.atTerminal("sh", "-c", fmt.Sprintf("%s ls --url '%s'; chmod 600 %s; %[1]s ls --url '%[2]s'; echo over", stile, url, file))
	c.awaitScreen("stile: password_file " + file + " is accessible to other users; chmod o= it")
	c.awaitScreen("over")
	if n := strings.Count(c.screenText(), "accessible"); n != 1 {
		t.Errorf("got %d warnings, want 1: %s", n, c.screenText())
	}
}

// localServerClient returns an etcd client of the machine's local server.
func (m *machine) localServerClient() *clientv3.Client {
	m.t.Helper()
	socket, err := os.Readlink(m.socketLink())
	if err != nil {
		m.t.Fatal(err)
	}
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, Logger: zap.NewNop()})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { cli.Close() })
	return cli
}

func TestLocal_fullDiskWhileHeld(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	dir := m.mkdir(0o700, ".local")
	m.mount(dir, "size=60m", 0)
	holder := m.start(endableScript, "--ttl", "300", "demo")
	before := m.serverPID()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	go func() {
		cli, value := m.localServerClient(), strings.Repeat("x", 1<<20)
		for ctx.Err() == nil {
			_, _ = cli.Put(ctx, "k", value)
		}
	}()
	eventually(t, "end of the server", func() bool { return !running(before) })
	eventually(t, "the server's error in the holder's stderr", func() bool { return strings.Contains(holder.stderr.String(), "no space left on device") })
	cancel()
	m.mount(dir, "size=400m", syscall.MS_REMOUNT)
	eventually(t, "another server", func() bool {
		c := m.run("-n", "demo", "--", "true")
		return c.exitCode() == 75
	})
	m.endScript()
	holder.exitCode()
	if stderr := holder.stderr.String(); strings.Count(stderr, "no space left") > 2 {
		t.Errorf("the error was reported more than twice: %s", stderr)
	}
}

func TestLocal_fullDatabase(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("demo", "--", "true").expectExit(0)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err := etcdserverpb.NewMaintenanceClient(m.localServerClient().ActiveConnection()).Alarm(ctx, &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.run("demo", "--", "true").expectExit(125, "database space exceeded")
}

func TestRun_suggestsURL(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run("--url", "localhost:2379", "demo", "--", "true").expectExit(125, `"localhost"`, "did you mean etcd://localhost:2379?")
	m.run("--url", "http://localhost:2379", "demo", "--", "true").expectExit(125, `"http"`, "did you mean etcd://localhost:2379?")
	m.run("--url", "local", "demo", "--", "true").expectExit(125, "did you mean local:?")
	m.run("--url", "local:x", "demo", "--", "true").expectExit(125, "nothing may follow local:")
}
