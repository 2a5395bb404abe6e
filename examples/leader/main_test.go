package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/rueidis"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store/redisstore"
)

// testTimeout limits the wait for anything that should happen, on however busy a machine.
const testTimeout = 4 * time.Minute

// TestMain is the program itself in the processes that the test starts.
func TestMain(m *testing.M) {
	if os.Getenv("STILE_EXAMPLE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %v: %s", testTimeout, what)
		}
	}
}

// processes are some that run the program. All write to one file, so their lines are in the order in which they
// were written.
type processes struct {
	t       *testing.T
	output  string
	running map[int]*exec.Cmd // by process id
	client  *stile.Client
	tasks   *asynq.Inspector
}

func startProcesses(t *testing.T, n int) *processes {
	t.Helper()
	addr := testservers.StartRedis(t).Addr()
	p := &processes{t: t, output: filepath.Join(t.TempDir(), "output"), running: map[int]*exec.Cmd{}}

	options := redisstore.ClientOptions()
	options.InitAddress = []string{addr}
	conn, err := rueidis.NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	store, err := redisstore.New(conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.client, err = stile.New(store, nil); err != nil {
		t.Fatal(err)
	}
	p.tasks = asynq.NewInspector(asynq.RedisClientOpt{Addr: addr})
	t.Cleanup(func() { p.tasks.Close() })

	output, err := os.OpenFile(p.output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	for range n {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "STILE_EXAMPLE=leader", "REDIS_ADDR="+addr)
		c.Stdout, c.Stderr = output, os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		p.running[c.Process.Pid] = c
	}
	return p
}

// lines returns the lines of the output that begin with a text, without it.
func (p *processes) lines(prefix string) (rest []string) {
	p.t.Helper()
	text, err := os.ReadFile(p.output)
	if err != nil {
		p.t.Fatal(err)
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for line := range strings.Lines(string(text)) {
		if after, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), prefix); ok {
			rest = append(rest, after)
		}
	}
	return rest
}

// awaitLeader waits until one process leads, all others wait to lead, and two tasks of the leader have been worked
// on. It returns the leader's token and process.
func (p *processes) awaitLeader(not string) (token string, process *exec.Cmd) {
	p.t.Helper()
	eventually(p.t, "one leader, and candidates", func() bool {
		l, err := p.client.Line(p.t.Context(), "scheduler")
		if err != nil {
			p.t.Fatal(err)
		}
		if len(l.Holders) != 1 || len(l.Waiters) != len(p.running)-1 {
			return false
		}
		token, process = fmt.Sprint(l.Holders[0].Token), p.running[l.Holders[0].Owner.PID]
		return token != not && process != nil
	})
	eventually(p.t, "tasks of leader "+token, func() bool { return p.reports(token) >= 2 })
	return token, process
}

// reports returns how many tasks of a leader have been worked on.
func (p *processes) reports(token string) (n int) {
	p.t.Helper()
	for _, t := range p.lines("working on a report of leader ") {
		if t == token {
			n++
		}
	}
	return n
}

// awaitNoTasks waits until none of the tasks of a leader is pending or being worked on.
func (p *processes) awaitNoTasks(token string) {
	p.t.Helper()
	eventually(p.t, "end of the tasks of leader "+token, func() bool {
		pending, err := p.tasks.ListPendingTasks("default")
		if err != nil {
			p.t.Fatal(err)
		}
		active, err := p.tasks.ListActiveTasks("default")
		if err != nil {
			p.t.Fatal(err)
		}
		return !slices.ContainsFunc(append(pending, active...), func(i *asynq.TaskInfo) bool { return string(i.Payload) == token })
	})
}

// expectNoMore checks that a former leader has stopped: its tasks do not increase while those of the leader do.
func (p *processes) expectNoMore(former, leader string) {
	p.t.Helper()
	eventually(p.t, "end of the scheduler of leader "+former, func() bool {
		return slices.Contains(p.lines("stopped scheduling with token "), former)
	})
	p.awaitNoTasks(former)
	before, so := p.reports(former), p.reports(leader)
	eventually(p.t, "further tasks of leader "+leader, func() bool { return p.reports(leader) >= so+2 })
	if after := p.reports(former); after != before {
		p.t.Errorf("leader %s has made %d tasks after its end", former, after-before)
	}
}

// Of three processes only the leader schedules. When its leadership is lost it stops, and takes part in the election
// again; when it ends, the next one leads.
func TestLeader_schedulesAlone(t *testing.T) {
	p := startProcesses(t, 3)
	first, _ := p.awaitLeader("")
	if got := p.lines("leading with token "); !slices.Equal(got, []string{first}) {
		t.Errorf("got leaders %v, want only %s", got, first)
	}

	leader, err := p.client.Election("scheduler").Leader(t.Context())
	if err != nil || leader == nil {
		t.Fatalf("got leader %v, %v", leader, err)
	}
	if _, err := p.client.Break(t.Context(), "scheduler", leader.Token); err != nil {
		t.Fatal(err)
	}
	second, process := p.awaitLeader(first)
	p.expectNoMore(first, second)

	delete(p.running, process.Process.Pid)
	if err := process.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(); err != nil {
		t.Errorf("the leader after SIGINT: %v", err)
	}
	third, _ := p.awaitLeader(second)
	p.expectNoMore(second, third)

	// A leader that resigns has stopped before the next one begins.
	all := p.lines("")
	if end, begin := slices.Index(all, "stopped scheduling with token "+second), slices.Index(all, "leading with token "+third); begin < end {
		t.Errorf("leader %s began before leader %s had stopped:\n%s", third, second, strings.Join(all, "\n"))
	}
}
