package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/workload"
	"github.com/stilelock/stile/lab/torture/workload/workloadtest"
)

// TestMain makes the test binary a worker if a test starts it as one.
func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const asWorker = "TORTURE_TEST_WORKER"

// process is a running worker.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
}

func start(t *testing.T, c workload.Config, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...)}
	p.cmd.Env = append(os.Environ(), asWorker+"=1")
	p.cmd.Stderr = &p.stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	if err := json.NewEncoder(p.stdin).Encode(c); err != nil {
		t.Fatal(err)
	}
	return p
}

// awaitSuccess waits until the process has ended, and checks that it reported no error.
func (p *process) awaitSuccess() {
	p.t.Helper()
	if err := p.cmd.Wait(); err != nil || p.stderr.Len() > 0 {
		p.t.Errorf("the worker ended with %v and wrote %q, want neither an error nor output", err, p.stderr.String())
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// ttl is the TTL of sessions that must not be lost, even on a busy machine.
const ttl = time.Minute

func stileConfig(server *testservers.Redis) locker.Config {
	return locker.Config{Kind: "stile", URL: "redis://" + server.Addr(), TTL: ttl}
}

func isAcquisition(e history.Event) bool { return e.Acquire != nil && e.Acquire.Outcome == history.OK }

// last returns the last event of a worker.
func last(t *testing.T, h *history.History, worker string) history.Event {
	t.Helper()
	var found history.Event
	for _, e := range h.Events {
		if e.Worker == worker {
			found = e
		}
	}
	return found
}

func TestWorker_terminates(t *testing.T) {
	for name, end := range map[string]func(*process){
		"on SIGTERM":                        func(p *process) { p.signal(syscall.SIGTERM) },
		"when its standard input is closed": func(p *process) { p.stdin.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, harness := testservers.StartRedis(t), workloadtest.New(t)
			p := start(t, harness.Config("w1", workload.Long, stileConfig(server)))
			hold := harness.Await("acquisition", isAcquisition).Acquire
			end(p)
			p.awaitSuccess()
			h := harness.History()
			if e := last(t, h, "w1").Census; e == nil || e.Phase != "end" {
				t.Errorf("got last event %+v, want the census at the end", last(t, h, "w1"))
			}
			for _, e := range h.Events {
				if e.End != nil && e.End.Grant == hold.Grant && e.End.Outcome == history.OK {
					return
				}
			}
			t.Error("the lock was not released")
		})
	}
}

func TestWorker_leavesNothing(t *testing.T) {
	t.Parallel()
	server, etcd := testservers.StartRedis(t), testservers.StartEtcd(t)
	for name, l := range map[string]locker.Config{
		"stile on Redis": {Kind: "stile", URL: "redis://" + server.Addr()},
		"stile on etcd":  {Kind: "stile", URL: "etcd://" + etcd.Endpoint()},
		"concurrency":    {Kind: "concurrency", Addresses: []string{etcd.Endpoint()}},
		"redsync":        {Kind: "redsync", Addresses: []string{server.Addr()}},
		"redislock":      {Kind: "redislock", Addresses: []string{server.Addr()}},
		"rueidislock":    {Kind: "rueidislock", Addresses: []string{server.Addr()}, Patient: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkLeavesNothing(t, l)
		})
	}
}

func TestWorker_leavesNothingOnZooKeeper(t *testing.T) {
	t.Parallel()
	zk := testservers.StartZooKeeper(t)
	checkLeavesNothing(t, locker.Config{Kind: "gozk", Addresses: []string{zk.Endpoint()}})
}

// checkLeavesNothing runs workers whose workloads end holds and waits in every way, and checks that
// they have no more goroutines and descriptors in the end.
func checkLeavesNothing(t *testing.T, l locker.Config) {
	t.Helper()
	l.TTL = 5 * time.Second // an abandoned entry blocks others for so long; a lost session does no harm
	for _, load := range []string{workload.Storm, workload.Churn} {
		t.Run(load, func(t *testing.T) {
			harness := workloadtest.New(t)
			p := start(t, harness.Config("w1", load, l))
			for range 10 {
				harness.AwaitNext("acquisition", isAcquisition)
			}
			p.signal(syscall.SIGTERM)
			p.awaitSuccess()
			var counts []history.Census
			for _, e := range harness.History().Events {
				if e.Census != nil {
					counts = append(counts, *e.Census)
				}
			}
			if len(counts) != 2 || counts[1].Goroutines > counts[0].Goroutines || counts[1].Descriptors > counts[0].Descriptors {
				t.Errorf("got censuses %+v, want two, the second not larger", counts)
			}
		})
	}
}

func TestWorker_killedAfterReporting(t *testing.T) {
	t.Parallel()
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	c := harness.Config("w1", workload.Long, stileConfig(server))
	c.Locker.TTL = 20 * time.Second // the hold is extended after a third of that
	p := start(t, c)
	hold := harness.Await("acquisition", isAcquisition).Acquire
	write := harness.Await("write", func(e history.Event) bool { return e.Write != nil && e.Write.Mode == "audit" }).Write
	harness.Await("extension", func(e history.Event) bool { return e.Extend != nil })
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
	h := harness.History()
	if e := last(t, h, "w1"); e.Extend == nil || e.Extend.Grant != hold.Grant {
		t.Errorf("got last event %+v", e)
	}
	if write.Grant != hold.Grant || write.Token != hold.Token {
		t.Errorf("got write %+v, want one under hold %+v", *write, *hold)
	}
	for _, e := range h.Events {
		if e.End != nil {
			t.Errorf("a killed worker reported %+v", *e.End)
		}
	}
}

// The resource runs as a process, and a worker uses it.
func TestResource_process(t *testing.T) {
	t.Parallel()
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	c := harness.Config("resource", "", locker.Config{})
	c.Resource = filepath.Join(filepath.Dir(c.Resource), "another")
	p := start(t, c, "resource")
	conf := harness.Config("w1", workload.Hot, stileConfig(server))
	conf.Resource = c.Resource
	w := start(t, conf)
	harness.Await("write", func(e history.Event) bool { return e.Write != nil && e.Worker == "resource" })
	w.signal(syscall.SIGTERM)
	w.awaitSuccess()
	p.stdin.Close()
	p.awaitSuccess()
}

func TestWorker_noResource(t *testing.T) {
	t.Parallel()
	server, harness := testservers.StartRedis(t), workloadtest.New(t)
	conf := harness.Config("w1", workload.Hot, stileConfig(server))
	conf.Resource = filepath.Join(t.TempDir(), "none")
	p := start(t, conf)
	if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(p.stderr.String(), "resource") {
		t.Errorf("ended with %v and wrote %q, want exit status 1 and an error about the resource", err, p.stderr.String())
	}
}

func TestRun_invalidArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"rescource"}, {"child"}, {"child", "{"}} {
		p := start(t, workload.Config{}, args...)
		if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != 1 || p.stderr.Len() == 0 {
			t.Errorf("%q: ended with %v and wrote %q, want exit status 1 and an error", args, err, p.stderr.String())
		}
	}
}

// buildStile builds the stile command from the working tree and returns its path.
func buildStile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stile")
	// go run keeps the linked program in its cache; go build does not.
	build := exec.Command("go", "-C", "../../../cmd/stile", "run", "-exec", "cp", ".", path)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// hasWatchdog reports whether a stile process has started its watchdog. It also has short-lived
// children, with which it finds out what the system supports.
func hasWatchdog(t *testing.T, stile int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", stile))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d does not exist: %v", stile, err)
	}
	for _, path := range threads {
		text, _ := os.ReadFile(path) // empty if the thread has just ended
		for child := range strings.FieldsSeq(string(text)) {
			args, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if strings.HasPrefix(string(args), "stile\x00watchdog\x00") {
				return true
			}
		}
	}
	return false
}

// A worker runs commands under the real `stile run`.
func TestWorker_stileRun(t *testing.T) {
	t.Parallel()
	path := buildStile(t)
	startCommands := func(t *testing.T, server *testservers.Redis, ttl, holdUnit time.Duration) (*workloadtest.Harness, *process) {
		harness := workloadtest.New(t)
		c := harness.Config("w1", workload.Command, stileConfig(server))
		c.Stile, c.Locker.TTL, c.HoldUnit = path, ttl, holdUnit
		return harness, start(t, c)
	}
	isEndOf := func(grant string) func(history.Event) bool {
		return func(e history.Event) bool { return e.End != nil && e.End.Grant == grant }
	}
	isExitOf := func(worker string) func(history.Event) bool {
		return func(e history.Event) bool { return e.Exited != nil && e.Worker == worker }
	}
	pid := func(harness *workloadtest.Harness, worker string) int {
		return harness.Await("start of a command", func(e history.Event) bool {
			return e.Started != nil && e.Worker == worker
		}).Started.Pid
	}

	t.Run("one after the other", func(t *testing.T) {
		t.Parallel()
		harness, p := startCommands(t, testservers.StartRedis(t), ttl, 200*time.Millisecond)
		for i := range 3 {
			grant := fmt.Sprintf("w1-%d.1", i+1)
			a := harness.Await("acquisition", func(e history.Event) bool { return e.Acquire != nil && e.Acquire.Grant == grant })
			if a.Worker != fmt.Sprintf("w1-%d", i+1) || a.Acquire.Token == 0 || a.Acquire.Until != 0 {
				t.Errorf("got acquisition %+v of worker %s", *a.Acquire, a.Worker)
			}
			harness.Await("end", isEndOf(grant))
			if e := harness.Await("exit", isExitOf(a.Worker)); e.Exited.How != "exit status 0" {
				t.Errorf("stile ended with %q, want exit status 0", e.Exited.How)
			}
		}
		p.signal(syscall.SIGTERM)
		p.awaitSuccess()
		if e := last(t, harness.History(), "w1"); e.Census == nil || e.Census.Phase != "end" {
			t.Errorf("got last event %+v", e)
		}
	})

	t.Run("terminated while waiting", func(t *testing.T) {
		t.Parallel()
		server := testservers.StartRedis(t)
		locks := workload.Locks(workload.Command, "t/")
		for _, lock := range locks {
			server.Do("SET", lock, "another client")
		}
		harness, p := startCommands(t, server, ttl, ttl)
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			keys, err := server.Do("DBSIZE").AsInt64()
			if err != nil || time.Since(began) > 3*time.Minute {
				t.Fatalf("no session was opened: %v", err)
			}
			if keys > int64(len(locks)) {
				break // there is a session: stile waits, or is about to
			}
		}
		p.signal(syscall.SIGTERM)
		p.awaitSuccess()
		e := harness.Await("failure", func(e history.Event) bool { return e.Acquire != nil }).Acquire
		if e.Outcome != history.Failed || !e.GaveUp || e.Err == "" {
			t.Errorf("got %+v, want a failure because it gave up", *e)
		}
	})

	// With this seed the first command would last for more than twice the HoldUnit.
	t.Run("stile is killed", func(t *testing.T) {
		t.Parallel()
		harness, _ := startCommands(t, testservers.StartRedis(t), ttl, ttl)
		a := harness.Await("acquisition", isAcquisition)
		if err := syscall.Kill(pid(harness, a.Worker), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		end := harness.Await("end", isEndOf(a.Acquire.Grant))
		if exit := harness.Await("exit", isExitOf(a.Worker)); exit.Exited.How != "signal: killed" {
			t.Errorf("stile ended with %q, want signal: killed", exit.Exited.How)
		}
		if end.Worker != "resource" { // the command has had no time to end by itself
			t.Errorf("the end was reported by %s, want resource", end.Worker)
		}
	})

	t.Run("stile is stopped for longer than the TTL", func(t *testing.T) {
		t.Parallel()
		const ttl = 5 * time.Second
		harness, _ := startCommands(t, testservers.StartRedis(t), ttl, time.Hour)
		a := harness.Await("acquisition", isAcquisition)
		stopped := pid(harness, a.Worker)
		// The watchdog is started a second after the command. Before that no process could end the
		// command.
		for began := time.Now(); !hasWatchdog(t, stopped); time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > 3*time.Minute {
				t.Fatal("stile has started no watchdog")
			}
		}
		if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer syscall.Kill(stopped, syscall.SIGCONT)
		harness.Await("end of a command that would run for hours", isEndOf(a.Acquire.Grant))
	})

	t.Run("the lock is lost", func(t *testing.T) {
		t.Parallel()
		server := testservers.StartRedis(t)
		harness, _ := startCommands(t, server, 20*time.Second, ttl) // the loss is noticed when the hold is extended
		a := harness.Await("acquisition", isAcquisition)
		server.Do("DEL", a.Acquire.Lock)
		harness.Await("end", isEndOf(a.Acquire.Grant))
		harness.Await("exit", isExitOf(a.Worker))
		harness.AwaitNext("acquisition", isAcquisition)
	})
}
