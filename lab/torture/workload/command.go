package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/resource"
)

// childConfig is the last argument of a command that runs under `stile run`, as JSON.
type childConfig struct {
	Config
	Lock  string `json:"lock"`
	Grant string `json:"grant"`
	// Call is the time at which `stile run` was started.
	Call int64 `json:"call"`
	// Fails makes the command fail at its end.
	Fails bool `json:"fails,omitempty"`
}

// command runs `stile run` once, recorded as a worker of its own.
func (s *sequence) command(ctx context.Context) error {
	return s.runStile(ctx, childConfig{Config: s.config, Lock: s.pickLock()}, []string{"run", "--quiet"}, nil)
}

// runStile runs `stile` with the arguments, a name and a command, recorded as a worker of its own. c
// has the configuration and the lock. after, if not nil, is called when it has ended.
func (s *sequence) runStile(ctx context.Context, c childConfig, args []string, after func(childConfig, stileRun, *history.Sender)) error {
	c.Worker = fmt.Sprintf("%s-%d", s.config.Worker, s.calls.Add(1))
	c.Grant = c.Worker + ".1"
	sender, err := history.Dial(c.Recorder, c.Worker)
	if err != nil {
		return err
	}
	run, err := runCommand(ctx, &c, args, sender)
	if err != nil {
		return errors.Join(err, sender.Close())
	}
	if after != nil {
		after(c, run, sender)
	}
	if !run.ran {
		a := run.failedAcquire(c)
		a.GaveUp = a.GaveUp || run.code == exitTerminated && ctx.Err() != nil
		sender.Send(history.Event{At: a.Return, Acquire: a})
		s.pause(ctx)
	}
	return sender.Close()
}

// A stileRun is a process of `stile` that has ended, and all processes that it started.
type stileRun struct {
	ran    bool // its command
	code   int
	status string
	stderr string
}

// failedAcquire returns the Acquire to record if the command never ran.
func (r *stileRun) failedAcquire(c childConfig) *history.Acquire {
	a := &history.Acquire{Lock: c.Lock, Grant: c.Grant, Call: c.Call, Return: history.Now(), Outcome: history.Failed}
	a.Err = fmt.Sprintf("%s: %s", r.status, r.stderr)
	switch {
	case r.code == exitTerminated || r.code == exitNotRun:
	case c.Workload == Once && r.code >= 0: // skipped, or the result of another call
		a.GaveUp = true
	default:
		a.Outcome = history.Unknown // `stile` may have acquired the lock before it ended
	}
	return a
}

// runCommand runs `stile` and waits until it and all processes that it started have ended. If ctx ends,
// `stile` gets SIGTERM. It sets the Call of c.
func runCommand(ctx context.Context, c *childConfig, args []string, sender *history.Sender) (r stileRun, err error) {
	runtime.LockOSThread() // Pdeathsig is sent when the thread that started the process ends
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	c.Call = history.Now()
	arg, err := json.Marshal(c)
	if err != nil {
		return r, err
	}
	var stdout, stderr bytes.Buffer
	args = append(args, "--url", c.Locker.URL, "--ttl", c.Locker.TTL.String(), c.Lock, "--", self, "child", string(arg))
	cmd := exec.Command(c.Stile, args...)
	// Both are read to their ends, which come only after every process that may write to them has
	// ended.
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	sender.Send(history.Event{At: c.Call, Asked: &history.Asked{Lock: c.Lock, Grant: c.Grant}})
	if err := cmd.Start(); err != nil {
		return r, err
	}
	sender.Send(history.Event{Started: &history.Started{Pid: cmd.Process.Pid}})
	stopSignal := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stopSignal()
	_ = cmd.Wait() // ProcessState, below, has the exit status
	sender.Send(history.Event{Exited: &history.Exited{How: cmd.ProcessState.String()}})
	return stileRun{
		ran: stdout.Len() > 0, code: cmd.ProcessState.ExitCode(), status: cmd.ProcessState.String(), stderr: strings.TrimSpace(stderr.String()),
	}, nil
}

// The exit statuses of `stile run` that mean that the command was not run.
const (
	exitNotRun     = 125
	exitTerminated = 128 + int(syscall.SIGTERM)
)

// RunChild is the command that runs under `stile run` in the workload Command. arg is its last
// argument. It writes a line to stdout as a sign that it runs. It assumes that it holds the lock
// from its start to its end. ctx ends when `stile run`, or any other process, sends SIGTERM; some
// children ignore that and have to be killed.
func RunChild(ctx context.Context, arg string, stdout *os.File) (err error) {
	began := history.Now()
	var c childConfig
	if err := json.Unmarshal([]byte(arg), &c); err != nil {
		return fmt.Errorf("invalid argument of the command: %w", err)
	}
	if _, err := fmt.Fprintln(stdout, "began"); err != nil {
		return err
	}
	token, err := strconv.ParseUint(os.Getenv("STILE_TOKEN"), 10, 64)
	if err != nil {
		return fmt.Errorf("STILE_TOKEN: %w", err)
	}
	sender, err := history.Dial(c.Recorder, c.Worker)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sender.Close()) }()
	r, err := resource.Dial(context.WithoutCancel(ctx), c.Resource)
	if err != nil {
		return err
	}
	defer r.Close()
	// This comes first, so that the End is recorded whenever the command is killed.
	if err := r.Attach(c.Grant); err != nil {
		return err
	}
	w := &worker{config: c.Config, sender: sender, resource: r}
	s := &sequence{worker: w, rng: w.newRand(0)}
	if err := s.workAsCommand(ctx, c, began, token); err != nil {
		return err
	}
	if err := r.Detach(); err != nil || !c.Fails {
		return err
	}
	return errOnPurpose
}

// errOnPurpose is the error of a command that fails on purpose.
var errOnPurpose = errors.New("the command failed on purpose")

// workAsCommand is the work of the command. It takes up to half a TTL or, in one of four cases, two
// to three TTLs, which is longer than an unrenewed lock is held.
func (s *sequence) workAsCommand(ctx context.Context, c childConfig, began int64, token uint64) error {
	t := s.startHold(&history.Acquire{
		Lock: c.Lock, Grant: c.Grant, Call: c.Call, Return: began, Outcome: history.OK,
	}, commandHold(token))
	if s.rng.IntN(4) == 0 {
		ctx = context.WithoutCancel(ctx)
	}
	unit := s.config.holdUnit()
	duration := s.randomUpTo(unit / 2)
	if s.rng.IntN(4) == 0 {
		duration = 2*unit + s.randomUpTo(unit)
	}
	err := t.work(ctx, 1, duration)
	e := t.finish()
	t.say(history.Event{At: e.Call, End: &e})
	return err
}

// commandHold is the hold of a command, which knows only its token.
type commandHold uint64

func (h commandHold) Token() uint64                 { return uint64(h) }
func (h commandHold) Until() int64                  { return 0 }
func (h commandHold) Valid() bool                   { return true }
func (h commandHold) Lost() <-chan struct{}         { return nil }
func (h commandHold) Why() string                   { return "" }
func (h commandHold) Release(context.Context) error { return nil }
