//go:build unix

package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// noFollow is the flag with which opening a symbolic link fails.
const noFollow = unix.O_NOFOLLOW

func try(f *os.File, kind Kind) error {
	how := unix.LOCK_SH
	if kind == Exclusive {
		how = unix.LOCK_EX
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrLocked
		case err != nil:
			return os.NewSyscallError("flock", err)
		}
		return nil
	}
}
