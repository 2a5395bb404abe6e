//go:build unix && !linux

package child

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// adopts reports whether this process becomes the parent of orphans and has to reap them.
func adopts() bool { return os.Getpid() == 1 }
