package examples_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

const queueScript = "deployqueue/queue.sh"

// deployment is the command of a job: it writes down that it has begun, and ends when it reads a line.
func deployment(s *site, job string) []string {
	return []string{"production", "sh", "-c", fmt.Sprintf("echo begin %s >>%[2]s/log; read end; echo end %[1]s >>%[2]s/log", job, s.dir)}
}

// Jobs are deployed one at a time, in the order in which they joined the queue, and each log says who is
// deploying and how many come before. A job that is canceled while it waits leaves the queue.
//
// Promise: P3
func TestDeployQueue(t *testing.T) {
	t.Parallel()
	const lock = "deploy/production"
	s := newSite(t)
	var jobs []*program
	for i := range 5 {
		name := fmt.Sprint(i + 1)
		s.env = append(s.env, "GITHUB_RUN_NUMBER="+name) // the last one counts
		jobs = append(jobs, s.start(queueScript, deployment(s, name)...))
		l := s.awaitLine(lock, 1, i) // the job is in the queue before the next one begins
		if all := append(l.Holders, l.Waiters...); all[i].Owner.Reason != "deploy run "+name {
			t.Errorf("got the reason %q of entry %d, want that of job %s", all[i].Owner.Reason, i, name)
		}
		if i > 0 {
			jobs[i].awaitText(`"deploy/production": held by `)
		}
	}
	jobs[1].awaitText("; next in line; ")
	jobs[4].awaitText("; 4 ahead; ")

	if err := jobs[2].Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	jobs[2].expectExit(128 + int(syscall.SIGINT))
	s.awaitLine(lock, 1, 3)

	var want strings.Builder
	for i, job := range jobs {
		if i == 2 {
			continue
		}
		fmt.Fprintf(&want, "begin %d\n", i+1)
		eventually(t, fmt.Sprintf("beginning of job %d", i+1), func() bool { return strings.Contains(s.read("log"), want.String()) })
		job.enter("")
		job.expectExit(0)
		fmt.Fprintf(&want, "end %d\n", i+1)
	}
	if got := s.read("log"); got != want.String() {
		t.Errorf("got the deployments\n%swant\n%s", got, want.String())
	}
}

// A job ends with the exit code of its deployment, and the next one begins.
func TestDeployQueue_goesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(queueScript, "production", "sh", "-c", "exit 3").expectExit(3)
	s.start(queueScript, "production", "true").expectExit(0)
}

// A deployment that is canceled is stopped, and the queue goes on.
func TestDeployQueue_cancel(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	job := s.start(queueScript, deployment(s, "1")...)
	eventually(t, "beginning of job 1", func() bool { return s.read("log") != "" })
	next := s.start(queueScript, deployment(s, "2")...)
	s.awaitLine("deploy/production", 1, 1)
	if err := job.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	job.expectExit(128 + int(syscall.SIGTERM))
	next.enter("")
	next.expectExit(0)
	if got, want := s.read("log"), "begin 1\nbegin 2\nend 2\n"; got != want {
		t.Errorf("got the deployments\n%swant\n%s", got, want)
	}
}

// The workflow runs the script as the tests do: the shell of the step is replaced by stile, which gets the signals.
func TestDeployQueue_workflow(t *testing.T) {
	t.Parallel()
	workflow, err := os.ReadFile("deployqueue/workflow.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(workflow), "- run: ")
	line, _, _ := strings.Cut(rest, "\n")
	if !strings.HasPrefix(line, "exec ./queue.sh production ") {
		t.Fatalf("the step does not run queue.sh: %q", line)
	}
	s := newSite(t)
	s.env = append(s.env, "GITHUB_SHA=5f3a91c")
	s.script("deploy.sh", `echo "deploying $1"; read end`)
	line = strings.NewReplacer("./queue.sh", queueScript, "./deploy.sh", "deploy.sh").Replace(line)
	step := s.start("bash", "-e", "-c", line)
	step.awaitText("deploying 5f3a91c\n")
	if err := step.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	step.expectExit(128 + int(syscall.SIGINT))
	s.awaitLine("deploy/production", 0, 0)
}
