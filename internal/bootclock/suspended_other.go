//go:build !linux

package bootclock

import (
	"sync"
	"time"
)

// leaps adds up by how much the wall clock has leapt ahead of the monotonic clock.
var leaps struct {
	mu   sync.Mutex
	last time.Time
	sum  time.Duration
}

// most bounds what counts as a leap. Larger ones are the way into, or out of, the fake time of testing/synctest.
const most = 5 * 365 * 24 * time.Hour

// suspended returns for how long the machine seems to have been suspended since the process started: by how much the
// wall clock has leapt ahead of the monotonic clock between one call and the next. A wall clock set forward by hand
// looks the same, and makes leases look older than they are. One set back is taken no notice of, so that nothing ever
// looks younger.
func suspended() time.Duration {
	leaps.mu.Lock()
	defer leaps.mu.Unlock()
	now := time.Now()
	if !leaps.last.IsZero() {
		// Round strips the monotonic reading, so that the first difference is that of the wall clock.
		if leap := now.Round(0).Sub(leaps.last.Round(0)) - now.Sub(leaps.last); leap > noise && leap < most {
			leaps.sum += leap
		}
	}
	leaps.last = now
	return leaps.sum
}
