package uptime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the machine was started, including suspends.
func Now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // cannot fail on a kernel that Go runs on
	return time.Duration(t.Nano())
}
