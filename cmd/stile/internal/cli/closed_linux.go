package cli

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// whenUnread calls f when nobody can read out any more: it is a pipe and its other end is closed.
// It returns at once and watches out for as long as the program runs.
//
// A program that writes rarely, for example to grep -m1, would otherwise notice it late.
func whenUnread(out *os.File, f func()) {
	fds := []unix.PollFd{{Fd: int32(out.Fd())}} // an error is reported without being asked for
	go func() {
		for {
			_, err := unix.Poll(fds, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err == nil && fds[0].Revents&unix.POLLERR != 0 {
				f()
			}
			return
		}
	}()
}
