// Package bootclock tells the time by which Stile judges whether a lock is still held: a clock that never steps,
// and that goes on while the machine is suspended.
//
// Go's monotonic clock does the first and, on Linux, not the second: it is CLOCK_MONOTONIC, which stands still
// during suspend (golang/go#24595). A laptop or virtual machine that wakes up would find its leases fresh. So the
// time here is the monotonic time plus what suspends have added: on Linux the growth of CLOCK_BOOTTIME over
// CLOCK_MONOTONIC, elsewhere what the wall clock has gained, if it has.
//
// Built that way, rather than on CLOCK_BOOTTIME itself, the clock also follows the fake time of testing/synctest.
package bootclock

import (
	"sync/atomic"
	"time"
)

// Instant is a moment, as the time since this process began to look at the clock. Instants of different
// processes cannot be compared.
type Instant time.Duration

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from earlier to i.
func (i Instant) Sub(earlier Instant) time.Duration { return time.Duration(i - earlier) }

// Before reports whether i is earlier than other.
func (i Instant) Before(other Instant) bool { return i < other }

var (
	start = time.Now()
	base  = suspended()

	pretended atomic.Int64 // suspends that tests have made up
)

// Now returns the present instant. It is safe for concurrent use.
func Now() Instant {
	// Monotonic first: a suspend between the two readings then counts in the second, and the instant is late
	// rather than early.
	elapsed := time.Since(start)
	if s := suspended() - base; s > noise {
		elapsed += s
	}
	return Instant(elapsed).Add(time.Duration(pretended.Load()))
}

// PretendSuspend makes it seem as if the machine had been suspended for d just now: timers stand as they stood. It is for
// tests, of which no other may run at the same time in the same process.
func PretendSuspend(d time.Duration) { pretended.Add(int64(d)) }

// noise is what the two clocks behind suspended may seem to drift apart by being read one after the other.
const noise = 10 * time.Millisecond

// Time returns the wall-clock time that will be at i if no clock steps and nothing is suspended: for people and
// for APIs that take deadlines.
func (i Instant) Time() time.Time { return time.Now().Add(i.Sub(Now())) }
