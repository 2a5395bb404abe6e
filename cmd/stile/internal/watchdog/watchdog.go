// Package watchdog kills a command whose lock has run out when the process that has started it cannot: because it was
// killed, or is stopped, by SIGSTOP, by a debugger, or by a machine that has no memory left.
//
// The watchdog is another process of the same program. It is told through a pipe until when the command may run, and told
// again whenever that has changed. If it hears nothing in time it kills the command and what that has started. If the pipe
// ends before it is told that all is over, the other process has ended: then it kills them too, waits until all of them are
// dead, and has the lock released, so that the next in line need not wait for the TTL. If it cannot be sure that they are dead,
// the lock is left to the TTL. Both being stopped, or killed, is beyond it: for that there are the TTL and the fencing token.
package watchdog

import (
	"bufio"
	"context"
	"io"
	"strconv"
	"time"

	"github.com/stilelock/stile/cmd/stile/internal/child"
)

// A Charge is what a watchdog has to know of the command that it watches, and of the lock that is held for it.
type Charge struct {
	// Tree is the command.
	Tree child.Tree
	// Name, Token and Owner tell the hold from all others: the lock's name, the fencing token, and its holder as others see
	// it.
	Name  string
	Token uint64
	Owner string
	// URL is the store, as the process that holds the lock has opened it. Dir and Env are the directory and the environment
	// in which that has its meaning.
	URL string
	Dir string
	Env []string
	// NotBefore is when the lock may be released at the earliest, on the clock of [Now].
	NotBefore time.Duration

	// PID is the process that holds the lock. Start sets it.
	PID int
}

// A Release takes the hold that a charge is about out of the store. It may connect to the store at once, but must not change
// anything before safe is closed. ctx ends when the store has ended the hold by itself, or is about to.
type Release func(ctx context.Context, c Charge, safe <-chan struct{})

// over is what a watchdog is told when it is not needed any more.
const over = "over"

// await is the watchdog's side: it reads from the pipe and calls kill when the deadline has come, and orphaned, with the last
// deadline, when the pipe ends. It returns when it is not needed any more. now is the clock that the deadlines are on.
func await(pipe io.Reader, now func() time.Duration, kill func(), orphaned func(deadline time.Duration)) {
	told := make(chan string)
	go func() {
		defer close(told)
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			told <- lines.Text()
		}
	}()
	// Timers stand still while the machine is suspended: look again every so often.
	const longest = time.Second
	var deadline time.Duration // zero is none
	due := false
	for {
		left := longest
		if due {
			left = min(deadline-now(), longest)
		}
		select {
		case text, ok := <-told:
			if !ok {
				orphaned(deadline)
				return
			}
			if text == over {
				return
			}
			if d, err := strconv.ParseInt(text, 10, 64); err == nil {
				deadline, due = time.Duration(d), d > 0
			}
		case <-time.After(left):
			if due && now() >= deadline {
				kill()
				due = false
			}
		}
	}
}
