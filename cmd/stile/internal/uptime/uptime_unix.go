//go:build unix && !linux

package uptime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the machine was started. Whether it includes suspends depends on the
// system; on macOS it does.
func Now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // all systems have this clock
	return time.Duration(t.Nano())
}
