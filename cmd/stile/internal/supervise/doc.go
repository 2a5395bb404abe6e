// Package supervise runs a command under a lock, and guarantees that the command does not run on beyond the hold: it has
// ended, with everything that it has started, before the store may let somebody else in. If it was started in time but
// somebody takes the lock away, by breaking it or by removing its session, it is stopped as soon as that is known.
//
// When renewals fail there are these moments, counted from when the last confirmed renewal was sent; the times are those of
// a TTL of 15 s, on a store that ends no session early:
//
//	0      4.5 s         9.5 s          13.3 s   13.5 s      15 s
//	|--------|-------------|--------------|--------|-----------|
//	sent     renewal is    stop signal    SIGKILL  the hold    the store may
//	         due, and                              is lost     let others in
//	         retried
//
// The hold is lost when nine tenths of the TTL have passed, less what the store may take back ([stile.Hold.Deadline]). The
// stop signal comes earlier, by KillAfter and by what a busy machine may need besides, so that the command can be killed in time.
// A renewal that is confirmed before the stop signal moves everything on; one that comes later does not bring the command back.
//
// KillAfter is a quarter of the TTL unless the user has chosen it, and three eighths at most: with more, the stop signal would
// come before a second renewal has had a chance ([MaxKillAfter]).
//
// Two more things may stand in the way:
//
//   - Timers stand still while the machine is suspended, and so does this process when it is stopped. So the clock is looked at
//     every second, and a command whose lock has run out meanwhile is killed and not continued.
//   - This process may be killed, or stopped for good. A [watchdog.Watchdog], another process, then kills the command at the
//     hold's deadline or, if this process is dead, at once, and releases the lock.
//
// If both processes are killed, the command runs on. For that there is the fencing token.
package supervise
