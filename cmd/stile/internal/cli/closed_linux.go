package cli

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// onReaderGone calls f when out is a pipe whose other end is closed, so that no process can read it.
// It returns at once, and polls the pipe in a goroutine as long as the program runs.
//
// A program that writes rarely, for example to grep -m1, would otherwise notice it late.
func onReaderGone(out *os.File, f func()) {
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
