package main_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
	"github.com/stilelock/stile/internal/testservers"
)

const rootPassword = "correct horse battery staple"

// Everything that a server for others has: TLS, clients' certificates and users.
func TestServeWithTLSCertificatesAndUsers(t *testing.T) {
	t.Parallel()
	etcdctl := testservers.Binary(t, "etcdctl")
	m := newMachine(t)
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: []string{"127.0.0.1"}})
	host := ca.Issue("host", testcert.Spec{}) // without a name it is no user
	password := m.write("root-password", rootPassword+"\n", 0o600)
	s := m.serve("--listen", "127.0.0.1:0", "--data", m.path("data"), "--tls-cert", own.Cert, "--tls-key", own.Key,
		"--tls-client-ca", ca.File, "--root-password-file", password)
	address, ok := strings.CutPrefix(s.found("url"), "etcds://")
	if !ok {
		t.Fatalf("URL %s", s.found("url"))
	}
	certificates := "?ca=" + ca.File + "&cert=" + host.Cert + "&key=" + host.Key

	// As an operator does it.
	ctl := func(args ...string) {
		t.Helper()
		cmd := exec.Command(etcdctl, append([]string{
			"--endpoints", "https://" + address, "--cacert", ca.File, "--cert", host.Cert, "--key", host.Key,
			"--user", "root", "--password", rootPassword, "--command-timeout", within.String(), "--dial-timeout", within.String(),
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

	anns := m.write("ann", "anns password", 0o600)
	ann := "etcds://ann@" + address + certificates + "&password_file=" + anns
	m.run("--url", ann, "jobs/backup", "--", "true").wants(0)
	m.run("--url", ann, "other", "--", "true").wants(125, "permission denied")
	holder := m.start(untilTold, "--url", ann, "jobs/backup")
	m.busy("etcds://root@"+address+certificates+"&password_file="+password, "jobs/backup")
	m.tellEnd()
	holder.wants(0)

	m.run("--url", "etcds://"+address+certificates, "jobs/backup", "--", "true").wants(125, "user")
	m.run("--url", "etcds://ann@"+address+"?ca="+ca.File+"&password_file="+anns, "x", "--", "true").wants(125, "certificate")

	// The password is nowhere but in its file.
	for _, where := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(filepath.Join("/proc", pid(s), where))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), rootPassword) {
			t.Errorf("the password is in %s", where)
		}
	}
	s.signal(15)
	s.code()
	if strings.Contains(s.log.String(), rootPassword) {
		t.Errorf("the password is in the log: %s", s.log)
	}
	err := filepath.WalkDir(m.path("data"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), rootPassword) {
			t.Errorf("the password is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func pid(s *serving) string { return strconv.Itoa(s.Process.Pid) }

func TestServeReadsThePasswordOfRoot(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	serveWith := func(file string) *command {
		return m.command("serve", "--listen", "127.0.0.1:0", "--data", m.path("data"), "--root-password-file", file).begin()
	}
	serveWith(m.path("missing")).wants(125, "--root-password-file", m.path("missing"), "no such file")
	serveWith(m.write("empty", "\n", 0o600)).wants(125, "--root-password-file", m.path("empty"), "empty")
	serveWith(m.write("long", "one\ntwo\n", 0o600)).wants(125, "--root-password-file", "more than one line")

	s := m.serve("--listen", "127.0.0.1:0", "--data", m.path("data"), "--root-password-file", m.write("open", rootPassword, 0o644))
	if log := s.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, m.path("open")) ||
		strings.Contains(log, rootPassword) {
		t.Errorf("of a password that everybody can read it says: %s", log)
	}
}

func TestServeOnASocketAndOnTCP(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.serve("--socket", "run/stile.sock", "--listen", "127.0.0.1:0", "--data", m.path("data"))
	socket := "etcd+unix://" + m.path("run", "stile.sock")
	if s.found("socket_url") != socket {
		t.Errorf("URL of the socket %s, want %s", s.found("socket_url"), socket)
	}
	holder := m.start(untilTold, "--url", socket, "demo")
	m.busy(s.found("url"), "demo")
	m.tellEnd()
	holder.wants(0)

	other := []string{"serve", "--data", m.path("other"), "--socket"}
	m.command(append(other, m.path("run", "stile.sock"))...).begin().wants(125, "--socket", "another server listens", m.path("run", "stile.sock"))
	m.command(append(other, m.write("file", "", 0o600))...).begin().wants(125, "--socket", "exists and is not a socket", m.path("file"))
	m.command(append(other, m.path("no", "such", "directory"))...).begin().wants(125, "unix socket", m.path("no", "such"))
}

func TestServeOnASocketOnly(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.serve("--socket", m.path("run", "stile.sock"), "--data", m.path("data"))
	if want := "etcd+unix://" + m.path("run", "stile.sock"); s.found("url") != want {
		t.Errorf("URL %s, want %s", s.found("url"), want)
	}
	m.free(s.found("url"), "demo")

	// What a server that was killed has left behind is no obstacle.
	s.kill()
	s = m.serve("--socket", m.path("run", "stile.sock"), "--data", m.path("data"))
	m.free(s.found("url"), "demo")
}

func TestServeTellsItsHealthWithoutTLS(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: []string{"127.0.0.1"}})
	s := m.serve("--listen", "127.0.0.1:0", "--data", m.path("data"), "--health", "127.0.0.1:0",
		"--tls-cert", own.Cert, "--tls-key", own.Key, "--tls-client-ca", ca.File,
		"--root-password-file", m.write("password", rootPassword, 0o600))
	for path, want := range map[string]string{
		"/health": `"health":"true"`, "/livez": "ok", "/readyz": "ok", "/metrics": "etcd_server_has_leader 1",
	} {
		resp, err := http.Get(s.found("health") + path)
		if err != nil {
			t.Fatal(err)
		}
		status, body := answer(t, resp)
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %s", path, status, body, want)
		}
	}
	// Nothing else is there.
	resp, err := http.Post(s.found("health")+"/v3/kv/range", "application/json", strings.NewReader(`{"key":"AA=="}`))
	if err != nil {
		t.Fatal(err)
	}
	if status, body := answer(t, resp); status != http.StatusNotFound {
		t.Errorf("/v3/kv/range where health is told: %d %s", status, body)
	}

	m.command("serve", "--listen", "127.0.0.1:0", "--data", m.path("other"), "--health",
		strings.TrimPrefix(s.found("health"), "http://")).begin().wants(125, "in use", "--health")
}

func answer(t *testing.T, resp *http.Response) (status int, body string) {
	t.Helper()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
