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

// TestMain makes the test's own program the worker, where a test starts it.
func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const asWorker = "TORTURE_TEST_WORKER"

// A process is a worker that runs.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	said bytes.Buffer
}

func start(t *testing.T, c workload.Config, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...)}
	p.cmd.Env = append(os.Environ(), asWorker+"=1")
	p.cmd.Stderr = &p.said
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
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
	if err := json.NewEncoder(p.in).Encode(c); err != nil {
		t.Fatal(err)
	}
	return p
}

// endsInOrder waits for the end.
func (p *process) endsInOrder() {
	p.t.Helper()
	if err := p.cmd.Wait(); err != nil || p.said.Len() > 0 {
		p.t.Errorf("it ended with: %v, and said %q", err, p.said.String())
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// ttl is that of sessions that are not to be lost, on however busy a machine.
const ttl = time.Minute

func stileOn(server *testservers.Redis) locker.Config {
	return locker.Config{Kind: "stile", URL: "redis://" + server.Addr(), TTL: ttl}
}

func acquired(e history.Event) bool { return e.Acquire != nil && e.Acquire.Outcome == history.OK }

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

func TestAWorkerEndsInOrder(t *testing.T) {
	for how, end := range map[string]func(*process){
		"on SIGTERM":                        func(p *process) { p.signal(syscall.SIGTERM) },
		"when its standard input is closed": func(p *process) { p.in.Close() },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server, stage := testservers.StartRedis(t), workloadtest.New(t)
			p := start(t, stage.Config("w1", workload.Long, stileOn(server)))
			hold := stage.Await("acquisition", acquired).Acquire
			end(p)
			p.endsInOrder()
			h := stage.History()
			if e := last(t, h, "w1").Census; e == nil || e.Phase != "end" {
				t.Errorf("the last it said was %+v", last(t, h, "w1"))
			}
			for _, e := range h.Events {
				if e.End != nil && e.End.Grant == hold.Grant && e.End.Outcome == history.OK {
					return
				}
			}
			t.Error("what it held was not released")
		})
	}
}

func TestAWorkerLeaksNothing(t *testing.T) {
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
			leaksNothing(t, l)
		})
	}
}

func TestAWorkerOnZooKeeperLeaksNothing(t *testing.T) {
	t.Parallel()
	zk := testservers.StartZooKeeper(t)
	leaksNothing(t, locker.Config{Kind: "gozk", Addresses: []string{zk.Endpoint()}})
}

// leaksNothing makes workers take locks, and give them up in all ways there are.
func leaksNothing(t *testing.T, l locker.Config) {
	t.Helper()
	l.TTL = 5 * time.Second // who is abandoned is in the way for so long; that a session is lost does no harm
	for _, load := range []string{workload.Storm, workload.Churn} {
		t.Run(load, func(t *testing.T) {
			stage := workloadtest.New(t)
			p := start(t, stage.Config("w1", load, l))
			for range 10 {
				stage.AwaitNext("acquisition", acquired)
			}
			p.signal(syscall.SIGTERM)
			p.endsInOrder()
			var counts []history.Census
			for _, e := range stage.History().Events {
				if e.Census != nil {
					counts = append(counts, *e.Census)
				}
			}
			if len(counts) != 2 || counts[1].Goroutines > counts[0].Goroutines || counts[1].Descriptors > counts[0].Descriptors {
				t.Errorf("it counts %+v", counts)
			}
		})
	}
}

func TestAWorkerThatIsKilledHasSaidWhatItDid(t *testing.T) {
	t.Parallel()
	server, stage := testservers.StartRedis(t), workloadtest.New(t)
	c := stage.Config("w1", workload.Long, stileOn(server))
	c.Locker.TTL = 20 * time.Second // it extends its hold after a third of that
	p := start(t, c)
	hold := stage.Await("acquisition", acquired).Acquire
	write := stage.Await("write", func(e history.Event) bool { return e.Write != nil && e.Write.Mode == "audit" }).Write
	stage.Await("extension", func(e history.Event) bool { return e.Extend != nil })
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
	h := stage.History()
	if e := last(t, h, "w1"); e.Extend == nil || e.Extend.Grant != hold.Grant {
		t.Errorf("the last it said was %+v", e)
	}
	if write.Grant != hold.Grant || write.Token != hold.Token {
		t.Errorf("%+v was written under %+v", *write, *hold)
	}
	for _, e := range h.Events {
		if e.End != nil {
			t.Errorf("it did not live to say %+v", *e.End)
		}
	}
}

// The resource as a process, and a worker at it.
func TestTheResourceIsAProcess(t *testing.T) {
	t.Parallel()
	server, stage := testservers.StartRedis(t), workloadtest.New(t)
	c := stage.Config("resource", "", locker.Config{})
	c.Resource = filepath.Join(filepath.Dir(c.Resource), "another")
	p := start(t, c, "resource")
	conf := stage.Config("w1", workload.Hot, stileOn(server))
	conf.Resource = c.Resource
	w := start(t, conf)
	stage.Await("write", func(e history.Event) bool { return e.Write != nil && e.Worker == "resource" })
	w.signal(syscall.SIGTERM)
	w.endsInOrder()
	p.in.Close()
	p.endsInOrder()
}

func TestAWorkerWithoutAResourceFails(t *testing.T) {
	t.Parallel()
	server, stage := testservers.StartRedis(t), workloadtest.New(t)
	conf := stage.Config("w1", workload.Hot, stileOn(server))
	conf.Resource = filepath.Join(t.TempDir(), "none")
	p := start(t, conf)
	if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(p.said.String(), "resource") {
		t.Errorf("it ended with %v, and said %q", err, p.said.String())
	}
}

func TestWhatIsNotUnderstood(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"rescource"}, {"child"}, {"child", "{"}} {
		p := start(t, workload.Config{}, args...)
		if err := p.cmd.Wait(); p.cmd.ProcessState.ExitCode() != 1 || p.said.Len() == 0 {
			t.Errorf("%q: it ended with %v, and said %q", args, err, p.said.String())
		}
	}
}

// stile returns the path of the command, built from what is here.
func stile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stile")
	// As go build would, but what go run has linked is kept for the next time.
	build := exec.Command("go", "-C", "../../../cmd/stile", "run", "-exec", "cp", ".", path)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// hasWatchdog reports whether a stile has started the watchdog of its command. It has other children too, which live for a
// moment: to find out what the system can do.
func hasWatchdog(t *testing.T, stile int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", stile))
	if err != nil || len(threads) == 0 {
		t.Fatalf("process %d is not there: %v", stile, err)
	}
	for _, path := range threads {
		text, _ := os.ReadFile(path) // nothing, of a thread that has just ended
		for child := range strings.FieldsSeq(string(text)) {
			args, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if strings.HasPrefix(string(args), "stile\x00watchdog\x00") {
				return true
			}
		}
	}
	return false
}

// The real `stile run` runs commands.
func TestCommands(t *testing.T) {
	t.Parallel()
	path := stile(t)
	begin := func(t *testing.T, server *testservers.Redis, ttl, pace time.Duration) (*workloadtest.Harness, *process) {
		stage := workloadtest.New(t)
		c := stage.Config("w1", workload.Command, stileOn(server))
		c.Stile, c.Locker.TTL, c.HoldUnit = path, ttl, pace
		return stage, start(t, c)
	}
	ends := func(grant string) func(history.Event) bool {
		return func(e history.Event) bool { return e.End != nil && e.End.Grant == grant }
	}
	exits := func(worker string) func(history.Event) bool {
		return func(e history.Event) bool { return e.Exited != nil && e.Worker == worker }
	}
	pid := func(stage *workloadtest.Harness, worker string) int {
		return stage.Await("start of a command", func(e history.Event) bool {
			return e.Started != nil && e.Worker == worker
		}).Started.Pid
	}

	t.Run("one after the other, and end in order", func(t *testing.T) {
		t.Parallel()
		stage, p := begin(t, testservers.StartRedis(t), ttl, 200*time.Millisecond)
		for i := range 3 {
			grant := fmt.Sprintf("w1-%d.1", i+1)
			a := stage.Await("acquisition", func(e history.Event) bool { return e.Acquire != nil && e.Acquire.Grant == grant })
			if a.Worker != fmt.Sprintf("w1-%d", i+1) || a.Acquire.Token == 0 || a.Acquire.Until != 0 {
				t.Errorf("%s says %+v", a.Worker, *a.Acquire)
			}
			stage.Await("end", ends(grant))
			if e := stage.Await("exit", exits(a.Worker)); e.Exited.How != "exit status 0" {
				t.Errorf("it ended with %q", e.Exited.How)
			}
		}
		p.signal(syscall.SIGTERM)
		p.endsInOrder()
		if e := last(t, stage.History(), "w1"); e.Census == nil || e.Census.Phase != "end" {
			t.Errorf("the last it said was %+v", e)
		}
	})

	t.Run("waiting when it is to end", func(t *testing.T) {
		t.Parallel()
		server := testservers.StartRedis(t)
		locks := workload.Locks(workload.Command, "t/")
		for _, lock := range locks {
			server.Do("SET", lock, "somebody else")
		}
		stage, p := begin(t, server, ttl, ttl)
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			keys, err := server.Do("DBSIZE").AsInt64()
			if err != nil || time.Since(began) > 3*time.Minute {
				t.Fatalf("no session is opened: %v", err)
			}
			if keys > int64(len(locks)) {
				break // there is a session: it waits, or is about to
			}
		}
		p.signal(syscall.SIGTERM)
		p.endsInOrder()
		e := stage.Await("failure", func(e history.Event) bool { return e.Acquire != nil }).Acquire
		if e.Outcome != history.Failed || !e.GaveUp || e.Err == "" {
			t.Errorf("it is recorded as %+v", *e)
		}
	})

	// Left alone, the first command that the seed decides lasts for more than twice the pace.
	t.Run("stile is killed", func(t *testing.T) {
		t.Parallel()
		stage, _ := begin(t, testservers.StartRedis(t), ttl, ttl)
		a := stage.Await("acquisition", acquired)
		if err := syscall.Kill(pid(stage, a.Worker), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		end := stage.Await("end", ends(a.Acquire.Grant))
		if exit := stage.Await("exit", exits(a.Worker)); exit.Exited.How != "signal: killed" {
			t.Errorf("it ended with %q", exit.Exited.How)
		}
		if end.Worker != "resource" { // the command has had no time to end by itself
			t.Errorf("%s says when the command ended", end.Worker)
		}
	})

	t.Run("stile is stopped for longer than the TTL", func(t *testing.T) {
		t.Parallel()
		const ttl = 5 * time.Second
		stage, _ := begin(t, testservers.StartRedis(t), ttl, time.Hour)
		a := stage.Await("acquisition", acquired)
		stopped := pid(stage, a.Worker)
		// Its watchdog comes a second after the command: before that nobody is there who could end the command.
		for began := time.Now(); !hasWatchdog(t, stopped); time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > 3*time.Minute {
				t.Fatal("it has no watchdog")
			}
		}
		if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer syscall.Kill(stopped, syscall.SIGCONT)
		stage.Await("end of the command, which has hours left", ends(a.Acquire.Grant))
	})

	t.Run("the lock is lost", func(t *testing.T) {
		t.Parallel()
		server := testservers.StartRedis(t)
		stage, _ := begin(t, server, 20*time.Second, ttl) // it finds out when it extends its hold
		a := stage.Await("acquisition", acquired)
		server.Do("DEL", a.Acquire.Lock)
		stage.Await("end", ends(a.Acquire.Grant))
		stage.Await("exit", exits(a.Worker))
		stage.AwaitNext("acquisition", acquired)
	})
}
