//go:build unix && !solaris && !aix

package fileguard

import (
	"errors"
	"os"
	"syscall"
)

// noFollow refuses a symbolic link, which may be another user's.
const noFollow = syscall.O_NOFOLLOW

// tryLock locks a file, unless another process has locked it. Closing the file unlocks it.
func tryLock(file *os.File) (locked bool, err error) {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		default:
			return err == nil, err
		}
	}
}
