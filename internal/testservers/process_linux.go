package testservers

import "syscall"

// sysProcAttr makes the kernel kill the server when the test dies without having stopped it, of a timeout say.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
