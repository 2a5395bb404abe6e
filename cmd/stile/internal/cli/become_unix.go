//go:build lean && unix

package cli

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// become replaces this program by another one. It returns only if that fails.
func become(program string, args []string) (int, error) {
	err := unix.Exec(program, append([]string{program}, args...), os.Environ())
	return 0, fmt.Errorf("start %s: %w", program, err)
}
