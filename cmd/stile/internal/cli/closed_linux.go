package cli

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// whenUnread calls f once nobody can read any more what is written to out: out is a pipe, and its other end is closed. It
// returns at once, and looks at out for as long as the program runs.
//
// Who writes seldom, as to grep -m1, would otherwise find out late.
func whenUnread(out *os.File, f func()) {
	fds := []unix.PollFd{{Fd: int32(out.Fd())}} // an error is reported unasked
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
