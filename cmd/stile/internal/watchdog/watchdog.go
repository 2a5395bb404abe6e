// Package watchdog kills a command whose lock has expired when the process that started it cannot:
// because it was killed, or is stopped by SIGSTOP, by a debugger, or by a machine that swaps.
//
// The watchdog is another process of the same program. It receives the command's deadline through a
// pipe, and again whenever the deadline has changed. If the deadline passes, it kills the command
// and every process that the command has started. If the pipe ends before the watchdog is
// dismissed, the other process has ended. Then the watchdog kills them at once, waits until all of
// them are dead, and has the lock released, so that the next in line need not wait for the TTL. If
// it is unsure whether all are dead, it leaves the lock to the TTL. It cannot help if both
// processes are stopped or killed; the TTL and the fencing token are for that case.
package watchdog

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/stilelock/stile/cmd/stile/internal/child"
)

// A Target describes the command to watch and its locks.
type Target struct {
	// Tree is the command.
	Tree child.Tree
	// Holds are the holds that the command runs under, usually one.
	Holds []Hold
	// URL is the store's URL as the lock's process opened it. Dir and Env are the working directory
	// and the environment to interpret it in.
	URL string
	Dir string
	Env []string
	// NotBefore is the earliest time for a release of the lock, on the clock of [uptime.Now].
	NotBefore time.Duration

	// PID is the process that holds the lock. Start sets it.
	PID int
}

// A Hold identifies a hold: by the lock's name, the fencing token, and the owner as others see it.
type Hold struct {
	Name  string
	Token uint64
	Owner string
}

// A Release removes the target's holds from the store. It may connect to the store at once, but must
// not change anything before safe is closed. ctx ends when the store has ended the holds by itself,
// or is about to.
type Release func(ctx context.Context, c Target, safe <-chan struct{})

// dismissal is the message that dismisses a watchdog.
const dismissal = "over"

var errNoMessage = errors.New("no message has been sent")

// await runs in the watchdog. It calls kill at the deadline and, when the pipe ends, orphaned with
// the last deadline. It returns when it is dismissed. Deadlines are on the clock now.
//
// receive returns the next message. If none has been sent when wait has passed, it returns
// errNoMessage; any other error is the end of the pipe.
//
// The watchdog may stand still between any two lines, while the other process renews the lock and
// sends later deadlines. So it kills only if it found the pipe empty after the deadline.
func await(
	receive func(wait time.Duration) (string, error), now func() time.Duration, kill func(), orphaned func(deadline time.Duration),
) {
	// Timers stand still while the machine is suspended, so check the clock regularly.
	const maxWait = time.Second
	var deadline time.Duration // zero means none
	due := false
	for {
		before, wait := now(), maxWait
		if due {
			wait = min(max(deadline-before, 0), maxWait)
		}
		text, err := receive(wait)
		switch {
		case errors.Is(err, errNoMessage):
			if due && before >= deadline {
				kill()
				due = false
			}
		case err != nil:
			orphaned(deadline)
			return
		case text == dismissal:
			return
		default:
			if d, err := strconv.ParseInt(text, 10, 64); err == nil {
				deadline, due = time.Duration(d), d > 0
			}
		}
	}
}
