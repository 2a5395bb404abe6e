//go:build unix

package child

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// How the terminal is shared. The command has a process group of its own, so that stopping it stops
// all its processes, and neither this process nor the rest of a pipeline. But a terminal has one
// foreground group: only its members may read from the terminal, and only they receive the signals
// of its keys. The shell has made our group the foreground group, and it stays so while the command
// does not need the terminal: ^C then reaches this process, the pipeline around it and the calling
// script, as it would without stile, and this process forwards it.
//
// When a command does more than write to the terminal, the kernel stops it with TTIN or TTOU. Then
// this process makes the command's group the foreground group and continues it; from then on the
// command alone receives the keys. If this process is not in the foreground itself, it stops too,
// so that the shell knows.
//
// When this process is to stop (^Z), the command is stopped first: otherwise it would go on while
// nobody could end it after a loss of the lock. When this process is continued, the command is
// continued only after the caller has checked that the lock is still held.

// terminal is the controlling terminal. A nil terminal means that there is none.
type terminal struct {
	f    *os.File
	home int  // our process group
	lent bool // the foreground is the command's
}

func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil // no controlling terminal
	}
	return &terminal{f: f, home: unix.Getpgrp()}
}

func (t *terminal) close() {
	if t != nil {
		t.f.Close()
	}
}

// inForeground reports whether this process's group is the foreground group.
func (t *terminal) inForeground() bool {
	if t == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(t.f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == t.home
}

// lend makes group the foreground group if ours is, and reports whether it did.
func (t *terminal) lend(group int) bool {
	if t.inForeground() {
		t.lent = t.setForeground(group)
		return t.lent
	}
	return false
}

// take makes our group the foreground group again after lend, and reports whether it did.
func (t *terminal) take() bool {
	if t == nil || !t.lent {
		return false
	}
	t.lent = false
	return t.setForeground(t.home)
}

func (t *terminal) setForeground(group int) bool {
	// A background process is stopped with TTOU for this, unless it ignores that signal. No process
	// is started after this that could inherit the ignored signal.
	signal.Ignore(unix.SIGTTOU)
	return unix.IoctlSetPointerInt(int(t.f.Fd()), unix.TIOCSPGRP, group) == nil
}

// Stopped receives the signal each time one has stopped the command.
func (p *Process) Stopped() <-chan unix.Signal { return p.stopped }

// WantsToStop handles a stop of the command by sig. It reports whether this process should stop
// too, because the user or the shell has requested the stop. It ignores stops by other processes.
func (p *Process) WantsToStop(sig unix.Signal) bool {
	switch sig {
	case unix.SIGTTIN, unix.SIGTTOU:
		if p.tty.lend(p.tree.Group) {
			p.signal(unix.SIGCONT)
			return false
		}
		return p.tty != nil
	case unix.SIGTSTP:
		return p.tty != nil
	default:
		return false
	}
}

// selfSignalTimeout is enough time for a signal from this process to itself to take effect, on a
// busy machine too.
const selfSignalTimeout = time.Second

// AskToStop sends SIGTSTP to the command, as ^Z would, so that it can restore the screen, and waits
// until it has stopped or ended. It waits no longer than timeout, and not after hurry is closed.
func (p *Process) AskToStop(timeout time.Duration, hurry <-chan struct{}) {
	p.signal(unix.SIGTSTP)
	select {
	case <-p.stopped:
	case <-p.done:
	case <-hurry:
	case <-time.After(timeout):
	}
}

// Suspend stops the command, then this process and, if the command had the terminal, the rest of
// this process group, as ^Z would. It returns when this process is continued. The command stays
// stopped until [Process.Resume].
func (p *Process) Suspend() {
	p.signal(unix.SIGSTOP)

	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	to := unix.Getpid()
	if p.tty.take() {
		to = 0
	}
	// TTIN has the effect that TSTP should have. TSTP has a handler, and Go cannot restore a
	// signal's default effect.
	_ = unix.Kill(to, unix.SIGTTIN) // our own group: cannot fail
	select {
	case <-continued:
	case <-time.After(selfSignalTimeout): // the kernel does not stop an orphaned group, which no shell could continue
	}
}

// Resume continues the command after [Process.Suspend].
func (p *Process) Resume() {
	select {
	case <-p.stopped: // the stop by Suspend
	default:
	}
	p.signal(unix.SIGCONT)
}
