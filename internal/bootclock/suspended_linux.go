package bootclock

import (
	"time"

	"golang.org/x/sys/unix"
)

// maxReadGap is the longest time between the reads of the two clocks that is accepted without a
// retry.
const maxReadGap = time.Millisecond

// suspended returns a lower bound of how long the machine has been suspended since it booted.
//
// If the thread is descheduled between reading the two clocks, the delay looks like a suspend. So
// CLOCK_MONOTONIC is read before and after CLOCK_BOOTTIME, and again if the two reads are far
// apart. The result is never more than the real duration.
func suspended() time.Duration {
	var lower, upper time.Duration
	for range 5 {
		before, boot, after := read(unix.CLOCK_MONOTONIC), read(unix.CLOCK_BOOTTIME), read(unix.CLOCK_MONOTONIC)
		lower, upper = max(lower, boot-after), boot-before
		if upper-lower < maxReadGap {
			break
		}
	}
	return lower
}

// read reads a clock. The call cannot fail on a kernel that Go supports. Zero for both clocks means
// "never suspended".
func read(clock int32) time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(clock, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
