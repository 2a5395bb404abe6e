package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile"
)

// opening is the start time of the tests' demos.
var opening = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// tested is a play without processes. shown returns its output.
type tested struct {
	*play
	t     *testing.T
	shown func() string
}

// testPlay returns a play with workers whose process ids are 101, 102, …
func testPlay(t *testing.T, c Config) tested {
	t.Helper()
	var err error
	if c.Out, err = os.Create(filepath.Join(t.TempDir(), "screen")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Out.Close() })
	p := newPlay(c, job{})
	p.started = opening
	for i := range p.parts {
		p.parts[i].pid = 101 + i
	}
	return tested{p, t, func() string {
		text, err := os.ReadFile(c.Out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}}
}

// reports delivers a report of worker i, and returns whether the worker is to be killed.
func (p tested) reports(i int, e event, added int) bool {
	p.t.Helper()
	kill, err := p.handleReport(i, report{Event: e, Added: added}, opening)
	if err != nil {
		p.t.Fatal(err)
	}
	return kill
}

// kills marks worker i as killed at that time.
func (p tested) kills(i int, at time.Duration) {
	p.parts[i].last, p.killedAt = killed, opening.Add(at)
}

// lineOf returns a line of the processes with these ids; the first holds the lock.
func lineOf(pids ...int) stile.Line {
	var l stile.Line
	for i, pid := range pids {
		e := stile.Entry{Token: uint64(i+1) << 11, Owner: stile.Owner{PID: pid}}
		if i == 0 {
			l.Holders = append(l.Holders, e)
		} else {
			l.Waiters = append(l.Waiters, e)
		}
	}
	return l
}

func TestAcknowledged(t *testing.T) {
	t.Parallel()
	p := testPlay(t, Config{Workers: 3, Add: 10})
	p.reports(0, done, 10)
	p.reports(1, lost, 4)
	p.reports(1, halfway, 5)
	p.kills(1, 0)
	p.reports(1, done, 10) // sent before the kill, received after: must be ignored
	p.reports(2, done, 10)
	if n := p.acknowledged(); n != 25 {
		t.Errorf("acknowledged = %d, want 25, with the killed worker's part", n)
	}
}

// A worker is left after the kill to show when the lock is free again.
func TestHandleReport_killsOneInTheMiddle(t *testing.T) {
	t.Parallel()
	for workers := 2; workers <= maxWorkers; workers++ {
		p := testPlay(t, Config{Workers: workers, Add: 100})
		var killed []int
		for i := range workers {
			if p.reports(i, halfway, 50) {
				killed = append(killed, i)
			}
		}
		if len(killed) != 1 || killed[0] == workers-1 {
			t.Errorf("%d workers: killed %v, want one, and not the last", workers, killed)
		}
	}
}

func TestExited(t *testing.T) {
	t.Parallel()
	p := testPlay(t, Config{Workers: 3, Add: 10})
	p.reports(0, done, 10)
	if err := p.exited(0, nil, ""); err != nil {
		t.Errorf("a worker that was done: got %v, want no error", err)
	}
	p.kills(1, 0)
	if err := p.exited(1, errors.New("signal: killed"), ""); err != nil {
		t.Errorf("the killed worker: got %v, want no error", err)
	}
	p.reports(2, adding, 4)
	for stderr, want := range map[string]string{"": "signal: killed", "stile: no store\nmore": "no store"} {
		err := p.exited(2, errors.New("signal: killed"), stderr)
		if want = "worker 3 (pid 103) failed after acknowledging 4: " + want; err == nil || err.Error() != want {
			t.Errorf("another worker: got %v, want %s", err, want)
		}
	}
	if err := p.exited(2, nil, ""); err == nil {
		t.Error("a worker that ended too early: got no error")
	}
}

// The table shows holders and waiters as the store has them, not as the workers report them.
func TestPlace_fromStore(t *testing.T) {
	t.Parallel()
	p := testPlay(t, Config{Workers: 4, Add: 10})
	for i := range p.parts {
		p.reports(i, waiting, 0)
	}
	p.reports(1, adding, 0)
	places := func() string {
		var all []string
		for i := range p.parts {
			all = append(all, p.place(i))
		}
		return strings.Join(all, ", ")
	}
	if got, want := places(), "joins, adds, joins, joins"; got != want {
		t.Errorf("before the first reading: got %s, want %s", got, want)
	}
	lineTextOf := func(l stile.Line, err error) string {
		before := len(p.shown())
		if err := p.handleLine(l, err, opening); err != nil {
			t.Fatal(err)
		}
		return strings.TrimPrefix(strings.TrimSpace(p.shown()[before:]), "0.000  line       ")
	}
	line := lineOf(102, 104, 101)
	if got, want := lineTextOf(line, nil), "worker 2 holds the lock, token 2048; waiting: 4 1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := places(), "waits #2, holds, joins, waits #1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if again := lineTextOf(line, nil); again != "" {
		t.Errorf("the same reading again: got %q, want no output", again)
	}
	p.kills(1, 0)
	if got, want := lineTextOf(line, nil), "worker 2, which is dead, holds the lock, token 2048; waiting: 4 1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := places(), "waits #2, killed, holds, joins, waits #1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, c := range []struct {
		line stile.Line
		err  error
		want string
	}{
		{lineOf(104, 999), nil, "worker 4 holds the lock, token 2048; waiting: another client"},
		{stile.Line{}, errors.New("no store"), "the line cannot be read: no store"},
		{stile.Line{}, nil, "nobody holds the lock"},
	} {
		if got := lineTextOf(c.line, c.err); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestConfig_check(t *testing.T) {
	t.Parallel()
	good := Config{Workers: 2, Add: 1, URL: "local:"}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for flag, bad := range map[string]func(*Config){
		"--workers 1":                  func(c *Config) { c.Workers = 1 },
		"--workers 21":                 func(c *Config) { c.Workers = maxWorkers + 1 },
		"--add 0":                      func(c *Config) { c.Add = 0 },
		fmt.Sprint("--add ", maxAdd+1): func(c *Config) { c.Add = maxAdd + 1 },
		"--url mem:":                   func(c *Config) { c.URL = "mem:" },
	} {
		c := good
		bad(&c)
		if err := c.check(); err == nil || !strings.HasPrefix(err.Error(), flag) {
			t.Errorf("%s: got %v, want an error that begins with the flag", flag, err)
		}
	}
}
