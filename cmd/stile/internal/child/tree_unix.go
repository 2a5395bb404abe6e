//go:build unix && !linux

package child

import "golang.org/x/sys/unix"

// escaped returns nil: this system does not show the processes that have left the group.
func (t Tree) escaped() []int { return nil }

// Kill kills the process group. It does not wait until the processes are dead.
func (t Tree) Kill() { _ = unix.Kill(-t.Group, unix.SIGKILL) }

// started returns zero: the start time is unknown.
func started(int) uint64 { return 0 }
