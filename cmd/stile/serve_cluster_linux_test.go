package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stilelock/stile/internal/testservers"
)

// composed returns the arguments of stile serve of each service in examples/serve/compose.yaml.
func composed(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "serve", "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Command []string
			Ports   []string
			Volumes []string
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	commands := map[string][]string{}
	for name, service := range file.Services {
		if len(service.Command) == 0 || service.Command[0] != "serve" {
			t.Fatalf("service %s does not run stile serve: %v", name, service.Command)
		}
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("service %s publishes a port beyond loopback: %s", name, port)
			}
		}
		commands[name] = service.Command[1:]
	}
	return commands
}

// The commands of compose.yaml run as processes, not in containers. Their addresses and directories
// are replaced by those of this machine.
func TestServe_exampleCompose(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	commands := composed(t)
	names := []string{"a", "b", "c"}
	if len(commands) != len(names) {
		t.Fatalf("got services %v, want %v", commands, names)
	}
	peers := map[string]string{}
	for _, name := range names {
		peers[name] = testservers.FreeAddress(t)
	}
	var endpoints []string
	nodes, probes := map[string]*serveCommand{}, map[string]string{}
	start := func(name string) {
		t.Helper()
		nodes[name] = m.launch(commands[name]...)
	}
	for _, name := range names {
		listen, health := testservers.FreeAddress(t), testservers.FreeAddress(t)
		local := strings.NewReplacer(
			"http://a:2380", "http://"+peers["a"], "http://b:2380", "http://"+peers["b"], "http://c:2380", "http://"+peers["c"],
			"0.0.0.0:2379", listen, "0.0.0.0:2380", peers[name], "0.0.0.0:2381", health,
			"/var/lib/stile", m.path(name))
		for i, arg := range commands[name] {
			commands[name][i] = local.Replace(arg)
		}
		if strings.Contains(strings.Join(commands[name], " "), "0.0.0.0") {
			t.Fatalf("%v listens on all addresses", commands[name])
		}
		endpoints, probes[name] = append(endpoints, listen), "http://"+health
	}
	url := "etcd://" + strings.Join(endpoints, ",")
	ready := func(name string) bool {
		resp, err := (&http.Client{Timeout: testTimeout}).Get(probes[name] + "/readyz")
		if err != nil {
			t.Fatalf("health check of %s: %v", name, err)
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	awaitLeader := func(names ...string) {
		t.Helper()
		for _, name := range names {
			eventually(t, "leader known to "+name, func() bool { return ready(name) })
		}
	}

	start("a")
	nodes["a"].awaitLog("waiting for the other members: b, c")
	start("b")
	start("c")
	for _, name := range names {
		nodes[name].awaitLog("msg=ready")
	}
	awaitLeader(names...)
	m.expectFree(url, "demo")

	holder := m.start(endableScript, "--url", url, "held")
	nodes["a"].kill()
	// An election takes a few seconds, and longer on a busy machine. A client that joins meanwhile
	// waits for it.
	awaitLeader("b", "c")
	m.expectHeld(url, "held")
	m.expectFree(url, "demo")
	m.endScript()
	holder.expectExit(0)

	nodes["b"].kill()
	refused := m.run("--url", url, "-w", "1", "demo", "--", "true")
	refused.expectExit(125, "etcd")
	t.Logf("without a majority: %s", refused.stderr)
	eventually(t, "c not ready without the others", func() bool { return !ready("c") })

	start("b")
	nodes["b"].awaitLog("msg=ready")
	awaitLeader("b", "c")
	m.expectFree(url, "demo")

	// Members stop on SIGTERM with or without a leader. Tests of package node check that they stop
	// at once.
	for _, name := range []string{"b", "c"} {
		nodes[name].signal(15)
		if code := nodes[name].exitCode(); code != 0 {
			t.Errorf("%s: got exit code %d, want 0; log: %s", name, code, nodes[name].log)
		}
	}
}
