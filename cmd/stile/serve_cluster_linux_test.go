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

// composed returns the arguments of each service in examples/serve/compose.yaml.
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
			t.Fatalf("service %s does not serve: %v", name, service.Command)
		}
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("service %s is published beyond loopback: %s", name, port)
			}
		}
		commands[name] = service.Command[1:]
	}
	return commands
}

// There are no containers here: the commands of compose.yaml run as processes, with addresses and directories of this
// machine in place of those in the containers.
func TestServe_exampleCompose(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	commands := composed(t)
	names := []string{"a", "b", "c"}
	if len(commands) != len(names) {
		t.Fatalf("services %v, want %v", commands, names)
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
		here := strings.NewReplacer(
			"http://a:2380", "http://"+peers["a"], "http://b:2380", "http://"+peers["b"], "http://c:2380", "http://"+peers["c"],
			"0.0.0.0:2379", listen, "0.0.0.0:2380", peers[name], "0.0.0.0:2381", health,
			"/var/lib/stile", m.path(name))
		for i, arg := range commands[name] {
			commands[name][i] = here.Replace(arg)
		}
		if strings.Contains(strings.Join(commands[name], " "), "0.0.0.0") {
			t.Fatalf("%v would listen everywhere", commands[name])
		}
		endpoints, probes[name] = append(endpoints, listen), "http://"+health
	}
	url := "etcd://" + strings.Join(endpoints, ",")
	ready := func(name string) bool {
		resp, err := (&http.Client{Timeout: testTimeout}).Get(probes[name] + "/readyz")
		if err != nil {
			t.Fatalf("%s does not tell its health: %v", name, err)
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	decided := func(names ...string) {
		t.Helper()
		for _, name := range names {
			eventually(t, name+" has a leader", func() bool { return ready(name) })
		}
	}

	start("a")
	nodes["a"].awaitLog("waiting for the other members: b, c")
	start("b")
	start("c")
	for _, name := range names {
		nodes[name].awaitLog("msg=ready")
	}
	decided(names...)
	m.expectFree(url, "demo")

	holder := m.start(endableScript, "--url", url, "held")
	nodes["a"].kill()
	decided("b", "c") // who wants a lock meanwhile waits a few seconds for that, and on a busy machine it takes longer
	m.expectHeld(url, "held")
	m.expectFree(url, "demo")
	m.endScript()
	holder.expectExit(0)

	nodes["b"].kill()
	refused := m.run("--url", url, "-w", "1", "demo", "--", "true")
	refused.expectExit(125, "etcd")
	t.Logf("without a majority: %s", refused.stderr)
	eventually(t, "c, which is alone, says that it is not ready", func() bool { return !ready("c") })

	start("b")
	nodes["b"].awaitLog("msg=ready")
	decided("b", "c")
	m.expectFree(url, "demo")

	// Told to end, all of them do: whether there is a leader or not. That it takes moments is for the tests of package node.
	for _, name := range []string{"b", "c"} {
		nodes[name].signal(15)
		if code := nodes[name].exitCode(); code != 0 {
			t.Errorf("%s: exit code %d: %s", name, code, nodes[name].log)
		}
	}
}
