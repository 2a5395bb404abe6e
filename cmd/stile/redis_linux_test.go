package main_test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

func TestCommands_redis(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t, "requirepass hunter2")
	m.setenv("STILE_URL", "redis://"+redis.Addr()+"/1?password_env=REDIS_PASSWORD")
	m.setenv("REDIS_PASSWORD", "hunter2")

	holder := m.start(`echo $STILE_TOKEN >token; : >started; exec sleep 1000`, "--reason", "because", "deploy/web")
	first, second := m.startWaiter(1, "deploy/web"), m.startWaiter(2, "deploy/web")
	line := m.show("deploy/web")
	if len(line.Holders) != 1 || line.Holders[0].Owner.Reason != "because" ||
		fmt.Sprint(line.Holders[0].Token) != strings.TrimSpace(m.read("token")) {
		t.Errorf("show: got holders %+v, want the token %s", line.Holders, m.read("token"))
	}
	if got, want := fmt.Sprint(pids(line.Waiters)), fmt.Sprint([]int{first.Process.Pid, second.Process.Pid}); got != want {
		t.Errorf("show: got waiters %s, want %s", got, want)
	}
	ls := m.stile("ls", "deploy/")
	if ls.expectExit(0); !strings.Contains(ls.stdout.String(), "deploy/web") || !strings.Contains(ls.stdout.String(), " 2\n") {
		t.Errorf("ls prints %s", ls.stdout)
	}
	m.run("-n", "deploy/web", "--", "true").expectExit(75, `"deploy/web" is held by`, fmt.Sprintf("pid %d", holder.Process.Pid))

	w := m.startWatch("events", "deploy/")
	m.awaitFile("events", "deploy/web  holds")
	waits := m.command("wait", "deploy/web").spawn()
	m.stile("break", "deploy/web", "--token", strconv.FormatUint(line.Holders[0].Token, 10)).expectExit(0)
	holder.expectExit(79, `"deploy/web"`, "was broken, or its lease expired", "stopping the command")
	first.expectExit(0)
	second.expectExit(0)
	waits.expectExit(0)
	m.awaitFile("events", fmt.Sprintf("deploy/web  ended  token %d", line.Holders[0].Token))
	w.signal(syscall.SIGTERM)
	if ls := m.stile("ls"); ls.exitCode() != 0 || ls.stdout.String() != "" {
		t.Errorf("when all is over ls prints %s%s", ls.stdout, ls.stderr)
	}
}

func TestRun_waitsForForeignRedisLock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	m.setenv("STILE_URL", "redis://"+redis.Addr())
	redis.Do("SET", "demo", "v3ry-s3cret", "NX", "PX", "600000")
	shown := m.stile("show", "demo")
	if shown.expectExit(0); !strings.Contains(shown.stdout.String(), "another kind of client") || strings.Contains(shown.stdout.String(), "v3ry") {
		t.Errorf("show prints %s", shown.stdout)
	}
	m.run("-n", "demo", "--", "true").expectExit(75, `"demo" is held`)
	m.stile("break", "demo").expectExit(125, "delete its key")
	next := m.runCommand("demo", "--", "true").spawn()
	eventually(t, "waiter", func() bool { return len(m.show("demo").Waiters) == 1 })
	redis.Do("DEL", "demo")
	next.expectExit(0)
}

// A store that refuses every client must not look like a lock that another client holds.
func TestRun_redisReplicaIsNotHeld(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	servers := testservers.StartRedisServers(t, 2)
	servers[1].ReplicaOf(servers[0])
	m.run("--url", "redis://"+servers[1].Addr(), "-w", "10", "demo", "--", "true").
		expectExit(125, `could not acquire lock "demo" within 10s, though nobody holds it: redis at`, "READONLY", "it is a replica")
	m.run("--url", "redis://"+servers[0].Addr(), "-w", "300", "demo", "--", "true").expectExit(0)
}

func TestRun_frozenRedis(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	holder := m.start(`: >started; sleep 60`, "--url", "redis://"+redis.Addr(), "--ttl", "8", "demo")
	redis.Pause()
	holder.expectExit(79, `"demo"`, "stopping the command")
	redis.Resume()
	m.run("--url", "redis://"+redis.Addr(), "demo", "--", "true").expectExit(0)
}

// A process that is stopped for longer than its TTL, and goes on.
func TestWatchdog_stileStoppedOnRedis(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	m.setenv("STILE_URL", "redis://"+redis.Addr())
	old := m.start(ignoreTermScript, "--ttl", killedTTL, "demo")
	m.awaitFile("child", "\n")
	m.awaitFile("grandchild", "\n")
	watchdog := awaitWatchdog(t, old.Process.Pid)
	next := m.runCommand("demo", "--", "sh", "-c", uptimeScript(">next")).spawn()
	eventually(t, "the next one in line", func() bool { return len(m.show("demo").Waiters) == 1 })
	pause(t, old.Process.Pid)
	next.expectExit(0)
	m.awaitCommandDead()
	m.checkDeadBefore("next", "child", "grandchild")
	old.signal(syscall.SIGCONT)
	old.expectExit(79, `"demo"`, "expired")
	eventually(t, "end of the watchdog", func() bool { return !running(watchdog) })
}
