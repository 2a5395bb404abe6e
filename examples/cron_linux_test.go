package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hosts is how many hosts call the job at the same time.
const hosts = 10

// crontabCommand returns the command of the crontab.
func crontabCommand(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("cron/crontab")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 6 && fields[0] == "0" && fields[5] == "report" {
			return strings.Join(fields[6:], " ")
		}
	}
	t.Fatal("cron/crontab has no job")
	return ""
}

// unitCommand returns the command of the systemd service.
func unitCommand(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("cron/nightly-report.service")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\nExecStart=")
	if !ok {
		t.Fatal("cron/nightly-report.service has no ExecStart")
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.ReplaceAll(line, "/usr/local/bin/", "") // they are in the PATH here
}

// cronSite returns a site whose job writes down that it runs, and ends when it reads a line, with that exit code.
func cronSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	// The session must survive any delay of a busy machine.
	s.script("stile", fmt.Sprintf(`verb=$1; shift; exec %s/stile "$verb" --ttl 60 "$@"`, bin))
	s.script("nightly-report", fmt.Sprintf(`echo ran >>%s/log; read code; exit $code`, s.dir))
	return s
}

// callOnAllHosts runs the command on all hosts. When one of them runs the job and the others wait, the
// job ends with the exit code, and then all calls end with it.
func (s *site) callOnAllHosts(command string, exitCode int) {
	s.t.Helper()
	stdin, write, err := os.Pipe() // the host that runs the job reads from it
	if err != nil {
		s.t.Fatal(err)
	}
	defer stdin.Close()
	defer write.Close()
	var calls []*program
	for range hosts {
		calls = append(calls, s.startWith(stdin, write, "sh", "-c", command))
	}
	s.awaitLine("nightly-report", 1, hosts-1)
	calls[0].enter(fmt.Sprint(exitCode))
	for _, c := range calls {
		c.expectExit(exitCode)
	}
}

func (s *site) expectRuns(n int) {
	s.t.Helper()
	if got := strings.Count(s.read("log"), "ran\n"); got != n {
		s.t.Errorf("the job ran %d times, want %d", got, n)
	}
}

// Ten hosts call the job at the same time, and one runs it. A call that comes later finds that it has succeeded. After a
// failure, which all hosts report, the next call runs it again.
func TestCron(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{"crontab": crontabCommand(t), "systemd": unitCommand(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cronSite(t)
			s.callOnAllHosts(command, 3)
			s.expectRuns(1)
			s.callOnAllHosts(command, 0)
			s.expectRuns(2)
			s.start("sh", "-c", command).expectExit(0)
			s.expectRuns(2)
		})
	}
}

func TestCron_unitsAreValid(t *testing.T) {
	t.Parallel()
	require(t, "systemd-analyze")
	s := newSite(t)
	s.script("nightly-report", "")
	programs := strings.NewReplacer("/usr/local/bin/stile", filepath.Join(bin, "stile"), "/usr/local/bin/nightly-report", s.path("bin", "nightly-report"))
	var files []string
	for _, name := range []string{"nightly-report.service", "nightly-report.timer"} {
		text, err := os.ReadFile(filepath.Join("cron", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path(name), []byte(programs.Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, s.path(name))
	}
	verify := exec.Command("systemd-analyze", append([]string{"verify"}, files...)...)
	if out, err := verify.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
}
