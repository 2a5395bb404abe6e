package child

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// A Process is a command that was started.
type Process struct {
	process *os.Process
	done    chan struct{}
	code    int // once done is closed
}

// Start starts a command. If that fails the error is an [*Error].
func Start(c Command, _ *Signals) (*Process, error) {
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{
		Env: c.Env, Files: []*os.File{c.Stdin, c.Stdout, c.Stderr},
	})
	if err != nil {
		return nil, failure(c.Args[0], err)
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

// ExitCode returns the command's own exit code, after Done is closed.
func (p *Process) ExitCode() int { return p.code }

// Tree returns the command's process id: there are no process groups.
func (p *Process) Tree() Tree { return Tree{Group: p.process.Pid} }

// Signal kills the command if it is told to end by anything but ^C, which reaches it by itself.
func (p *Process) Signal(sig os.Signal) {
	if sig != os.Interrupt {
		p.kill()
	}
}

func (p *Process) ask(os.Signal) { p.kill() }

func (p *Process) kill() { _ = p.process.Kill() } // fails only if it has ended

func (p *Process) anyAlive() bool { return false }

// Stopped never receives anything: nothing is ever stopped.
func (p *Process) Stopped() <-chan syscall.Signal { return nil }

// WantsToStop reports false.
func (p *Process) WantsToStop(syscall.Signal) bool { return false }

// Suspend does nothing.
func (p *Process) Suspend() {}

// AskToStop does nothing: Windows suspends no command.
func (p *Process) AskToStop(time.Duration, <-chan struct{}) {}

// Resume does nothing.
func (p *Process) Resume() {}

// Signals receives the signals that are meant for the command.
type Signals struct{ c chan os.Signal }

// Listen begins to receive. Close ends it.
func Listen() *Signals {
	s := &Signals{make(chan os.Signal, 16)}
	signal.Notify(s.c, os.Interrupt, syscall.SIGTERM)
	return s
}

// C is where they arrive.
func (s *Signals) C() <-chan os.Signal { return s.c }

// Close gives the signals back their usual effect.
func (s *Signals) Close() { signal.Stop(s.c) }

// Ends reports true: there are no other signals.
func Ends(os.Signal) bool { return true }

// Stops reports false.
func Stops(os.Signal) bool { return false }

// SignalNamed returns SIGTERM for TERM: there is no other way to stop a command than to kill it.
func SignalNamed(name string) (os.Signal, error) {
	if name != "TERM" {
		return nil, errors.New("on Windows a command is killed at once: leave the flag out")
	}
	return syscall.SIGTERM, nil
}

// ExitCodeFor returns the exit code that says that a signal ended a program.
func ExitCodeFor(sig os.Signal) int { return signaled + int(sig.(syscall.Signal)) }
