package main_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	library "github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/storeurl"
)

const rootPassword = "correct horse battery staple"

// The server has all protections for use by others: TLS, client certificates and users.
func TestServe_tlsAndUsers(t *testing.T) {
	t.Parallel()
	etcdctl := testservers.Binary(t, "etcdctl")
	m := newMachine(t)
	ca := testcert.NewAuthority(t)
	serverCert := ca.Issue("server", testcert.Spec{Hosts: []string{"127.0.0.1"}})
	hostCert := ca.Issue("host", testcert.Spec{}) // has no name, so it stands for no user
	password := m.write("root-password", rootPassword+"\n", 0o600)
	s := m.serve("--listen", "127.0.0.1:0", "--data", m.path("data"), "--tls-cert", serverCert.Cert, "--tls-key", serverCert.Key,
		"--tls-client-ca", ca.File, "--root-password-file", password)
	address, ok := strings.CutPrefix(s.readyValue("url"), "etcds://")
	if !ok {
		t.Fatalf("got URL %s, want an etcds:// URL", s.readyValue("url"))
	}
	certificates := "?ca=" + ca.File + "&cert=" + hostCert.Cert + "&key=" + hostCert.Key

	// An operator sets up the users with etcdctl.
	ctl := func(args ...string) {
		t.Helper()
		cmd := exec.Command(etcdctl, append([]string{
			"--endpoints", "https://" + address, "--cacert", ca.File, "--cert", hostCert.Cert, "--key", hostCert.Key,
			"--user", "root", "--password", rootPassword, "--command-timeout", testTimeout.String(), "--dial-timeout", testTimeout.String(),
		}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("etcdctl %v: %v: %s", args, err, out)
		}
	}
	ctl("role", "add", "jobs")
	ctl("role", "grant-permission", "jobs", "--prefix=true", "readwrite", "jobs/")
	ctl("role", "grant-permission", "jobs", "--prefix=true", "readwrite", ".stile/")
	ctl("user", "add", "ann:anns password")
	ctl("user", "grant-role", "ann", "jobs")

	annPasswordFile := m.write("ann", "anns password", 0o600)
	annURL := "etcds://ann@" + address + certificates + "&password_file=" + annPasswordFile
	m.run("--url", annURL, "jobs/backup", "--", "true").expectExit(0)
	m.run("--url", annURL, "other", "--", "true").expectExit(125, "permission denied")
	holder := m.start(endableScript, "--url", annURL, "jobs/backup")
	m.expectHeld("etcds://root@"+address+certificates+"&password_file="+password, "jobs/backup")
	m.endScript()
	holder.expectExit(0)

	m.run("--url", "etcds://"+address+certificates, "jobs/backup", "--", "true").expectExit(125, "user")
	m.run("--url", "etcds://ann@"+address+"?ca="+ca.File+"&password_file="+annPasswordFile, "x", "--", "true").expectExit(125, "certificate")

	// The root password must be in no other place than its file.
	for _, file := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(filepath.Join("/proc", pidOf(s), file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), rootPassword) {
			t.Errorf("the root password is in /proc/PID/%s", file)
		}
	}
	s.signal(15)
	s.exitCode()
	if strings.Contains(s.log.String(), rootPassword) {
		t.Errorf("the root password is in the log: %s", s.log)
	}
	err := filepath.WalkDir(m.path("data"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), rootPassword) {
			t.Errorf("the root password is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Two teams that are set up as in examples/serve/README.md cannot access each other's keys.
func TestServe_exampleTeamsAreSeparate(t *testing.T) {
	t.Parallel()
	etcdctl := testservers.Binary(t, "etcdctl")
	m := newMachine(t)
	s := m.serve("--listen", "127.0.0.1:0", "--data", m.path("data"), "--root-password-file", m.write("root", rootPassword, 0o600))
	address := strings.TrimPrefix(s.readyValue("url"), "etcd://")

	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "serve", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Users\n")
	section, _, _ = strings.Cut(section, "\n## ")
	passwordOf := func(user string) string { return user + "s-password" } // etcdctl reads a single word
	var annURL string
	users := 0
	for line := range strings.Lines(section) {
		line, _, _ = strings.Cut(line, " #")
		if _, url, ok := strings.Cut(line, "stile run --url '"); ok {
			annURL, _, _ = strings.Cut(url, "'")
		}
		args := strings.Fields(line)
		if len(args) < 4 || args[0] != "etcdctl" {
			continue
		}
		cmd := exec.Command(etcdctl, append(args[1:], "--endpoints", address, "--command-timeout", testTimeout.String(), "--dial-timeout", testTimeout.String())...)
		cmd.Env = append(os.Environ(), "ETCDCTL_USER=root:"+rootPassword)
		if args[1] == "user" && args[2] == "add" {
			cmd.Args = append(cmd.Args, "--interactive=false")
			cmd.Stdin = strings.NewReader(passwordOf(args[3]) + "\n")
			users++
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	if annURL == "" || users != 2 {
		t.Fatalf("got %d users and the URL %q in the example, want 2 users and a URL", users, annURL)
	}
	annURL = strings.NewReplacer("127.0.0.1:2379", address, "/home/ann/.stile-password", m.write("ann", passwordOf("ann"), 0o600)).Replace(annURL)
	annToBob := strings.NewReplacer("ann@", "bob@", m.path("ann"), m.write("bob", passwordOf("bob"), 0o600))
	bobURLOfRed := annToBob.Replace(annURL)
	bobURL := strings.Replace(bobURLOfRed, "/red?", "/blue?", 1)

	holder := m.start(endableScript, "--url", annURL, "--ttl", longTTL, "backup")
	m.expectHeld(annURL, "backup")
	m.expectFree(bobURL, "backup")
	m.run("--url", bobURLOfRed, "backup", "--", "true").expectExit(125, "permission denied")

	// A client of ann with a lock delay has an internal key of Stile while it holds a lock.
	opened, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(t.Context(), annURL, nil) })
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	annClient, err := library.New(opened.Store, &library.Options{TTL: library.MaxTTL, LockDelay: library.MaxTTL})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = annClient.Close(context.WithoutCancel(t.Context())) }()
	if _, err := annClient.Mutex("delayed").Lock(t.Context()); err != nil { // held until annClient is closed
		t.Fatal(err)
	}

	connect := func(user, password string) *clientv3.Client {
		cli, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Username: user, Password: password, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cli.Close() })
		return cli
	}
	root, bob := connect("root", rootPassword), connect("bob", passwordOf("bob"))
	all, err := root.Get(t.Context(), "\x00", clientv3.WithFromKey())
	if err != nil {
		t.Fatal(err)
	}
	internal, entries := 0, 0
	expectDenied := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("bob tries to %s: got %v, want %v", what, err, rpctypes.ErrPermissionDenied)
		}
	}
	for _, kv := range all.Kvs {
		key := string(kv.Key)
		switch {
		case strings.HasPrefix(key, "red/.stile/"):
			internal++
		case strings.HasPrefix(key, "red/backup/"), strings.HasPrefix(key, "red/delayed/"):
			entries++
		case strings.HasPrefix(key, "blue/"):
			continue
		default:
			t.Errorf("key %s belongs to no team", key)
		}
		_, err := bob.Get(t.Context(), key)
		expectDenied("read "+key, err)
		_, err = bob.Put(t.Context(), key, "")
		expectDenied("write "+key, err)
		_, err = bob.Delete(t.Context(), key)
		expectDenied("delete "+key, err)
		if kv.Lease != 0 {
			_, err = bob.Revoke(t.Context(), clientv3.LeaseID(kv.Lease))
			expectDenied("end the session of "+key, err)
		}
	}
	if internal == 0 || entries != 2 {
		t.Errorf("got %d entries and %d internal keys of team red, want 2 entries and at least 1 internal key: %v", entries, internal, all.Kvs)
	}
	_, err = bob.Delete(t.Context(), "\x00", clientv3.WithFromKey())
	expectDenied("delete everything", err)
	m.endScript()
	holder.expectExit(0)
}

func pidOf(s *serveCommand) string { return strconv.Itoa(s.Process.Pid) }

func TestServe_rootPasswordFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	serveWith := func(file string) *command {
		return m.command("serve", "--listen", "127.0.0.1:0", "--data", m.path("data"), "--root-password-file", file).spawn()
	}
	serveWith(m.path("missing")).expectExit(125, "--root-password-file", m.path("missing"), "no such file")
	serveWith(m.write("empty", "\n", 0o600)).expectExit(125, "--root-password-file", m.path("empty"), "empty")
	serveWith(m.write("long", "one\ntwo\n", 0o600)).expectExit(125, "--root-password-file", "more than one line")
	serveWith(m.write("longer", strings.Repeat("x", 73)+"\n", 0o600)).expectExit(125, "--root-password-file", "longer than 72 bytes")
	if m.exists("data") {
		t.Error("the data directory was created with an invalid password file")
	}

	s := m.serve("--listen", "127.0.0.1:0", "--data", m.path("data"), "--root-password-file", m.write("open", rootPassword, 0o644))
	if log := s.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, m.path("open")) ||
		strings.Contains(log, rootPassword) {
		t.Errorf("got log %s for a password file accessible to others, want a warning without the password", log)
	}
}

func TestServe_socketAndTCP(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.serve("--socket", "run/stile.sock", "--listen", "127.0.0.1:0", "--data", m.path("data"))
	socket := "etcd+unix://" + m.path("run", "stile.sock")
	if s.readyValue("socket_url") != socket {
		t.Errorf("got socket URL %s, want %s", s.readyValue("socket_url"), socket)
	}
	holder := m.start(endableScript, "--url", socket, "demo")
	m.expectHeld(s.readyValue("url"), "demo")
	m.endScript()
	holder.expectExit(0)

	other := []string{"serve", "--data", m.path("other"), "--socket"}
	m.command(append(other, m.path("run", "stile.sock"))...).spawn().expectExit(125, "--socket", "another server listens", m.path("run", "stile.sock"))
	m.command(append(other, m.write("file", "", 0o600))...).spawn().expectExit(125, "--socket", "exists and is not a socket", m.path("file"))
	m.command(append(other, m.path("no", "such", "directory"))...).spawn().expectExit(125, "unix socket", m.path("no", "such"))
}

func TestServe_socketOnly(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.serve("--socket", m.path("run", "stile.sock"), "--data", m.path("data"))
	if want := "etcd+unix://" + m.path("run", "stile.sock"); s.readyValue("url") != want {
		t.Errorf("got URL %s, want %s", s.readyValue("url"), want)
	}
	m.expectFree(s.readyValue("url"), "demo")

	// The socket that a killed server has left behind is replaced.
	s.kill()
	s = m.serve("--socket", m.path("run", "stile.sock"), "--data", m.path("data"))
	m.expectFree(s.readyValue("url"), "demo")
}

func TestServe_healthWithoutTLS(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	ca := testcert.NewAuthority(t)
	serverCert := ca.Issue("server", testcert.Spec{Hosts: []string{"127.0.0.1"}})
	s := m.serve("--listen", "127.0.0.1:0", "--data", m.path("data"), "--health", "127.0.0.1:0",
		"--tls-cert", serverCert.Cert, "--tls-key", serverCert.Key, "--tls-client-ca", ca.File,
		"--root-password-file", m.write("password", rootPassword, 0o600))
	for path, want := range map[string]string{
		"/health": `"health":"true"`, "/livez": "ok", "/readyz": "ok", "/metrics": "etcd_server_has_leader 1",
	} {
		resp, err := http.Get(s.readyValue("health") + path)
		if err != nil {
			t.Fatal(err)
		}
		status, body := readResponse(t, resp)
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: got status %d and %s, want 200 and %s", path, status, body, want)
		}
	}
	// The health address serves nothing else.
	resp, err := http.Post(s.readyValue("health")+"/v3/kv/range", "application/json", strings.NewReader(`{"key":"AA=="}`))
	if err != nil {
		t.Fatal(err)
	}
	if status, body := readResponse(t, resp); status != http.StatusNotFound {
		t.Errorf("/v3/kv/range at the health address: got status %d and %s, want 404", status, body)
	}

	m.command("serve", "--listen", "127.0.0.1:0", "--data", m.path("other"), "--health",
		strings.TrimPrefix(s.readyValue("health"), "http://")).spawn().expectExit(125, "in use", "--health")
}

func readResponse(t *testing.T, resp *http.Response) (status int, body string) {
	t.Helper()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
