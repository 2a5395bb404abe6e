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

// child is what a command that runs under `stile run` is told, as its last argument.
type child struct {
	Config
	Lock  string `json:"lock"`
	Grant string `json:"grant"`
	// Call is when `stile run` was started.
	Call int64 `json:"call"`
}

// command: one run of `stile run`, as a worker of its own.
func (s *strand) command(ctx context.Context) error {
	c := child{Config: s.config, Lock: s.any()}
	c.Worker = fmt.Sprintf("%s-%d", s.config.Worker, s.calls.Add(1))
	c.Grant = c.Worker + ".1"
	voice, err := history.Speak(c.Recorder, c.Worker)
	if err != nil {
		return err
	}
	a, err := runCommand(ctx, c, voice)
	if err != nil {
		return errors.Join(err, voice.Close())
	}
	if a != nil {
		voice.Say(history.Event{At: a.Return, Acquire: a})
		s.pause(ctx)
	}
	return voice.Close()
}

// runCommand runs `stile run` until it and all it has started are gone; if ctx ends it gets SIGTERM. If the command never
// ran it returns what is to be recorded of that.
func runCommand(ctx context.Context, c child, voice *history.Voice) (*history.Acquire, error) {
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var said, complaints bytes.Buffer
	cmd := exec.Command(c.Stile, "run", "--quiet", "--url", c.Locker.URL, "--ttl", c.Locker.TTL.String(), c.Lock, "--", self, "child")
	cmd.Stdout, cmd.Stderr = &said, &complaints // read to their ends, which come when everything has ended that writes to them
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}

	c.Call = history.Now()
	told, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd.Args = append(cmd.Args, string(told))
	voice.Say(history.Event{At: c.Call, Asked: &history.Asked{Lock: c.Lock, Grant: c.Grant}})
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	voice.Say(history.Event{Started: &history.Started{Pid: cmd.Process.Pid}})
	ended := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer ended()
	_ = cmd.Wait() // the state says more
	voice.Say(history.Event{Exited: &history.Exited{How: cmd.ProcessState.String()}})
	if said.Len() > 0 {
		return nil, nil
	}
	a := &history.Acquire{Lock: c.Lock, Grant: c.Grant, Call: c.Call, Return: history.Now(), Outcome: history.Failed}
	a.Err = fmt.Sprintf("%s: %s", cmd.ProcessState, strings.TrimSpace(complaints.String()))
	switch cmd.ProcessState.ExitCode() {
	case exitTerminated:
		a.GaveUp = ctx.Err() != nil
	case exitFailed:
	default:
		a.Outcome = history.Unknown // it may have been about to run the command
	}
	return a, nil
}

// The exit codes of `stile run` that say that the command was not run.
const (
	exitFailed     = 125
	exitTerminated = 128 + int(syscall.SIGTERM)
)

// RunChild is the command that runs under `stile run` in the workload Command; arg is its last argument, and stdout where it
// says that it runs. It holds the lock, as far as it can know, from its start to its end. ctx ends when it is told to
// end, by `stile run` or by anybody; some do not mind, and have to be killed.
func RunChild(ctx context.Context, arg string, stdout *os.File) (err error) {
	began := history.Now()
	var c child
	if err := json.Unmarshal([]byte(arg), &c); err != nil {
		return fmt.Errorf("not what a command is told: %w", err)
	}
	if _, err := fmt.Fprintln(stdout, "began"); err != nil {
		return err
	}
	token, err := strconv.ParseUint(os.Getenv("STILE_TOKEN"), 10, 64)
	if err != nil {
		return fmt.Errorf("STILE_TOKEN: %w", err)
	}
	voice, err := history.Speak(c.Recorder, c.Worker)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, voice.Close()) }()
	r, err := resource.Dial(context.WithoutCancel(ctx), c.Resource)
	if err != nil {
		return err
	}
	defer r.Close()
	// First of all, so that the End is recorded whenever we are killed.
	if err := r.Attach(c.Grant); err != nil {
		return err
	}
	w := &worker{config: c.Config, voice: voice, resource: r}
	s := &strand{worker: w, chance: w.chance(0)}
	if err := s.commanded(ctx, c, began, token); err != nil {
		return err
	}
	return r.Detach()
}

// commanded is what the command does: for up to half a TTL or, in one of four cases, for two or three, longer than the lock
// is kept if nobody renews it.
func (s *strand) commanded(ctx context.Context, c child, began int64, token uint64) error {
	t := s.hold(&history.Acquire{
		Lock: c.Lock, Grant: c.Grant, Call: c.Call, Return: began, Outcome: history.OK,
	}, commandHold(token))
	if s.chance.IntN(4) == 0 {
		ctx = context.WithoutCancel(ctx)
	}
	pace := s.config.holdUnit()
	lasts := s.upTo(pace / 2)
	if s.chance.IntN(4) == 0 {
		lasts = 2*pace + s.upTo(pace)
	}
	err := t.work(ctx, 1, lasts)
	e := t.ended()
	t.say(history.Event{At: e.Call, End: &e})
	return err
}

// commandHold is the hold of a command: it knows its token and nothing else.
type commandHold uint64

func (h commandHold) Token() uint64                 { return uint64(h) }
func (h commandHold) Until() int64                  { return 0 }
func (h commandHold) Valid() bool                   { return true }
func (h commandHold) Lost() <-chan struct{}         { return nil }
func (h commandHold) Why() string                   { return "" }
func (h commandHold) Release(context.Context) error { return nil }
