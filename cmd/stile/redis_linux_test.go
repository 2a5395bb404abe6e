package main_test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

func TestAllVerbsOnRedis(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t, "requirepass hunter2")
	m.set("STILE_URL", "redis://"+redis.Addr()+"/1?password_env=REDIS_PASSWORD")
	m.set("REDIS_PASSWORD", "hunter2")

	holder := m.start(`echo $STILE_TOKEN >token; : >started; exec sleep 60`, "--reason", "because", "deploy/web")
	first, second := m.waiter(1, "deploy/web"), m.waiter(2, "deploy/web")
	line := m.show("deploy/web")
	if len(line.Holders) != 1 || line.Holders[0].Owner.Reason != "because" ||
		fmt.Sprint(line.Holders[0].Token) != strings.TrimSpace(m.read("token")) {
		t.Errorf("show tells of the holders %+v; its token is %s", line.Holders, m.read("token"))
	}
	if got, want := fmt.Sprint(pids(line.Waiters)), fmt.Sprint([]int{first.Process.Pid, second.Process.Pid}); got != want {
		t.Errorf("show tells of the waiters %s, want %s", got, want)
	}
	ls := m.stile("ls", "deploy/")
	if ls.wants(0); !strings.Contains(ls.stdout.String(), "deploy/web") || !strings.Contains(ls.stdout.String(), " 2\n") {
		t.Errorf("ls prints %s", ls.stdout)
	}
	m.run("-n", "deploy/web", "--", "true").wants(75, `"deploy/web" is held by`, fmt.Sprintf("pid %d", holder.Process.Pid))

	w := m.watching("events", "deploy/")
	m.await("events", "deploy/web  holds")
	waits := m.command("wait", "deploy/web").begin()
	m.stile("break", "deploy/web", "--token", strconv.FormatUint(line.Holders[0].Token, 10)).wants(0)
	holder.wants(79, `"deploy/web"`, "was broken, or its lease expired", "stopping the command")
	first.wants(0)
	second.wants(0)
	waits.wants(0)
	m.await("events", fmt.Sprintf("deploy/web  ended  token %d", line.Holders[0].Token))
	w.signal(syscall.SIGTERM)
	if ls := m.stile("ls"); ls.code() != 0 || ls.stdout.String() != "" {
		t.Errorf("when all is over ls prints %s%s", ls.stdout, ls.stderr)
	}
}

func TestAnotherLockerOfRedisIsShownAndWaitedFor(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	m.set("STILE_URL", "redis://"+redis.Addr())
	redis.Do("SET", "demo", "v3ry-s3cret", "NX", "PX", "60000")
	shown := m.stile("show", "demo")
	if shown.wants(0); !strings.Contains(shown.stdout.String(), "another kind of client") || strings.Contains(shown.stdout.String(), "v3ry") {
		t.Errorf("show prints %s", shown.stdout)
	}
	m.run("-n", "demo", "--", "true").wants(75, `"demo" is held`)
	m.stile("break", "demo").wants(125, "delete its key")
	next := m.runner("demo", "--", "true").begin()
	redis.Do("DEL", "demo")
	next.wants(0)
}

// Who waits for a store that lets nobody in must not take that for a lock that somebody else has.
func TestARedisThatRefusesIsNoConflict(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	servers := testservers.StartRedisServers(t, 2)
	servers[1].ReplicaOf(servers[0])
	m.run("--url", "redis://"+servers[1].Addr(), "-w", "10", "demo", "--", "true").
		wants(125, `could not acquire lock "demo" within 10s, though nobody holds it: redis at`, "READONLY", "it is a replica")
	m.run("--url", "redis://"+servers[0].Addr(), "-w", "300", "demo", "--", "true").wants(0)
}

func TestAFrozenRedisStopsTheCommand(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	holder := m.start(`: >started; sleep 60`, "--url", "redis://"+redis.Addr(), "--ttl", "8", "demo")
	redis.Pause()
	holder.wants(79, `"demo"`, "stopping the command")
	redis.Resume()
	m.run("--url", "redis://"+redis.Addr(), "demo", "--", "true").wants(0)
}

// A process that is stopped for longer than its TTL, and goes on.
func TestAStoppedHolderOnRedisIsDeadBeforeTheNextOneStarts(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	m.set("STILE_URL", "redis://"+redis.Addr())
	old := m.start(stubborn, "--ttl", untilExpired, "demo")
	m.await("child", "\n")
	m.await("grandchild", "\n")
	dog := watched(t, old.Process.Pid)
	next := m.runner("demo", "--", "sh", "-c", uptime(">next")).begin()
	eventually(t, "the next one in line", func() bool { return len(m.show("demo").Waiters) == 1 })
	old.signal(syscall.SIGSTOP)
	next.wants(0)
	m.isDead()
	m.wasDeadBefore("next", "child", "grandchild")
	old.signal(syscall.SIGCONT)
	old.wants(79, `"demo"`, "expired")
	eventually(t, "end of the watchdog", func() bool { return !running(dog) })
}
