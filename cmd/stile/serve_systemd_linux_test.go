package main_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// unit returns the text of the example unit.
func unit(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "serve", "stile.service"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// installed is the path of stile in the example unit.
const installed = "/usr/local/bin/stile"

func TestServe_exampleUnitIsValid(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: examples/serve/stile.service: this test needs systemd-analyze")
	}
	m := newMachine(t)
	file := m.write("stile.service", strings.ReplaceAll(unit(t), installed, stile), 0o600)
	cmd := exec.Command(analyze, "verify", file)
	cmd.Env = m.vars
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
}

// The command line of the unit is run unchanged, except for paths.
func TestServe_exampleUnitNotifiesSystemd(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(unit(t), "\nExecStart="+installed+" ")
	line, _, _ := strings.Cut(rest, "\n")
	args := strings.Fields(line)
	if len(args) == 0 || args[0] != "serve" {
		t.Fatalf("ExecStart is not stile serve: %q", line)
	}
	m := newMachine(t)
	config := m.write("stile.yaml", "listen: 127.0.0.1:0\ndata: "+m.path("data"), 0o600)
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "/etc/stile/stile.yaml", config)
	}
	notify := listenNotify(t, m)
	s := m.launch(args[1:]...)
	if got := notify(); got != "READY=1" {
		t.Errorf("got notification %q, want READY=1", got)
	}
	s.awaitLog("msg=ready")                   // the notification may arrive before the log line
	m.expectFree(s.readyValue("url"), "demo") // the server must be ready to serve by then
	s.signal(15)
	if got := notify(); got != "STOPPING=1" {
		t.Errorf("got notification %q, want STOPPING=1", got)
	}
	if code := s.exitCode(); code != 0 {
		t.Errorf("got exit code %d, want 0; log: %s", code, s.log)
	}
}

// A local server is no systemd service. If a service has started it, systemd would attribute its
// messages to that service.
func TestLocal_doesNotNotifySystemd(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	notify := listenNotify(t, m)
	m.run("demo", "--", "true").expectExit(0)
	m.killServer()
	conn, err := net.Dial("unixgram", m.path("notify"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("test")); err != nil {
		t.Fatal(err)
	}
	if got := notify(); got != "test" {
		t.Errorf("got notification %q, want none before the test's own", got)
	}
}

// listenNotify sets NOTIFY_SOCKET to a socket of the test. It returns a function that waits for the
// next message there.
func listenNotify(t *testing.T, m *machine) (next func() string) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path("notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	m.setenv("NOTIFY_SOCKET", m.path("notify"))
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
			t.Fatal(err)
		}
		message := make([]byte, 1000)
		n, err := conn.Read(message)
		if err != nil {
			t.Fatal(err)
		}
		return string(message[:n])
	}
}
