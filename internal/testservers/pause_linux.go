package testservers

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// pause stops the process, and returns when it stands still: the signal alone only asks for that, and a thread that runs
// on another processor may yet answer a request.
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
