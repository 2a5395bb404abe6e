package bootclock

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspended returns for how long the machine has been suspended since it booted.
func suspended() time.Duration {
	var boot, mono unix.Timespec
	// Neither call can fail on a kernel that Go runs on; zero means "as if never suspended".
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}
