package main_test

import (
	"fmt"
	"strings"
	"testing"

	lib "github.com/stilelock/stile"
)

// Two commands each run under a lock and wait for the other's. The graph shows the deadlock until one of
// them gives up.
func TestGraph_deadlock(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.setenv("STILE", stile)
	m.stile("graph", "dead/").expectOutput("")
	empty := m.stile("graph", "-o", "json", "dead/")
	empty.expectExit(0)
	if g := decodeJSON[lib.WaitGraph](t, empty.stdout.Bytes()); g.Waits == nil || g.Cycles == nil {
		t.Errorf("got %s, want empty arrays", empty.stdout)
	}

	nested := func(own, other string) *command {
		return m.start("touch started; read go <end; exec $STILE run -q --ttl "+longTTL+" "+other+" -- true", own)
	}
	a, b := nested("dead/a", "dead/b"), nested("dead/b", "dead/a")
	m.endScript()
	m.endScript()
	var c *command
	eventually(t, "a cycle", func() bool {
		c = m.stile("graph", "dead/")
		return c.exitCode() == 1
	})
	c.expectExit(1)
	lines := strings.Split(c.stdout.String(), "\n")
	if len(lines) != 5 || lines[0] != "cycle: dead/a -> dead/b -> dead/a" || !strings.HasPrefix(lines[1], "HELD ") ||
		!strings.HasPrefix(lines[2], "dead/a ") || !strings.Contains(lines[2], fmt.Sprintf(" pid %d (sh) ", a.Process.Pid)) ||
		!strings.Contains(lines[2], "  dead/b ") || !strings.HasPrefix(lines[3], "dead/b ") || !strings.Contains(lines[3], "  dead/a ") {
		t.Errorf("got\n%s", c.stdout)
	}
	c = m.stile("graph", "-o", "json", "dead/a")
	c.expectExit(1)
	g := decodeJSON[lib.WaitGraph](t, c.stdout.Bytes())
	if len(g.Waits) != 1 || g.Waits[0].Held != "dead/a" || g.Waits[0].For != "dead/b" || g.Waits[0].Holder.Owner.PID != a.Process.Pid ||
		fmt.Sprint(g.Cycles) != "[[dead/a dead/b]]" || g.Read.IsZero() {
		t.Errorf("got %s", c.stdout)
	}

	m.breakHolder("dead/a")
	a.exitCode()
	b.expectExit(0)
	m.stile("graph", "dead/").expectOutput("")
}

// A set of locks waits with what it holds. That is no cycle.
func TestGraph_chain(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	holder := m.start(endableScript, "chain/b")
	all := m.runCommand("--all", "chain/a", "chain/b", "--", "true").spawn()
	var c *command
	eventually(t, "a wait", func() bool {
		c = m.stile("graph", "chain/")
		c.expectExit(0)
		return c.stdout.String() != ""
	})
	lines := strings.Split(c.stdout.String(), "\n")
	if len(lines) != 3 || strings.Join(strings.Fields(lines[0]), " ") != "HELD HOLDER TOKEN WAITS FOR WAITED" || !strings.HasPrefix(lines[1], "chain/a ") ||
		!strings.Contains(lines[1], fmt.Sprintf(" pid %d (true)  ", all.Process.Pid)) || !strings.Contains(lines[1], "  chain/b  ") {
		t.Errorf("got\n%s", c.stdout)
	}
	m.endScript()
	holder.expectExit(0)
	all.expectExit(0)
	at := m.atTerminal("sh", "-c", `"$0" graph chain/; echo code $?`, stile)
	at.awaitScreen("stile: no holder waits for another lock\r\n")
	at.awaitScreen("code 0")
}

func TestGraph_invalidUse(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1")
	m.stile("graph").expectExit(125, "connection refused")
	m.stile("graph", "a\a").expectExit(125, "invalid lock name prefix")
	m.stile("graph", "a", "b").expectExit(125, "unexpected argument")
	m.stile("graph", "-o", "dot").expectExit(125, "must be text or json")
}
