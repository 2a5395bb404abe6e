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
}

// command runs `stile run` once, recorded as a worker of its own.
func (s *sequence) command(ctx context.Context) error {
	c := childConfig{Config: s.config, Lock: s.pickLock()}
	c.Worker = fmt.Sprintf("%s-%d", s.config.Worker, s.calls.Add(1))
	c.Grant = c.Worker + ".1"
	sender, err := history.Dial(c.Recorder, c.Worker)
	if err != nil {
		return err
	}
	a, err := runCommand(ctx, c, sender)
	if err != nil {
		return errors.Join(err, sender.Close())
	}
	if a != nil {
		sender.Send(history.Event{At: a.Return, Acquire: a})
		s.pause(ctx)
	}
	return sender.Close()
}

// runCommand runs `stile run`, and waits until it and all processes that it started have ended. If
// ctx ends, `stile run` gets SIGTERM. If the command never ran, runCommand returns the Acquire to
// record.
func runCommand(ctx context.Context, c childConfig, sender *history.Sender) (*history.Acquire, error) {
	runtime.LockOSThread() // Pdeathsig is sent when the thread that started the process ends
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(c.Stile, "run", "--quiet", "--url", c.Locker.URL, "--ttl", c.Locker.TTL.String(), c.Lock, "--", self, "child")
	// Both are read to their ends, which come only after every process that may write to them has
	// ended.
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}

	c.Call = history.Now()
	arg, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd.Args = append(cmd.Args, string(arg))
	sender.Send(history.Event{At: c.Call, Asked: &history.Asked{Lock: c.Lock, Grant: c.Grant}})
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	sender.Send(history.Event{Started: &history.Started{Pid: cmd.Process.Pid}})
	stopSignal := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stopSignal()
	_ = cmd.Wait() // ProcessState, below, has the exit status
	sender.Send(history.Event{Exited: &history.Exited{How: cmd.ProcessState.String()}})
	if stdout.Len() > 0 {
		return nil, nil
	}
	a := &history.Acquire{Lock: c.Lock, Grant: c.Grant, Call: c.Call, Return: history.Now(), Outcome: history.Failed}
	a.Err = fmt.Sprintf("%s: %s", cmd.ProcessState, strings.TrimSpace(stderr.String()))
	switch cmd.ProcessState.ExitCode() {
	case exitTerminated:
		a.GaveUp = ctx.Err() != nil
	case exitNotRun:
	default:
		a.Outcome = history.Unknown // `stile run` may have acquired the lock before it ended
	}
	return a, nil
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
	return r.Detach()
}

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
