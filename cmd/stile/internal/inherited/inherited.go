//go:build unix

// Package inherited handles files that a process inherited from its parent.
package inherited

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Open returns an inherited file, and an error if this process did not inherit that descriptor.
// Children of this process do not inherit it.
func Open(fd int) (*os.File, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err == nil && flags&unix.FD_CLOEXEC != 0 { // opened by this program or by Go's runtime
		err = unix.EBADF
	}
	if err != nil {
		return nil, err
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "descriptor "+strconv.Itoa(fd)), nil
}

// Close closes the files that this process inherited, except stdin, stdout, stderr and keep. The
// parent may not know of them: a lock of flock(1), or a pipe whose reader waits for its end, would
// otherwise stay open as long as this process runs. Files opened by this program or by Go's runtime
// have the close-on-exec flag and stay open; inherited ones cannot have it.
func Close(keep ...int) {
	files, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // this system does not list open files
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil || fd <= 2 || slices.Contains(keep, fd) {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}
