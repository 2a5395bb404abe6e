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

// A Process is a started command. Its methods, except Done, must be called by one goroutine only.
type Process struct {
	tree    Tree
	tty     *terminal
	stopped chan unix.Signal
	done    chan struct{}
	code    int // valid once done is closed
}

// Start starts a command. If it fails the error is an [*Error]. From now on signals also receives
// SIGTSTP.
func Start(c Command, signals *Signals) (*Process, error) {
	p := &Process{tree: Tree{Mark: c.Mark}, tty: openTerminal(), stopped: make(chan unix.Signal, 1), done: make(chan struct{})}
	signals.Await()
	signals.add(unix.SIGTSTP)
	start := make(chan error)
	go p.run(c, start)
	if err := <-start; err != nil {
		p.tty.close()
		if _, missing := os.Stat(c.Path); errors.Is(err, unix.ENOENT) && missing == nil {
			return nil, &Error{NotFound, c.Args[0], errNoInterpreter}
		}
		return nil, wrapErr(c.Args[0], err)
	}
	return p, nil
}

var errNoInterpreter = errors.New("the interpreter named in its first line was not found")

// run starts the command and waits for it. Both happen on one locked thread: on Linux the command
// is killed when the thread that started it ends, and Go may end an unlocked thread at any time.
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
		// A script without an interpreter line is run by the shell, as by execvp(3), and with it
		// flock, env and timeout.
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
		child = -1 // wait for any process
	}
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(child, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && ended != pid: // an orphan, now reaped
		case err == nil && status.Stopped():
			select {
			case p.stopped <- status.StopSignal():
			default: // an earlier stop has not been received yet
			}
		default:
			p.code = exitCode(status, err)
			close(p.done)
			return
		}
	}
}

// isText reports whether a file may be a script. A program for another machine is not, and must not
// be given to the shell.
func isText(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 128)
	n, _ := io.ReadFull(f, head) // a short file is not an error
	head = head[:n]
	return !bytes.HasPrefix(head, []byte("\x7fELF")) && !bytes.Contains(head, []byte{0})
}

// ExitCode returns the command's exit code, or 128 plus the number of the signal that ended it. It
// may be called after Done is closed, takes the terminal back, and must be the last call.
func (p *Process) ExitCode() int {
	p.tty.take()
	p.tty.close()
	return p.code
}

func exitCode(status unix.WaitStatus, err error) int {
	switch {
	case err != nil: // unexpected, as nobody else waits for the process; not a success
		return unknown
	case status.Signaled():
		return signaled + int(status.Signal())
	default:
		return status.ExitStatus()
	}
}

// Tree returns what another process needs to end the command and every process that it has started.
func (p *Process) Tree() Tree { return p.tree }

// Signal sends a signal to the command and everything in its process group.
func (p *Process) Signal(sig os.Signal) {
	p.signal(sig.(syscall.Signal))
}

// signal ignores errors. It fails only if the group is empty, or runs as another user after setuid,
// and neither can be helped.
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

// ExitCodeFor returns the exit code of a program that was ended by a signal.
func ExitCodeFor(sig os.Signal) int { return signaled + int(sig.(syscall.Signal)) }
