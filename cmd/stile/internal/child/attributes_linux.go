package child

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attributes make the command die with us, however we die.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adopts reports whether this process gets the children of those who end, and has to wait for them: as the first process of a
// container does.
func adopts() bool {
	var subreaper int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0) //nolint:gosec // the kernel writes there
	return os.Getpid() == 1 || err == nil && subreaper != 0
}
