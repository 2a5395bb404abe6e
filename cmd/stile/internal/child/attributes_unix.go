//go:build unix && !linux

package child

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// adopts reports whether this process gets the children of those who end, and has to wait for them.
func adopts() bool { return os.Getpid() == 1 }
