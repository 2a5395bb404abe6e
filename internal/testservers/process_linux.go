package testservers

import "syscall"

// sysProcAttr makes the kernel kill the server when the test process dies without closing it, for
// example after a timeout.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
