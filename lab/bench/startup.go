package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// measureStartup measures how long it takes to run a command under a lock of the local server,
// compared with flock(1). Each round runs each command once; there are twenty rounds for each of
// c.rounds.
func measureStartup(ctx context.Context, c config) (*report, error) {
	stile, err := filepath.Abs(c.stile)
	if err != nil {
		return nil, err
	}
	lean, err := filepath.Abs(c.lean)
	if err != nil {
		return nil, err
	}
	a, err := newAccount()
	if err != nil {
		return nil, err
	}
	defer a.remove()
	run := []string{stile, "run", "x", "--", "true"}
	flock := &command{name: "`flock x true`", argv: []string{"flock", a.path("x"), "true"}}
	commands := []*command{
		{name: "`true`", argv: []string{"true"}},
		flock,
		{name: "`stile version`", argv: []string{stile, "version"}},
		{name: "`stile run x -- true`, the local server runs", argv: run},
		{name: "`stile version`, built without the server", argv: []string{lean, "version"}},
		{name: "`stile run x -- true`, built without the server", argv: append([]string{lean}, run[1:]...)},
		{name: "`stile run x -- true`, the server has ended", argv: run, prepare: a.killServer},
		{name: "the same, for the first time in this account", argv: run, prepare: a.reset},
	}
	for round := range 20*c.rounds + 1 {
		for i := range commands {
			c := commands[(round+i)%len(commands)] // the order rotates, so every command follows a different one
			if err := c.measure(ctx, a, round > 0); err != nil {
				return nil, err
			}
		}
	}
	r := &report{About: []string{fmt.Sprintf("%s: each command %d times, in turns, in rotating order", runtime.Version(), 20*c.rounds)}}
	for _, c := range commands {
		r.Startup = append(r.Startup, startupRow{
			c.name, quantile(c.took, 0.5), quantile(c.took, 0.9), quantile(c.took, 0),
			quantile(c.took, 0.5).Seconds() / quantile(flock.took, 0.5).Seconds(),
		})
	}
	return r, nil
}

// startupRow has the durations of one command.
type startupRow struct {
	Command              string
	Median, P90, Fastest time.Duration
	Flocks               float64 // the median, divided by that of flock
}

func startupTable(t *strings.Builder, rows []startupRow) {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1e3) }
	cells := [][]string{{"command", "median", "90 % are below", "fastest", "median / flock's"}}
	for _, r := range rows {
		cells = append(cells, []string{r.Command, ms(r.Median), ms(r.P90), ms(r.Fastest), fmt.Sprintf("%.1f", r.Flocks)})
	}
	table(t, cells)
}

// account is the home of a user who has never run stile.
type account struct{ dir string }

func newAccount() (account, error) {
	dir, err := os.MkdirTemp("", "stile-bench") // a short path, because sockets in it have a length limit
	if err != nil {
		return account{}, err
	}
	a := account{dir}
	return a, os.Mkdir(a.path("run"), 0o700)
}

func (a account) path(elem ...string) string {
	return filepath.Join(append([]string{a.dir}, elem...)...)
}

func (a account) serverDir() string { return a.path("state", "stile", "local") }

func (a account) environment() []string {
	return append(os.Environ(), "XDG_STATE_HOME="+a.path("state"), "XDG_RUNTIME_DIR="+a.path("run"), "STILE_URL=")
}

// killServer kills the local server, if it runs, and returns when its socket accepts no
// connections.
func (a account) killServer() error {
	text, err := os.ReadFile(filepath.Join(a.serverDir(), "pid"))
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	for a.isListening() {
		_ = p.Kill()
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (a account) isListening() bool {
	conn, err := net.Dial("unix", filepath.Join(a.serverDir(), "socket"))
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// reset kills the local server and removes its data.
func (a account) reset() error {
	if err := a.killServer(); err != nil {
		return err
	}
	return os.RemoveAll(a.path("state"))
}

func (a account) remove() {
	_ = a.killServer()
	_ = os.RemoveAll(a.dir)
}

// command is a command to measure.
type command struct {
	name    string
	argv    []string
	prepare func() error // called before each run; may be nil
	took    []time.Duration
}

func (c *command) measure(ctx context.Context, a account, record bool) error {
	if c.prepare != nil {
		if err := c.prepare(); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Env, cmd.Stderr = a.environment(), os.Stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		return fmt.Errorf("%v: %w", c.argv, err)
	}
	if record {
		c.took = append(c.took, took)
	}
	return nil
}
