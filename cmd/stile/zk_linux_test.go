package main_test

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	lib "github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
)

func TestCommands_zookeeper(t *testing.T) {
	t.Parallel()
	server := testservers.StartZooKeeper(t)
	m := newMachine(t)
	m.setenv("STILE_URL", "zk://"+server.Endpoint()+"/team")

	// On ZooKeeper a third of the TTL is not guaranteed, so there is less time to stop a command
	// than on other stores.
	m.run("--ttl", "16", "-k", "6", "orders/42", "--", "true").expectExit(125, "--kill-after 6s", "4s")

	watch := m.command("watch", "-o", "json", "orders/")
	watch.Cmd.Stdout = nil
	events, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	watch.spawn()
	scanner := bufio.NewScanner(events)

	holder := m.start(sleepScript, "orders/42")
	waiter := m.startWaiter(1, "orders/42")
	awaitEvent := func(text string) {
		t.Helper()
		for scanner.Scan() {
			if strings.Contains(scanner.Text(), text) {
				return
			}
		}
		t.Errorf("watch ended (%v) without an event of %s", scanner.Err(), text)
	}
	awaitEvent("orders/42")

	line := m.show("orders/42")
	if len(line.Holders) != 1 || line.Holders[0].Owner.PID != holder.Process.Pid || line.Holders[0].Owner.Command != "sh" ||
		len(line.Waiters) != 1 || line.Waiters[0].Owner.PID != waiter.Process.Pid {
		t.Errorf("show: got %+v, want the holder and one waiter", line)
	}
	c := m.stile("ls")
	c.expectExit(0)
	if !strings.Contains(c.stdout.String(), "orders/42") {
		t.Errorf("ls: got %q, want orders/42", c.stdout)
	}
	if c := m.run("-n", "orders/42", "--", "true"); c.ProcessState.ExitCode() != 75 {
		t.Errorf("run -n of a held lock: got %v, want exit status 75", c.ProcessState)
	}

	wait := m.command("wait", "orders/42").spawn()
	m.breakHold(t, line)
	if code := holder.exitCode(); code != 79 {
		t.Errorf("run of the broken hold: got exit code %d, want 79", code)
	}
	if code := waiter.exitCode(); code != 0 {
		t.Errorf("run of the waiter: got exit code %d, want 0", code)
	}
	if code := wait.exitCode(); code != 0 {
		t.Errorf("wait: got exit code %d, want 0; stderr: %s", code, wait.stderr)
	}
	if line := m.show("orders/42"); len(line.Holders)+len(line.Waiters) > 0 {
		t.Errorf("got line %+v, want it empty", line)
	}
}

// breakHold breaks the hold of a lock's only holder.
func (m *machine) breakHold(t *testing.T, line lib.Line) {
	t.Helper()
	token := strconv.FormatUint(line.Holders[0].Token, 10)
	if c := m.stile("break", "--token", token, line.Name); c.exitCode() != 0 {
		t.Fatalf("break: got exit code %d, want 0; stderr: %s", c.exitCode(), c.stderr)
	}
}
