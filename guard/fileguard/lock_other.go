//go:build !unix || solaris || aix

package fileguard

import (
	"errors"
	"fmt"
	"os"
)

const noFollow = 0

func tryLock(*os.File) (bool, error) {
	return false, fmt.Errorf("this system has no flock(2): %w", errors.ErrUnsupported)
}
