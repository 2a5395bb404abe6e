// Package watchdog kills a command whose lock has run out when the process that has started it cannot: because it was
// killed, or is stopped, by SIGSTOP, by a debugger, or by a machine that has no memory left.
//
// The watchdog is another process of the same program. It is told through a pipe until when the command may run, and told
// again whenever that has changed. If it hears nothing in time, or the pipe ends before it is told that all is over, it kills
// the command and what that has started. Both being stopped is beyond it: for that there is the fencing token.
package watchdog

import (
	"bufio"
	"io"
	"strconv"
	"time"
)

// over is what a watchdog is told when it is not needed any more.
const over = "over"

// Watch is the watchdog's side: it reads from the pipe and calls kill if it has to. It returns when it is not needed any
// more. now is the clock that the deadlines are on.
func Watch(pipe io.Reader, now func() time.Duration, kill func()) {
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
	for {
		left := longest
		if deadline > 0 {
			left = min(deadline-now(), longest)
		}
		select {
		case text, ok := <-told:
			if !ok {
				kill()
				return
			}
			if text == over {
				return
			}
			if d, err := strconv.ParseInt(text, 10, 64); err == nil {
				deadline = time.Duration(d)
			}
		case <-time.After(left):
			if deadline > 0 && now() >= deadline {
				kill()
				deadline = 0
			}
		}
	}
}
