package main_test

import (
	"bufio"
	"strconv"
	"strings"
	"testing"

	lib "github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
)

func TestCommandsOnZooKeeper(t *testing.T) {
	t.Parallel()
	server := testservers.StartZooKeeper(t)
	m := newMachine(t)
	m.set("STILE_URL", "zk://"+server.Endpoint()+"/team")

	// A third of the TTL is not certain here, so that there is less time for stopping a command than elsewhere.
	m.run("--ttl", "16", "-k", "6", "orders/42", "--", "true").wants(125, "--kill-after 6s", "4s")

	watching := m.command("watch", "-o", "json", "orders/")
	watching.Cmd.Stdout = nil
	news, err := watching.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	watching.begin()
	heard := bufio.NewScanner(news)

	holder := m.start(sleeper, "--ttl", "30", "orders/42")
	waiter := m.waiter(1, "orders/42", "--ttl", "30")
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
	c.wants(0)
	if !strings.Contains(c.stdout.String(), "orders/42") {
		t.Errorf("ls tells %q", c.stdout)
	}
	if c := m.run("-n", "--ttl", "30", "orders/42", "--", "true"); c.ProcessState.ExitCode() != 75 {
		t.Errorf("a try for a lock that is held ends with %v", c.ProcessState)
	}

	waiting := m.command("wait", "orders/42").begin()
	m.breakHold(t, line)
	if code := holder.code(); code != 79 {
		t.Errorf("the command whose hold was broken ends with %d, want 79", code)
	}
	if code := waiter.code(); code != 0 {
		t.Errorf("the next in line ends with %d", code)
	}
	if code := waiting.code(); code != 0 {
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
	if c := m.stile("break", "--token", token, line.Name); c.code() != 0 {
		t.Fatalf("break ends with %d: %s", c.code(), c.stderr)
	}
}
