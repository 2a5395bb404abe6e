//go:build unix

package child

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Process is a command that was started. Its methods are for one goroutine, but for Done.
type Process struct {
	tree    Tree
	tty     *terminal
	stopped chan unix.Signal
	done    chan struct{}
	code    int // once done is closed
}

// Start starts a command. If that fails the error is an [*Error]. From now on signals also receives the one that asks to
// be suspended.
func Start(c Command, signals *Signals) (*Process, error) {
	p := &Process{tree: Tree{Mark: c.Mark}, tty: openTerminal(), stopped: make(chan unix.Signal, 1), done: make(chan struct{})}
	signals.add(unix.SIGTSTP)
	start := make(chan error)
	go p.run(c, start)
	if err := <-start; err != nil {
		p.tty.close()
		if errors.Is(err, unix.ENOENT) { // the command was there a moment ago
			return nil, &Error{NotFound, c.Args[0], errNoInterpreter}
		}
		return nil, failure(c.Args[0], err)
	}
	return p, nil
}

var errNoInterpreter = errors.New("the interpreter that it names in its first line was not found")

// run starts the command and waits for it. Both happen on one thread, which is not used for anything else meanwhile:
// on Linux the command is killed when the thread that has started it ends, and Go ends threads as it likes.
func (p *Process) run(c Command, start chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr := &syscall.ProcAttr{
		Env:   c.Env,
		Files: []uintptr{c.Stdin.Fd(), c.Stdout.Fd(), c.Stderr.Fd()},
		Sys:   attributes(),
	}
	pid, err := syscall.ForkExec(c.Path, c.Args, attr)
	if errors.Is(err, unix.ENOEXEC) && isText(c.Path) {
		// A script that does not say who reads it is read by the shell: execvp(3) does so, and with it flock, env and
		// timeout.
		pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", c.Path}, c.Args[1:]...), attr)
	}
	if err == nil {
		p.tree.Group, p.tree.Started = pid, started(pid)
	}
	start <- err
	if err != nil {
		return
	}
	child := pid
	if adopts() {
		child = -1 // any
	}
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(child, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && ended != pid: // an orphan, not the command: it is reaped now
		case err == nil && status.Stopped():
			select {
			case p.stopped <- status.StopSignal():
			default: // it has not been looked at since it last stopped
			}
		default:
			p.code = exitCode(status, err)
			close(p.done)
			return
		}
	}
}

// isText reports whether a file may be a script. A program for another machine is none: to the shell it would be a script of
// nonsense.
func isText(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 128)
	n, _ := io.ReadFull(f, head) // a short file is no error
	head = head[:n]
	return !bytes.HasPrefix(head, []byte("\x7fELF")) && !bytes.Contains(head, []byte{0})
}

// ExitCode returns the command's own exit code, or 128 plus the number of the signal that ended it, after Done is
// closed. The terminal is ours again, and the process must not be used any more.
func (p *Process) ExitCode() int {
	p.tty.take()
	p.tty.close()
	return p.code
}

func exitCode(status unix.WaitStatus, err error) int {
	switch {
	case err != nil: // there is nothing to wait for, though nobody else waits: never a success
		return unknown
	case status.Signaled():
		return signaled + int(status.Signal())
	default:
		return status.ExitStatus()
	}
}

// Tree returns what others need to know to end the command and all that it has started.
func (p *Process) Tree() Tree { return p.tree }

// Signal sends a signal to the command and everything in its process group.
func (p *Process) Signal(sig os.Signal) {
	p.signal(sig.(syscall.Signal))
}

// signal fails only if the group is empty, or has become somebody else by setuid: there is nothing to do about either.
func (p *Process) signal(sig unix.Signal) { _ = unix.Kill(-p.tree.Group, sig) }

func (p *Process) ask(sig os.Signal) {
	p.Signal(sig)
	for _, pid := range p.tree.escaped() {
		_ = unix.Kill(pid, sig.(syscall.Signal))
	}
}

func (p *Process) kill() { p.tree.Kill() }

func (p *Process) anyAlive() bool {
	return unix.Kill(-p.tree.Group, 0) == nil || len(p.tree.escaped()) > 0
}

// ExitCodeFor returns the exit code that says that a signal ended a program.
func ExitCodeFor(sig os.Signal) int { return signaled + int(sig.(syscall.Signal)) }
