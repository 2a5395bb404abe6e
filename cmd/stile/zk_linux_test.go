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

	// A third of the TTL is not certain here, so that there is less time for stopping a command than elsewhere.
	m.run("--ttl", "16", "-k", "6", "orders/42", "--", "true").expectExit(125, "--kill-after 6s", "4s")

	watching := m.command("watch", "-o", "json", "orders/")
	watching.Cmd.Stdout = nil
	news, err := watching.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	watching.spawn()
	heard := bufio.NewScanner(news)

	holder := m.start(sleepScript, "--ttl", "30", "orders/42")
	waiter := m.startWaiter(1, "orders/42", "--ttl", "30")
	heardOf := func(text string) {
		t.Helper()
		for heard.Scan() {
			if strings.Contains(heard.Text(), text) {
				return
			}
		}
		t.Errorf("watch has ended (%v) without saying %s", heard.Err(), text)
	}
	heardOf("orders/42")

	line := m.show("orders/42")
	if len(line.Holders) != 1 || line.Holders[0].Owner.PID != holder.Process.Pid || line.Holders[0].Owner.Command != "sh" ||
		len(line.Waiters) != 1 || line.Waiters[0].Owner.PID != waiter.Process.Pid {
		t.Errorf("show tells %+v", line)
	}
	c := m.stile("ls")
	c.expectExit(0)
	if !strings.Contains(c.stdout.String(), "orders/42") {
		t.Errorf("ls tells %q", c.stdout)
	}
	if c := m.run("-n", "--ttl", "30", "orders/42", "--", "true"); c.ProcessState.ExitCode() != 75 {
		t.Errorf("a try for a lock that is held ends with %v", c.ProcessState)
	}

	waiting := m.command("wait", "orders/42").spawn()
	m.breakHold(t, line)
	if code := holder.exitCode(); code != 79 {
		t.Errorf("the command whose hold was broken ends with %d, want 79", code)
	}
	if code := waiter.exitCode(); code != 0 {
		t.Errorf("the next in line ends with %d", code)
	}
	if code := waiting.exitCode(); code != 0 {
		t.Errorf("wait ends with %d: %s", code, waiting.stderr)
	}
	if line := m.show("orders/42"); len(line.Holders)+len(line.Waiters) > 0 {
		t.Errorf("in the end the line is %+v", line)
	}
}

// breakHold takes the lock away from its holder.
func (m *machine) breakHold(t *testing.T, line lib.Line) {
	t.Helper()
	token := strconv.FormatUint(line.Holders[0].Token, 10)
	if c := m.stile("break", "--token", token, line.Name); c.exitCode() != 0 {
		t.Fatalf("break ends with %d: %s", c.exitCode(), c.stderr)
	}
}
