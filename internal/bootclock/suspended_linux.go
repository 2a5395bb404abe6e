package bootclock

import (
	"time"

	"golang.org/x/sys/unix"
)

// apart is how far apart the readings of the two clocks may be to be compared.
const apart = time.Millisecond

// suspended returns for how long the machine has been suspended since it booted.
//
// A thread that has to wait for a processor between reading the one clock and the other would take that for a suspend. So
// the one is read before and after the other, again if the two are far apart; what is returned is never more than the truth.
func suspended() time.Duration {
	var least, most time.Duration
	for range 5 {
		before, boot, after := read(unix.CLOCK_MONOTONIC), read(unix.CLOCK_BOOTTIME), read(unix.CLOCK_MONOTONIC)
		least, most = max(least, boot-after), boot-before
		if most-least < apart {
			break
		}
	}
	return least
}

// read reads a clock. The call cannot fail on a kernel that Go runs on; zero for both means "as if never suspended".
func read(clock int32) time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(clock, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
