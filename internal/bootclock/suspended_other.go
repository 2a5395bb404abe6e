//go:build !linux

package bootclock

import "time"

// suspended returns by how much the wall clock has run ahead of the monotonic clock since start. A wall clock set
// forward by hand looks the same as a suspend; so does, by little, one that is slewed. Both make leases look older
// than they are, never younger.
func suspended() time.Duration {
	now := time.Now()
	return max(0, now.Round(0).Sub(start.Round(0))-now.Sub(start))
}
