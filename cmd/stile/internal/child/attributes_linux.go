package child

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attributes returns attributes that make the kernel kill the command when this process dies for
// any reason.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adopts reports whether this process becomes the parent of orphans and has to reap them, as the
// first process of a container does.
func adopts() bool {
	var subreaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0) //nolint:gosec // the kernel writes to it
	return os.Getpid() == 1 || err == nil && subreaper != 0
}
