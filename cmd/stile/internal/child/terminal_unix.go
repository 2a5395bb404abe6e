//go:build unix

package child

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// How the terminal is shared. The command has a process group of its own, so that stopping it stops all of it, and does not stop us or the rest of
// a pipeline. But a terminal has one foreground group: only its members may read from the terminal and get the signals
// of its keys. The shell has made our group the foreground, and it is best left there while nobody minds: ^C then
// reaches us, the pipeline around us and the script we are called from, as it would without us, and we pass it on.
//
// A command that wants more than to write to the terminal is stopped by the kernel with TTIN or TTOU. That is when we
// make its group the foreground and let it go on; from then on it gets the keys alone. If we are not in the foreground
// ourselves the shell has to know, so we stop too.
//
// When we are to stop (^Z) the command stops first: if it went on without us nobody would be there to end it when the
// lock is lost. And when we are continued it is not, before our caller has made sure that the lock is still held.

// terminal is the controlling terminal. A nil terminal is none.
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

// ours reports whether we are in the foreground.
func (t *terminal) ours() bool {
	if t == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(t.f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == t.home
}

// lend puts the process group into the foreground in our place, if we are there.
func (t *terminal) lend(group int) bool {
	if t.ours() {
		t.lent = t.setForeground(group)
		return t.lent
	}
	return false
}

// take puts us back into the foreground, if we have lent it.
func (t *terminal) take() bool {
	if t == nil || !t.lent {
		return false
	}
	t.lent = false
	return t.setForeground(t.home)
}

func (t *terminal) setForeground(group int) bool {
	// Who is in the background is stopped with TTOU for doing this, unless it ignores that. Nothing is started any more
	// that could inherit the ignoring.
	signal.Ignore(unix.SIGTTOU)
	return unix.IoctlSetPointerInt(int(t.f.Fd()), unix.TIOCSPGRP, group) == nil
}

// Stopped receives the signal that has stopped the command, each time one has.
func (p *Process) Stopped() <-chan unix.Signal { return p.stopped }

// WantsToStop deals with a command that was stopped by sig. It reports whether it is for us to stop too, because the
// user, or the shell, wants that. A command stopped by anybody else is nobody's business here.
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

// moment is enough for a signal sent to oneself to take effect: on a busy machine too, where one need not run at once.
const moment = time.Second

// AskToStop tells the command to stop, as ^Z would have, and waits until it has stopped or ended: it may put its screen in order
// first. It waits no longer than most, and not once hurry is closed.
func (p *Process) AskToStop(most time.Duration, hurry <-chan struct{}) {
	p.signal(unix.SIGTSTP)
	select {
	case <-p.stopped:
	case <-p.done:
	case <-hurry:
	case <-time.After(most):
	}
}

// Suspend stops the command, then this process and, if the command had the terminal, the rest of our process group
// with it, as ^Z would have. It returns when this process has been continued; the command stays as it is until
// [Process.Resume].
func (p *Process) Suspend() {
	p.signal(unix.SIGSTOP)

	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	to := unix.Getpid()
	if p.tty.take() {
		to = 0
	}
	// TTIN does to us what TSTP should do. We handle TSTP, and Go does not give a signal its own effect back.
	_ = unix.Kill(to, unix.SIGTTIN) // our own group: cannot fail
	select {
	case <-continued:
	case <-time.After(moment): // the kernel stops nobody whom no shell could continue
	}
}

// Resume continues the command after [Process.Suspend].
func (p *Process) Resume() {
	select {
	case <-p.stopped: // that was us
	default:
	}
	p.signal(unix.SIGCONT)
}
