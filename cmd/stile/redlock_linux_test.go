package main_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

// redlock starts some Redis servers and returns them with the URL that names them all.
func redlock(t *testing.T, n int) ([]*testservers.Redis, string) {
	t.Helper()
	servers := testservers.StartRedisServers(t, n)
	addrs := make([]string, 0, n)
	for _, r := range servers {
		addrs = append(addrs, r.Addr())
	}
	return servers, "redlock://" + strings.Join(addrs, ",")
}

func TestRunOnRedlock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	servers, url := redlock(t, 3)
	servers[0].Pause() // which nobody should notice
	holder := m.start(`echo $STILE_TOKEN >token; : >started; read end <end`, "--url", url, "demo")

	m.run("-n", "--url", url, "demo", "--", "true").wants(75, `lock "demo" is held by`)
	l := parsedLine(t, m, url)
	if l.Holders[0].Owner.PID != holder.Process.Pid {
		t.Errorf("show says that process %d holds the lock, and %d does", l.Holders[0].Owner.PID, holder.Process.Pid)
	}
	m.stile("break", "--url", url, "--yes", "demo").wants(0)
	holder.wants(79, `lock "demo"`, "lost")

	start := time.Now()
	m.run("--url", url, "demo", "--", "sh", "-c", `[ "$STILE_TOKEN" -gt "$(cat token)" ]`).wants(0)
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestRunOnRedlockStopsTheCommandWhenTheMajorityIsGone(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	servers, url := redlock(t, 3)
	holder := m.start(`: >started; sleep 60`, "--url", url, "--ttl", "2", "demo")
	servers[1].Pause()
	servers[2].Pause()
	holder.wants(79, `lock "demo"`, "lost")
	servers[1].Resume()
	m.run("--url", url, "demo", "--", "true").wants(0)
}
