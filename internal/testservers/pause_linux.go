package testservers

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// pause suspends the process and waits until it has stopped. SIGSTOP is asynchronous: without the
// wait, a thread running on another processor could still reply to a request.
func (p *process) pause() error {
	if err := p.proc.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.proc.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (p *process) resume() error { return p.proc.Signal(syscall.SIGCONT) }
