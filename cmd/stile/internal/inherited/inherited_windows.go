// Package inherited handles files that a process inherited from its parent.
package inherited

import (
	"errors"
	"os"
)

// Open returns an error: on Windows files are inherited as handles, without numbers.
func Open(int) (*os.File, error) { return nil, errors.ErrUnsupported }
