package bootclock

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxReadGap is the longest time between the reads of the two clocks that is accepted without a
// retry.
const maxReadGap = time.Millisecond

// A reading says how long the machine had been suspended, and what Go's clocks said just before.
type reading struct {
	at        time.Duration // by the monotonic clock, since the start
	ahead     time.Duration // of the wall clock, ahead of the monotonic clock
	suspended time.Duration
}

const (
	// maxReadingAge is how long a reading can stand for later ones.
	maxReadingAge = 100 * time.Millisecond
	// maxReadingDrift is how much the wall clock may have moved against the monotonic clock since then.
	maxReadingDrift = time.Millisecond
)

var last atomic.Pointer[reading]

// suspended returns a lower bound of how long the machine has been suspended since it booted, as of now,
// which was the time just before the call.
//
// A reading costs three system calls. But a suspend also stops the monotonic clock and not the wall clock,
// and Go reads those two without a system call. So the last reading stands for later ones as long as the two
// clocks keep their distance. A suspend goes unnoticed only if the wall clock is then set back by its
// length, and only until the reading is too old.
func suspended(now time.Time) time.Duration {
	r := reading{at: now.Sub(start)}
	r.ahead = time.Duration(now.UnixNano()) - r.at
	if l := last.Load(); l != nil && l.standsFor(r) {
		return l.suspended
	}
	s := measureSuspended()
	last.Store(&reading{r.at, r.ahead, s}) // r itself must not escape to the heap
	return s
}

// standsFor reports whether the machine was not suspended between a reading and a later one.
func (r *reading) standsFor(later reading) bool {
	age, drift := later.at-r.at, later.ahead-r.ahead
	return age >= 0 && age < maxReadingAge && drift.Abs() < maxReadingDrift
}

// measureSuspended returns a lower bound of how long the machine has been suspended since it booted.
//
// If the thread is descheduled between reading the two clocks, the delay looks like a suspend. So
// CLOCK_MONOTONIC is read before and after CLOCK_BOOTTIME, and again if the two reads are far
// apart. The result is never more than the real duration.
func measureSuspended() time.Duration {
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
