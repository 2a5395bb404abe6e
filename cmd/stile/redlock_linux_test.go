package main_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

// redlock starts n Redis servers. It returns them and the URL of a store on all of them.
func redlock(t *testing.T, n int) ([]*testservers.Redis, string) {
	t.Helper()
	servers := testservers.StartRedisServers(t, n)
	addrs := make([]string, 0, n)
	for _, r := range servers {
		addrs = append(addrs, r.Addr())
	}
	return servers, "redlock://" + strings.Join(addrs, ",")
}

func TestRun_redlock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	servers, url := redlock(t, 3)
	m.setenv("STILE_URL", url)
	servers[0].Pause() // must have no effect on the holder
	holder := m.start(`echo $STILE_TOKEN >token; : >started; exec sleep 1000`, "demo")

	m.run("-n", "demo", "--", "true").expectExit(75, `"demo" is held by`, fmt.Sprintf("pid %d (sh)", holder.Process.Pid))
	token := strings.TrimSpace(m.read("token"))
	if l := m.show("demo"); len(l.Holders) != 1 || fmt.Sprint(l.Holders[0].Token) != token || len(l.Remarks) != 1 ||
		!strings.Contains(l.Remarks[0], servers[0].Addr()) {
		t.Errorf("show: got %+v, want the holder with token %s and a remark about the master that does not answer", l, token)
	}
	if c := m.stile("ls"); c.exitCode() != 0 || !strings.Contains(c.stdout.String(), "demo") {
		t.Errorf("ls: got %s, want the lock demo", c.stdout)
	}
	next := m.runCommand("demo", "--", "sh", "-c", `[ "$STILE_TOKEN" -gt "$(cat token)" ]`).spawn()
	m.stile("break", "demo", "--token", token).expectExit(0)
	holder.expectExit(79, `"demo"`, "was broken, or its lease expired", "stopping the command")
	next.expectExit(0)
	m.stile("wait", "demo").expectExit(0)

	m.run("--slots", "2", "demo", "--", "true").expectExit(125, "not supported by the redlock store")
	m.stile("slots", "demo", "2").expectExit(125, "not supported by the redlock store")
	m.stile("graph").expectExit(125, "not supported by the redlock store")
	// The locks of --all are taken one after another.
	held := m.start(endableScript, "b")
	all := m.atTerminal(stile, "run", "--ttl", longTTL, "--all", "b", "a", "--", "true")
	all.awaitScreen(`"b": held by `)
	all.awaitScreen("; waited ")
	if strings.Contains(all.screenText(), "next in line") {
		t.Errorf("got %q, want no place: redlock has no order", all.screenText())
	}
	m.run("-n", "a", "--", "true").expectExit(75, `"a" is held by`)
	m.endScript()
	held.expectExit(0)
	if code := all.exitCode(); code != 0 {
		t.Errorf("exit code %d: %q", code, all.screenText())
	}
}

func TestRun_redlockMajorityLost(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	servers, url := redlock(t, 3)
	holder := m.start(`: >started; sleep 1000`, "--url", url, "--ttl", "8", "demo")
	servers[1].Pause()
	servers[2].Pause()
	holder.expectExit(79, `"demo"`, "stopping the command")
	servers[1].Resume()
	m.run("--url", url, "demo", "--", "true").expectExit(0)
}
