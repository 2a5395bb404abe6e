package main_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

// diagnosis is the JSON output of stile doctor.
type diagnosis struct {
	Store    string `json:"store"`
	From     string `json:"store_from"`
	TTL      string `json:"ttl"`
	Error    string `json:"error"`
	Findings []struct {
		ID       string   `json:"id"`
		Severity string   `json:"severity"`
		Promise  string   `json:"promise"`
		What     string   `json:"what"`
		Advice   string   `json:"advice"`
		Servers  []string `json:"servers"`
	} `json:"findings"`
}

// doctor runs stile doctor, which must end with the exit code.
func (m *machine) doctor(code int, args ...string) diagnosis {
	m.t.Helper()
	c := m.stile(append([]string{"doctor", "-o", "json"}, args...)...)
	c.expectExit(code)
	return decodeJSON[diagnosis](m.t, c.stdout.Bytes())
}

// expectFinding checks that there is exactly one finding with the id, and its severity and text.
func (d diagnosis) expectFinding(t *testing.T, id, severity, what string) {
	t.Helper()
	n := 0
	for _, f := range d.Findings {
		if f.ID == id {
			n++
			if f.Severity != severity || !strings.Contains(f.What, what) || (f.Advice == "") != (severity == "fine") {
				t.Errorf("got %+v, want severity %s, and %q in it", f, severity, what)
			}
		}
	}
	if n != 1 {
		t.Errorf("got %d findings %s, want 1, in %+v", n, id, d.Findings)
	}
}

// A setting that puts a promise at risk is exit code 1; without it the code is 0. The password of the URL
// is nowhere in the output.
func TestDoctor_redis(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	server := testservers.StartRedis(t, "requirepass hunter2", "appendonly yes", "appendfsync always", "maxmemory 1gb", "maxmemory-policy allkeys-lru")
	url := "redis://:hunter2@" + server.Addr() + "/1"
	d := m.doctor(1, "--url", url)
	d.expectFinding(t, "redis-eviction", "risk", "allkeys-lru")
	d.expectFinding(t, "redis-persistence", "fine", "synced")
	if strings.Contains(d.Store, "hunter2") || !strings.Contains(d.Store, server.Addr()) || d.From != "--url" || d.TTL != "15s" {
		t.Errorf("got %+v", d)
	}
	text := m.stile("doctor", "--url", url, "--ttl", "1m")
	text.expectExit(1)
	out := text.stdout.String()
	for _, want := range []string{"for a TTL of 1m\n", "\na promise is at risk\n✗ redis-eviction (P1): ", "  at: " + server.Addr() + "\n", "  do: CONFIG SET ", "\nfine\n✓ "} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwithout %q", out, want)
		}
	}
	if all := out + text.stderr.String(); strings.Contains(all, "hunter2") {
		t.Errorf("a secret in the output: %s", all)
	}
	server.Do("CONFIG", "SET", "maxmemory-policy", "noeviction")
	m.doctor(0, "--url", url).expectFinding(t, "redis-eviction", "fine", "noeviction")
	wrong := m.stile("doctor", "--url", strings.Replace(url, "hunter2", "hunter3", 1))
	wrong.expectExit(125, "rejected")
	if all := wrong.stdout.String() + wrong.stderr.String(); strings.Contains(all, "hunter3") {
		t.Errorf("a secret in the output: %s", all)
	}
}

// The other stores, by their URLs.
func TestDoctor_stores(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	d := m.doctor(0, "--url", shared(t).url)
	d.expectFinding(t, "etcd-alarm", "fine", "no alarm")

	masters := testservers.StartRedisServers(t, 3, "appendonly yes", "appendfsync always")
	addrs := masters[0].Addr() + "," + masters[1].Addr() + "," + masters[2].Addr()
	m.doctor(0, "--url", "redlock://"+addrs).expectFinding(t, "redlock-quorum", "fine", "all 3 masters")

	z := testservers.StartZooKeeper(t)
	d = m.doctor(1, "--url", "zk://"+z.Endpoint(), "--ttl", "0.3")
	d.expectFinding(t, "zk-tick", "risk", "less than four ticks of 100ms")
}

func TestDoctor_storeDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.stile("doctor", "-o", "json", "--url", "etcd://127.0.0.1:1")
	c.expectExit(125, "connection refused")
	if d := decodeJSON[diagnosis](t, c.stdout.Bytes()); !strings.Contains(d.Error, "connection refused") || d.Findings == nil {
		t.Errorf("got %+v, want the error, and an array of findings", d)
	}
	m.stile("doctor", "--ttl", "0").expectExit(125, "--ttl 0s: want a TTL")
}

func TestDoctor_memory(t *testing.T) {
	t.Parallel()
	newMachine(t).doctor(1, "--url", "mem:").expectFinding(t, "mem-store", "risk", "exclude no other process")
}

func TestDoctor_secretsOfTheURL(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	server := testservers.StartRedis(t, "requirepass hunter2", "appendonly yes", "appendfsync always")
	file := m.write("password", "hunter2", 0o644)
	url := "redis://" + server.Addr() + "?password_file=" + file
	m.doctor(0, "--url", url).expectFinding(t, "url-secret", "attention", file+" is accessible to other users")
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	m.doctor(0, "--url", url).expectFinding(t, "url-secret", "fine", "no other user")
}

// doctor starts no local server, and says what is wrong with one that cannot be used.
func TestDoctor_localServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.doctor(0).expectFinding(t, "local-server", "fine", "does not run")
	if _, err := os.Lstat(m.home()); err == nil {
		t.Error("stile doctor has made the directory of the local server")
	}
	m.run("demo", "--", "true").expectExit(0)
	d := m.doctor(0)
	d.expectFinding(t, "local-server", "fine", "runs (pid ")
	d.expectFinding(t, "url-secret", "fine", "")
	d.expectFinding(t, "etcd-fsync", "fine", "")
	d.expectFinding(t, "etcd-rights", "fine", "may read and write")
	if d.Store != "local:" {
		t.Errorf("got the store %q", d.Store)
	}
	pid := m.serverPID()
	pause(t, pid)
	d = m.doctor(0)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	d.expectFinding(t, "local-server", "attention", "does not answer")
	if err := os.Chmod(m.home(), 0o755); err != nil {
		t.Fatal(err)
	}
	m.doctor(0).expectFinding(t, "local-server", "attention", "accessible to other users")
	m.doctor(1, "--url", "mem:").expectFinding(t, "local-server", "attention", "accessible to other users")
}

// Two users with local servers on one machine.
func TestDoctor_serverOfAnotherUser(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	g.run("demo", "--", "true").expectExit(0)
	m := newMachine(t).asGuest()
	m.run("demo", "--", "true").expectExit(0)
	c := m.command("doctor", "-o", "json")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(m.uid), Gid: uint32(m.uid)}}
	c.spawn().expectExit(0)
	decodeJSON[diagnosis](t, c.stdout.Bytes()).expectFinding(t, "local-neighbor", "attention", "uses a local lock server on this machine too")
}

// There is a server for the machine, and this user is not in its group.
func TestDoctor_machineServerDenied(t *testing.T) {
	t.Parallel()
	g := newMachine(t).asGuest()
	dir, err := os.MkdirTemp("/tmp", "st")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	newMachine(t).serve("--socket", dir+"/stile.sock", "--data", t.TempDir())
	if err := os.Chown(dir, 65534, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	c := g.runWithOwnMounts("mkdir /run/stile; mount --bind "+dir+" /run/stile", g.uid, "doctor", "-o", "json")
	c.expectExit(0)
	decodeJSON[diagnosis](t, c.stdout.Bytes()).expectFinding(t, "machine-server", "attention", "you may not connect to /run/stile/stile.sock")
}
