//go:build unix

// Command startupbench measures what it takes to run a command under a lock of the local server, beside what flock(1)
// takes. It prints a table for docs/performance.md.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	stile := flag.String("stile", "", "the `program` to measure")
	rounds := flag.Int("rounds", 100, "how often to run each command")
	flag.Parse()
	if err := run(*stile, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "startupbench:", err)
		os.Exit(1)
	}
}

func run(stile string, rounds int) error {
	stile, err := filepath.Abs(stile)
	if err != nil {
		return err
	}
	a, err := newAccount()
	if err != nil {
		return err
	}
	defer a.remove()
	commands := []*command{
		{name: "`true`", argv: []string{"true"}},
		{name: "`flock x true`", argv: []string{"flock", a.path("x"), "true"}},
		{name: "`stile version`", argv: []string{stile, "version"}},
		{
			name: "`stile run x -- true`, the local server runs",
			argv: []string{stile, "run", "x", "--", "true"},
		},
		{
			name:    "the same, the server has ended",
			argv:    []string{stile, "run", "x", "--", "true"},
			prepare: a.endServer,
		},
		{
			name:    "the same, for the first time in this account",
			argv:    []string{stile, "run", "x", "--", "true"},
			prepare: a.forget,
		},
	}
	for round := range rounds + 1 {
		for i := range commands {
			c := commands[(round+i)%len(commands)] // so that none always comes after the same one
			if err := c.measure(a, round > 0); err != nil {
				return err
			}
		}
	}
	report(commands, rounds)
	return nil
}

// account is a user's account where stile is used for the first time.
type account struct{ dir string }

func newAccount() (account, error) {
	dir, err := os.MkdirTemp("", "stile-bench") // short enough for a socket in it
	if err != nil {
		return account{}, err
	}
	a := account{dir}
	return a, os.Mkdir(a.path("run"), 0o700)
}

func (a account) path(elem ...string) string {
	return filepath.Join(append([]string{a.dir}, elem...)...)
}

func (a account) home() string { return a.path("state", "stile", "local") }

func (a account) environment() []string {
	return append(os.Environ(), "XDG_STATE_HOME="+a.path("state"), "XDG_RUNTIME_DIR="+a.path("run"), "STILE_URL=")
}

// endServer ends the local server, if it runs, and returns when nobody listens any more.
func (a account) endServer() error {
	said, err := os.ReadFile(filepath.Join(a.home(), "pid"))
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(said)))
	if err != nil {
		return err
	}
	for a.isListening() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (a account) isListening() bool {
	conn, err := net.Dial("unix", filepath.Join(a.home(), "socket"))
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// forget ends the local server and removes all that it keeps.
func (a account) forget() error {
	if err := a.endServer(); err != nil {
		return err
	}
	return os.RemoveAll(a.path("state"))
}

func (a account) remove() {
	_ = a.endServer()
	_ = os.RemoveAll(a.dir)
}

// command is what is measured.
type command struct {
	name    string
	argv    []string
	prepare func() error // before each time; may be nil
	took    []time.Duration
}

func (c *command) measure(a account, counts bool) error {
	if c.prepare != nil {
		if err := c.prepare(); err != nil {
			return err
		}
	}
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Env, cmd.Stderr = a.environment(), os.Stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		return fmt.Errorf("%v: %w", c.argv, err)
	}
	if counts {
		c.took = append(c.took, took)
	}
	return nil
}

func report(commands []*command, rounds int) {
	fmt.Printf("* Date: %s\n", time.Now().UTC().Format("2006-01-02 15:04 MST"))
	fmt.Printf("* %s, %s/%s, %d CPUs (%s), load at the end %s\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor(), load())
	fmt.Printf("* `make bench-startup`: %d rounds, the commands in turns, in rotating order\n\n", rounds)
	fmt.Println("| command | median | 90 % are below | fastest |")
	fmt.Println("|---|---|---|---|")
	for _, c := range commands {
		slices.Sort(c.took)
		fmt.Printf("| %s | %s | %s | %s |\n", c.name, ms(c.took[len(c.took)/2]), ms(c.took[len(c.took)*9/10]), ms(c.took[0]))
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1e3) }

// load is how busy the machine is: what else runs makes everything slower.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, " \t:\n")
		}
	}
	return "unknown"
}
