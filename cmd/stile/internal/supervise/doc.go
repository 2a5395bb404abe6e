// Package supervise runs a command under a lock and guarantees that the command does not outlive
// the hold: the command, with every process that it has started, has ended before the store may
// admit another holder. If the lock is taken away, because it was broken or its session was
// removed, the command is stopped as soon as the loss is known.
//
// When renewals fail, these moments count from the sending of the last confirmed renewal; the times
// are those of a TTL of 15 s, on a store that ends no session early:
//
//	0      4.5 s         9.5 s          13.3 s   13.5 s      15 s
//	|--------|-------------|--------------|--------|-----------|
//	sent     renewal is    stop signal    SIGKILL  the hold    the store may
//	         due, and                              is lost     admit others
//	         retried
//
// The hold is lost when nine tenths of the TTL have passed, less the store's slack
// ([stile.Hold.Deadline]). The stop signal comes earlier, by KillAfter and by a margin for a busy
// machine, so that the command can be killed in time. A renewal that is confirmed before the stop
// signal moves all these moments; a later one does not save the command.
//
// KillAfter is a quarter of the TTL unless the user chooses it, and at most three eighths: with
// more, the stop signal would come before a second renewal has had a chance ([MaxKillAfter]).
//
// Two more cases are covered:
//
//   - Timers stand still while the machine is suspended or this process is stopped. So the clock
//     is checked every second, and a command whose lock has expired meanwhile is killed and not
//     continued.
//   - This process may be killed, or stopped forever. A [watchdog.Watchdog], another process, then
//     kills the command at the hold's deadline or, if this process is dead, at once, and releases
//     the lock.
//
// If both processes are killed, the command keeps running. The fencing token is for that case.
package supervise
