// Package uptime is a clock that all processes of a machine agree on. It never steps, and continues
// while the machine is suspended.
package uptime

import "time"

// At returns the uptime at a moment, or an earlier one if this process stands still meanwhile: so a
// deadline never moves into the future.
func At(moment time.Time) time.Duration {
	now := Now() // before the clock of time.Until is read
	return now + time.Until(moment)
}
