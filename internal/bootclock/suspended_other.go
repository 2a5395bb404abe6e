//go:build !linux

package bootclock

import (
	"sync"
	"time"
)

// jumps accumulates how far the wall clock has jumped ahead of the monotonic clock.
var jumps struct {
	mu   sync.Mutex
	last time.Time
	sum  time.Duration
}

// maxJump is the limit for a jump. A larger difference is the start or end of the fake time of
// testing/synctest.
const maxJump = 5 * 365 * 24 * time.Hour

// suspended estimates how long the machine has been suspended since the process started: by how
// much the wall clock has jumped ahead of the monotonic clock between calls. Setting the wall clock
// forward has the same effect and makes leases look older. Setting it back is ignored, so leases
// never look younger.
func suspended(time.Time) time.Duration {
	jumps.mu.Lock()
	defer jumps.mu.Unlock()
	now := time.Now()
	if !jumps.last.IsZero() {
		// Round strips the monotonic reading, so that the first difference is that of the wall
		// clock.
		if jump := now.Round(0).Sub(jumps.last.Round(0)) - now.Sub(jumps.last); jump > noise && jump < maxJump {
			jumps.sum += jump
		}
	}
	jumps.last = now
	return jumps.sum
}
