package main_test

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	lib "github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
)

// once starts stile once.
func (m *machine) once(args ...string) *command {
	m.t.Helper()
	return m.command(append([]string{"once", "--ttl", longTTL}, args...)...).spawn()
}

// startOnce starts stile once with sh as its command, and waits until the script has been started.
func (m *machine) startOnce(script string, args ...string) *command {
	m.t.Helper()
	n := m.starts()
	c := m.once(append(args, "--", "sh", "-c", countedScript+"; "+script)...)
	m.awaitStarts(n + 1)
	return c
}

// starts returns how often countedScript has been started.
func (m *machine) starts() int { return strings.Count(m.read("starts"), "\n") }

// expectStarts checks how often countedScript has been started.
func (m *machine) expectStarts(n int) {
	m.t.Helper()
	if got := m.starts(); got != n {
		m.t.Errorf("got %d starts of the command, want %d", got, n)
	}
}

// countScript is countedScript without the wait.
const countScript = `echo "$STILE_TOKEN" >>starts`

// shownJob is a job in the JSON output of show.
type shownJob struct{ Success, Failure *shownAttempt }

type shownAttempt struct {
	Called   time.Time `json:"called"`
	ExitCode int       `json:"exit_code"`
	Token    string    `json:"token"`
	Owner    string    `json:"owner"`
}

// jobs returns a line, and what stile once has recorded for its name.
func (m *machine) jobs(name string) (lib.Line, map[string]shownJob) {
	m.t.Helper()
	c := m.stile("show", "-o", "json", name)
	c.expectExit(0)
	shown := decodeJSON[struct {
		lib.Line
		Jobs map[string]shownJob `json:"jobs"`
	}](m.t, c.stdout.Bytes())
	return shown.Line, shown.Jobs
}

// awaitWaiters waits until n entries wait for a lock.
func (m *machine) awaitWaiters(name string, n int) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("%d waiters", n), func() bool {
		line, _ := m.jobs(name)
		return len(line.Waiters) == n
	})
}

func TestOnce_key(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.once("--key", "v1", "job", "--", "sh", "-c", countScript+"; exit 3").expectExit(3)
	m.once("--key", "v1", "job", "--", "sh", "-c", countScript+"; exit 4").expectExit(4) // a failure is no success
	m.once("--key", "v1", "job", "-c", countScript).expectExit(0)
	m.expectStarts(3)
	m.once("--key", "v1", "job", "-c", countScript).expectExit(0)
	m.once("--key", "v1", "-E", "9", "job", "-c", countScript).expectExit(9)
	m.once("--key", "v1", "-v", "--skip-exit-code", "9", "job", "-c", countScript).
		expectExit(9, `lock "job": the command was not run: "v1" succeeded, called by`, "(sh) at 2")
	m.expectStarts(3)
	success := m.once("--key", "v2", "-v", "job", "-c", countScript)
	if code := success.exitCode(); code != 0 || !strings.Contains(success.stderr.String(), `stile: lock "job": the success is recorded`+"\n") {
		t.Errorf("with -v: got exit code %d and %s, want 0 and the record", code, success.stderr)
	}
	m.once("--key", "v1", "other", "-c", countScript).expectExit(0)
	m.expectStarts(5)
	if left := entries(t, s.client(t), "job"); left != nil {
		t.Errorf("entries left in the line: %v", left)
	}
}

// What is recorded is shown, whatever is in it, and does not make a line.
func TestOnce_show(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	before := time.Now().Add(-time.Second)
	m.once("--every", "1h", "job", "-c", countScript).expectExit(0)
	m.once("--key", `"é`, "job", "-c", "exit 7").expectExit(7)
	line, jobs := m.jobs("job")
	first, second := jobs[""].Success, jobs[`"é`].Failure
	if len(jobs) != 2 || first == nil || second == nil || first.Token != strings.TrimSpace(m.read("starts")) || second.ExitCode != 7 ||
		first.Called.Before(before) || !strings.Contains(first.Owner, "(sh)") || len(line.Holders)+len(line.Remarks) != 0 {
		t.Fatalf("show -o json: got %+v, %+v", line, jobs)
	}
	shown := m.stile("show", "job")
	shown.expectExit(0)
	for _, part := range []string{
		"lock job: free\n", "once  ", " succeeded, called 2", " by ", ", token " + first.Token + "\n",
		`once "\"é"  failed with exit code 7, called 2`,
	} {
		if !strings.Contains(shown.stdout.String(), part) {
			t.Errorf("show: got %s, want %q in it", shown.stdout, part)
		}
	}
	if ls := m.stile("ls"); ls.exitCode() != 0 || ls.stdout.String() != "" {
		t.Errorf("ls: got %s, want nothing", ls.stdout)
	}
}

// Ten hosts with the same crontab run the command on one of them.
func TestOnce_everyOnTenHosts(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	var calls []*command
	for range 10 {
		calls = append(calls, m.once("--every", "24h", "job", "--", "sh", "-c", countScript+"; sleep 0.2"))
	}
	for _, c := range calls {
		c.expectExit(0)
	}
	m.expectStarts(1)

	// The next period begins after nine tenths of it.
	eventually(t, "the command to run again", func() bool {
		m.once("--every", "1s", "job", "-c", countScript).expectExit(0)
		return m.starts() == 2
	})
	_, jobs := m.jobs("job")
	calledAt := jobs[""].Success.Called
	m.once("--every", "24h", "job", "-c", countScript).expectExit(0)
	m.expectStarts(2)
	if _, jobs := m.jobs("job"); !jobs[""].Success.Called.Equal(calledAt) {
		t.Errorf("a call that was skipped has moved the start from %v to %v", calledAt, jobs[""].Success.Called)
	}
	// The period of each key is its own.
	m.once("--every", "24h", "--key", "a", "job", "-c", countScript).expectExit(0)
	m.once("--every", "24h", "--key", "a", "job", "-c", countScript).expectExit(0)
	m.expectStarts(3)
}

// A call that waits while the command succeeds does not run it.
func TestOnce_waiterIsSkipped(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	first := m.startOnce("exit 0", "--key", "v1", "job")
	next := m.once("--key", "v1", "-E", "9", "job", "-c", countScript)
	m.once("-n", "--key", "v1", "job", "-c", countScript).expectExit(75, `lock "job" is held by`)
	m.once("-n", "-q", "--key", "v1", "job", "-c", countScript).expectExit(75)
	m.once("-w", "0.1", "--key", "v1", "job", "-c", countScript).expectExit(75, `could not acquire lock "job" within 100ms`)
	m.awaitWaiters("job", 1)
	m.endScript()
	first.expectExit(0)
	next.expectExit(9)
	m.expectStarts(1)
}

// A call that waits while the command fails takes over its result, unless it retries or has another key. A
// call that comes later runs the command.
func TestOnce_failureDuringWait(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.once("--every", "1h", "job", "-c", countScript+"; exit 5").expectExit(5) // a failure before all of them
	first := m.startOnce("exit 3", "--every", "1h", "job")
	var waiters []*command
	wait := func(args ...string) *command {
		waiters = append(waiters, m.once(args...))
		m.awaitWaiters("job", len(waiters))
		return waiters[len(waiters)-1]
	}
	told := wait("--every", "1h", "job", "-c", countScript)
	quiet := wait("--every", "1h", "-q", "-E", "9", "job", "-c", countScript)
	other := wait("--key", "v1", "job", "-c", countScript)
	retry := wait("--every", "1h", "--retry", "job", "-c", countScript+"; exit 4")
	afterRetry := wait("--every", "1h", "job", "-c", countScript)
	m.endScript()
	first.expectExit(3)
	told.expectExit(3, `lock "job": the command was not run: it failed with exit code 3 during the wait, called by`,
		fmt.Sprintf("pid %d (sh) at 2", first.Process.Pid))
	quiet.expectExit(3)
	other.expectExit(0)
	retry.expectExit(4)
	afterRetry.expectExit(4, "failed with exit code 4", fmt.Sprintf("pid %d (sh)", retry.Process.Pid))
	m.expectStarts(4)
	m.once("--every", "1h", "job", "-c", countScript).expectExit(0)
	m.expectStarts(5)
	if _, jobs := m.jobs("job"); jobs[""].Failure != nil || jobs[""].Success == nil {
		t.Errorf("after a success: got %+v, want no failure", jobs[""])
	}
}

// An attempt that was killed is no attempt: the next in line runs the command.
func TestOnce_killed(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.startOnce("exit 0", "--ttl", expiringTTL, "--key", "v1", "job")
	next := m.once("--key", "v1", "job", "-c", countScript)
	m.awaitWaiters("job", 1)
	c.signal(syscall.SIGKILL)
	next.expectExit(0)
	m.expectStarts(2)
}

// A command that was asked to end has not failed: the next in line runs it. A signal ends a wait.
func TestOnce_signals(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.startOnce("exit 0", "--key", "v1", "job")
	next := m.once("--key", "v1", "job", "-c", countScript)
	m.awaitWaiters("job", 1)
	ended := m.once("--key", "v1", "job", "-c", countScript)
	m.awaitWaiters("job", 2)
	ended.signal(syscall.SIGINT)
	ended.expectExit(128 + 2)
	c.signal(syscall.SIGTERM)
	c.expectExit(128 + 15)
	next.expectExit(0)
	m.expectStarts(2)
}

// The command is stopped if the lock is broken, and nothing is recorded.
func TestOnce_broken(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.startOnce("exit 0", "--key", "v1", "job")
	next := m.once("--key", "v1", "job", "-c", countScript)
	m.awaitWaiters("job", 1)
	m.breakHolder("job")
	c.expectExit(79, `lock "job" was broken`, "stopping the command")
	next.expectExit(0)
	m.expectStarts(2)
}

// The lock is taken away before the success is recorded, and stile does not know: the command's own exit
// code, nothing recorded, and it runs again.
func TestOnce_lostBeforeRecord(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t)
	m.setenv("STILE_URL", "redis://"+redis.Addr())
	for code, text := range map[int]string{
		0: "the command succeeded, but this is not recorded, so it may run again: ",
		3: "the command failed, but this is not recorded, so the waiters may run it: ",
	} {
		before := m.starts()
		c := m.startOnce(fmt.Sprintf("exit %d", code), "--key", "v1", "--ttl", "4m", "job")
		redis.Do("DEL", "job") // the holder is not notified before its next renewal
		m.endScript()
		if got := c.exitCode(); got != code || !strings.Contains(c.stderr.String(), `stile: lock "job": `+text) {
			t.Errorf("got exit code %d and %s, want %d and %q", got, c.stderr, code, text)
		}
		if _, jobs := m.jobs("job"); len(jobs) != 0 {
			t.Errorf("recorded: %+v", jobs)
		}
		if got := m.starts(); got != before+1 {
			t.Errorf("got %d starts, want %d", got, before+1)
		}
	}
	m.once("--key", "v1", "job", "-c", countScript).expectExit(0)
	m.expectStarts(3)
	m.once("--key", "v1", "job", "-c", countScript).expectExit(0)
	m.expectStarts(3)
	m.once("--forget", "job").expectExit(0)
	m.once("--key", "v1", "job", "-c", countScript).expectExit(0)
	m.expectStarts(4)
}

// stile is stopped while the command ends and the lock expires. When it goes on, it cannot know whether the
// command succeeded in time: the success is not recorded, and the command runs again.
func TestOnce_expiredBeforeRecord(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.startOnce("exit 0", "--ttl", expiringTTL, "--key", "v1", "job")
	pause(t, c.Process.Pid)
	m.endScript()
	m.run("job", "--", "true").expectExit(0) // when the lock has expired
	c.signal(syscall.SIGCONT)
	c.expectExit(79, `lock "job" expired: it was not renewed in time`)
	if _, jobs := m.jobs("job"); len(jobs) != 0 {
		t.Errorf("recorded: %+v", jobs)
	}
	m.once("--key", "v1", "job", "-c", countScript).expectExit(0)
	m.expectStarts(2)
}

// The store is out of reach when the command has ended. A signal ends the attempts to record the success.
func TestOnce_outage(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), serve(t)
	m.setenv("STILE_URL", s.url)
	// With a shorter TTL a slow script would be stopped, because renewals fail.
	c := m.once("--key", "v1", "--ttl", "4m", "job", "--", "sh", "-c", "trap '' TERM; "+countedScript)
	m.awaitStarts(1)
	pause(t, s.Process.Pid)
	resume := sync.OnceFunc(func() { _ = s.Process.Signal(syscall.SIGCONT) })
	defer resume()
	m.endScript()
	eventually(t, "end of the attempts", func() bool {
		_ = c.Process.Signal(syscall.SIGTERM) // before the command has ended it is for the command, which ignores it
		return strings.Contains(c.stderr.String(), "this is not recorded, so it may run again: interrupted by signal")
	})
	resume()
	if code := c.exitCode(); code != 0 {
		t.Errorf("got exit code %d, want that of the command, 0", code)
	}
}

func TestOnce_forget(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	for _, key := range []string{"a", "b"} {
		m.once("--key", key, "job", "-c", countScript).expectExit(0)
	}
	m.once("--every", "1h", "job", "-c", countScript).expectExit(0)
	m.once("--forget", "--key", "a", "job").expectExit(0)
	m.once("--forget", "--key", "unknown", "job").expectExit(0)
	if _, jobs := m.jobs("job"); len(jobs) != 2 || jobs["b"].Success == nil || jobs[""].Success == nil {
		t.Errorf("after forgetting a: got %+v", jobs)
	}
	holder := m.startOnce("exit 0", "--key", "a", "job")
	m.once("--forget", "-n", "job").expectExit(75, `lock "job" is held by`)
	m.endScript()
	holder.expectExit(0)
	m.once("--forget", "job").expectExit(0)
	if _, jobs := m.jobs("job"); len(jobs) != 0 {
		t.Errorf("after forgetting all: got %+v", jobs)
	}
	if left := entries(t, s.client(t), ".stile/records"); left != nil {
		t.Errorf("keys left: %v", left)
	}
}

func TestOnce_keep(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	m.once("--key", "a", "job", "-c", countScript).expectExit(0)
	m.once("--key", "b", "--keep", "1h", "job", "-c", countScript).expectExit(0)
	if _, jobs := m.jobs("job"); len(jobs) != 2 {
		t.Errorf("--keep 1h: got %+v, want both keys", jobs)
	}
	eventually(t, "the other keys to be forgotten", func() bool {
		m.once("--key", "c", "--every", "1ns", "--keep", "100ms", "job", "-c", countScript).expectExit(0)
		_, jobs := m.jobs("job")
		return len(jobs) == 1 && jobs["c"].Success != nil
	})
}

// putRecord writes the record of a name as another client could.
func (s *server) putRecord(t *testing.T, name, record string) {
	t.Helper()
	if _, err := s.client(t).Put(t.Context(), ".stile/records/"+name+"//", "1.1 "+record); err != nil {
		t.Fatal(err)
	}
}

// A record that stile once has not written is not taken for a history, and not overwritten by accident.
func TestOnce_damagedRecord(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	s.putRecord(t, "job", "\x1b[31m")
	m.once("--key", "a", "job", "-c", countScript).
		expectExit(125, `lock "job": the record cannot be read: it was not written by stile once`, "stile once --forget job removes it")
	m.once("--forget", "--key", "a", "job").expectExit(125, "the record cannot be read")
	shown := m.stile("show", "job")
	if shown.expectExit(0); !strings.Contains(shown.stdout.String(), "remark  ") || !strings.Contains(shown.stdout.String(), "stile once --forget") {
		t.Errorf("show: got %s, want a remark", shown.stdout)
	}
	m.expectStarts(0)
	m.once("--forget", "job").expectExit(0)
	m.once("--key", "a", "job", "-c", countScript).expectExit(0)
	m.expectStarts(1)
}

// A success in the future comes from a clock that was wrong. It does not count for a period.
func TestOnce_successInFuture(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	s.putRecord(t, "job", `{"stile_once":1,"jobs":{"":{"success":{"called":"2999-01-01T00:00:00Z","token":"1","owner":"ann@\u001b"}}}}`)
	m.once("--every", "24h", "job", "-c", countScript).
		expectExit(0, `lock "job": the last success, by ann@\x1b, is said to be of 2999-01-01`, "check the clocks")
	m.once("--every", "24h", "job", "-c", countScript).expectExit(0)
	m.expectStarts(1)
}

// The period begins nine tenths of it after the last success, which another host may have called by a clock
// that is ahead.
func TestOnce_period(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	const record = `{"stile_once":1,"jobs":{"":{"success":{"called":%q,"token":"1","owner":"ann"}}}}`
	for ago, runs := range map[time.Duration]bool{
		89 * time.Hour: false, 91 * time.Hour: true, -9 * time.Hour: false, -11 * time.Hour: true,
	} {
		before := m.starts()
		s.putRecord(t, "job", fmt.Sprintf(record, time.Now().Add(-ago).UTC().Format(time.RFC3339)))
		c := m.once("--every", "100h", "job", "-c", countScript)
		if ago < 0 && runs {
			c.expectExit(0, "in the future: running the command")
		} else {
			c.expectExit(0)
		}
		if ran := m.starts() > before; ran != runs {
			t.Errorf("%v after the last success: the command ran: %v, want %v", ago, ran, runs)
		}
	}
	m.once("--every", "100h", "-v", "job", "-c", countScript).expectExit(0, `lock "job": the command was not run: it succeeded, called by`)
}

// A command whose success could not be recorded is not run: it would be each time.
func TestOnce_full(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	var jobs []string
	for i := range 3000 {
		jobs = append(jobs, fmt.Sprintf(`"key%d":{"success":{"called":"2020-01-01T00:00:00Z","exit_code":0,"token":"1","owner":"ann"}}`, i))
	}
	s.putRecord(t, "job", `{"stile_once":1,"jobs":{`+strings.Join(jobs[:2500], ",")+"}}")
	m.once("--key", "new", "job", "-c", countScript).expectExit(0)
	s.putRecord(t, "job", `{"stile_once":1,"jobs":{`+strings.Join(jobs, ",")+"}}")
	m.once("--key", "new", "job", "-c", countScript).expectExit(125, "longer than the maximum")
	shown := m.stile("show", "job")
	if shown.expectExit(0); !strings.Contains(shown.stdout.String(), "recorded cannot be read: it is longer than the maximum") {
		t.Errorf("show: got %s, want a remark", shown.stdout)
	}
	m.once("--forget", "job").expectExit(0)
	fit := len(jobs)
	for n := 0; n < 262_000; fit-- {
		n = 262_144 - 25 - len(strings.Join(jobs[:fit], ","))
		if n >= 0 {
			break
		}
	}
	s.putRecord(t, "job", `{"stile_once":1,"jobs":{`+strings.Join(jobs[:fit], ",")+"}}")
	m.once("--key", "new", "job", "-c", countScript).
		expectExit(125, "could not be recorded", "it has more keys than fit", "use --keep")
	m.expectStarts(1)
	m.once("--key", "new", "--keep", "24h", "job", "-c", countScript).expectExit(0)
	m.expectStarts(2)
}

// Another user of the lock excludes the command, and is not skipped for it.
func TestOnce_excludesRun(t *testing.T) {
	t.Parallel()
	m, s := newMachine(t), shared(t)
	m.setenv("STILE_URL", s.url)
	c := m.startOnce("exit 0", "--key", "v1", "job")
	m.run("-n", "job", "--", "true").expectExit(75, `"job" is held by`)
	m.endScript()
	c.expectExit(0)
	m.run("job", "-c", countScript).expectExit(0)
	m.expectStarts(2)
}

func TestOnce_redlock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	var addrs []string
	for _, server := range testservers.StartRedisServers(t, 3) {
		addrs = append(addrs, server.Addr())
	}
	m.setenv("STILE_URL", "redlock://"+strings.Join(addrs, ","))
	m.once("--key", "v1", "job", "-c", countScript).expectExit(125, `record of lock "job": not supported by the redlock store`)
	m.expectStarts(0)
	if shown := m.stile("show", "job"); shown.exitCode() != 0 {
		t.Errorf("show: got exit code %d, %s", shown.exitCode(), shown.stderr)
	}
}

func TestOnce_invalidArguments(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.setenv("STILE_URL", "etcd://127.0.0.1:1") // nothing listens there, so using the store would fail with another error
	for _, c := range []struct {
		args  []string
		parts []string
	}{
		{[]string{}, []string{"missing lock name: stile once", "--help"}},
		{[]string{"--key", "a", "-q", "-v", "job", "--", "true"}, []string{"-q and -v contradict"}},
		{[]string{"--key", strings.Repeat("a", 257), "job", "--", "true"}, []string{`--key "aaa`, "256"}},
		{[]string{"--forget", "--retry", "job"}, []string{"--retry has no meaning with --forget"}},
		{[]string{"--forget", "--keep", "1h", "job"}, []string{"--keep has no meaning with --forget"}},
		{[]string{"--forget", "-c", "true", "job"}, []string{"--command has no meaning with --forget"}},
		{[]string{"--key", "a", "job"}, []string{"no command", `"job"`, "stile once --help"}},
		{[]string{"job", "--", "true"}, []string{"neither --key nor --every is given"}},
		{[]string{"--key", "", "job", "--", "true"}, []string{`--key "": it is empty`}},
		{[]string{"--key", "a\nb", "job", "--", "true"}, []string{`--key "a\nb"`, "without control characters"}},
		{[]string{"--every", "0", "job", "--", "true"}, []string{"--every must be more than 0"}},
		{[]string{"--every", "-1s", "job", "--", "true"}, []string{"must not be negative"}},
		{[]string{"--key", "a", "--keep", "0", "job", "--", "true"}, []string{"--keep must be more than 0"}},
		{[]string{"--every", "2h", "--keep", "1h", "job", "--", "true"}, []string{"--keep 1h is shorter than --every 2h"}},
		{[]string{"--key", "a", "-E", "256", "job", "--", "true"}, []string{"256"}},
		{[]string{"--key", "a", "-n", "-w", "1", "job", "--", "true"}, []string{"-n and -w contradict"}},
		{[]string{"--forget"}, []string{"missing lock name"}},
		{[]string{"--forget", "job", "--", "true"}, []string{"unexpected argument"}},
		{[]string{"--forget", "--every", "1h", "job"}, []string{"--every has no meaning with --forget"}},
		{[]string{"--forget", "-E", "1", "job"}, []string{"--skip-exit-code has no meaning with --forget"}},
		{[]string{"--key", "a", "/", "--", "true"}, []string{"invalid lock name"}},
		{[]string{"--key", "a", "job", "--", "true"}, []string{"connection refused"}},
	} {
		m.once(c.args...).expectExit(125, c.parts...)
	}
	m.once("--key", "a", "job", "--", "no-such-command").expectExit(127, "command not found: no-such-command")
	m.once("--key", "a", "job", "--", m.write("not-executable", "", 0o600)).expectExit(126, "not-executable")
}
