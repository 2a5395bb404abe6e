package history

import "golang.org/x/sys/unix"

// Now returns the time of CLOCK_MONOTONIC in nanoseconds: the clock of all times in a history. Go's
// own monotonic readings count from the start of each process, so those of two processes cannot be
// compared.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("CLOCK_MONOTONIC: " + err.Error()) // every Linux has it
	}
	return ts.Nano()
}
