// Package bootclock is the clock by which Stile decides whether a lock is still held. It never
// steps, and it continues while the machine is suspended.
//
// Go's monotonic clock never steps, but on Linux it is CLOCK_MONOTONIC, which stops during suspend
// (golang/go#24595). After a resume, a laptop or virtual machine would consider its expired leases
// valid. So bootclock adds the duration of suspends to the monotonic time. On Linux that is the
// growth of CLOCK_BOOTTIME relative to CLOCK_MONOTONIC. Elsewhere it is the sum of the wall clock's
// jumps ahead of the monotonic clock.
//
// Because it starts from Go's monotonic time and not from CLOCK_BOOTTIME, the clock also follows
// the fake time of testing/synctest.
package bootclock

import (
	"sync/atomic"
	"time"
)

// Instant is a point in time, as the duration since the start of this process. Instants of
// different processes cannot be compared.
type Instant time.Duration

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from earlier to i.
func (i Instant) Sub(earlier Instant) time.Duration { return time.Duration(i - earlier) }

// Before reports whether i is earlier than other.
func (i Instant) Before(other Instant) bool { return i < other }

var (
	start = time.Now()
	base  = suspended(start)

	pretended atomic.Int64 // total of PretendSuspend
)

// Now returns the current instant. It is safe for concurrent use.
func Now() Instant {
	// The monotonic clock is read first: a suspend between the two reads is then included, so the
	// instant is too late rather than too early.
	now := time.Now()
	elapsed := now.Sub(start)
	if s := suspended(now) - base; s > noise {
		elapsed += s
	}
	return Instant(elapsed).Add(time.Duration(pretended.Load()))
}

// PretendSuspend simulates a suspend of duration d: the clock advances by d, timers do not. It is
// for tests that do not run in parallel with others.
func PretendSuspend(d time.Duration) { pretended.Add(int64(d)) }

// noise is the largest apparent drift caused by reading the two clocks of suspended one after the
// other.
const noise = 10 * time.Millisecond

// Time returns the wall-clock time at i, assuming that no clock steps and the machine is not
// suspended until then. It is for display and for APIs that take deadlines.
func (i Instant) Time() time.Time { return time.Now().Add(i.Sub(Now())) }
