//go:build unix

// Package inherited is for processes that outlive, or stand beside, what has started them, and have to let go of its
// files.
package inherited

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Close closes files that whoever started us had open without knowing, a lock of flock(1) or a pipe that somebody reads
// to its end, and that would stay open for as long as we run: all but stdin, stdout, stderr and those to keep. Files opened
// by this program, or by Go's runtime, are marked to be closed when another program is run; inherited ones cannot be.
func Close(keep ...int) {
	files, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // there is no such list on this system
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
