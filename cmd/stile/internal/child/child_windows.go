package child

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// A Process is a started command.
type Process struct {
	process *os.Process
	done    chan struct{}
	code    int // valid once done is closed
}

// Start starts a command. If it fails the error is an [*Error].
func Start(c Command, _ *Signals) (*Process, error) {
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Env: c.Env, Files: []*os.File{c.Stdin, c.Stdout, c.Stderr},
	})
	if err != nil {
		return nil, wrapErr(c.Args[0], err)
	}
	p := &Process{process: process, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.code = unknown
		if state, err := process.Wait(); err == nil {
			p.code = state.ExitCode()
		}
	}()
	return p, nil
}

// ExitCode returns the command's exit code, after Done is closed.
func (p *Process) ExitCode() int { return p.code }

// Tree returns the command's process id: there are no process groups.
func (p *Process) Tree() Tree { return Tree{Group: p.process.Pid} }

// Signal kills the command for every signal except ^C, which the command receives from the console.
func (p *Process) Signal(sig os.Signal) {
	if sig != os.Interrupt {
		p.kill()
	}
}

func (p *Process) ask(os.Signal) { p.kill() }

func (p *Process) kill() { _ = p.process.Kill() } // fails only if the process has ended

func (p *Process) anyAlive() bool { return false }

// Stopped never receives: Windows stops no command.
func (p *Process) Stopped() <-chan syscall.Signal { return nil }

// WantsToStop reports false.
func (p *Process) WantsToStop(syscall.Signal) bool { return false }

// Suspend does nothing.
func (p *Process) Suspend() {}

// AskToStop does nothing: Windows suspends no command.
func (p *Process) AskToStop(time.Duration, <-chan struct{}) {}

// Resume does nothing.
func (p *Process) Resume() {}

// Signals receives the signals for the command.
type Signals struct{ c chan os.Signal }

// Listen starts to receive. Close ends it.
func Listen() *Signals {
	s := &Signals{make(chan os.Signal, 16)}
	signal.Notify(s.c, os.Interrupt, syscall.SIGTERM)
	return s
}

// Await returns at once.
func (s *Signals) Await() {}

// C returns the channel of the signals.
func (s *Signals) C() <-chan os.Signal { return s.c }

// Close restores the signals' default effect.
func (s *Signals) Close() { signal.Stop(s.c) }

// Ends reports true: there are only signals that end a program.
func Ends(os.Signal) bool { return true }

// Stops reports false.
func Stops(os.Signal) bool { return false }

// SignalNamed returns SIGTERM for TERM, and an error for any other name: a command can only be
// killed.
func SignalNamed(name string) (os.Signal, error) {
	if name != "TERM" {
		return nil, errors.New("on Windows a command is killed at once: omit the flag")
	}
	return syscall.SIGTERM, nil
}

// ExitCodeFor returns the exit code of a program that was ended by a signal.
func ExitCodeFor(sig os.Signal) int { return signaled + int(sig.(syscall.Signal)) }

// IgnoreTerminalInput does nothing.
func IgnoreTerminalInput() {}
