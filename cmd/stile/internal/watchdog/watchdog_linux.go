package watchdog

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/inherited"
)

// Verb is the hidden verb of the program that makes it a watchdog; the number of a process group and a mark follow it, as
// [child.Kill] takes them.
const Verb = "watchdog"

// A Watchdog watches one command. A nil Watchdog watches nothing. It is for one goroutine.
type Watchdog struct{ pipe *os.File }

// Start starts a watchdog for a process group, and for what the mark tells of it elsewhere, which may run for so long from
// now, as with [Watchdog.Until]. It must be closed before the group can have been given to others: before the command is
// waited for no longer.
func Start(group int, mark []string, left time.Duration) (*Watchdog, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	defer read.Close()
	// The file that is being run, even if another one has its name by now.
	dog := exec.Command("/proc/self/exe", append([]string{Verb, strconv.Itoa(group)}, mark...)...)
	dog.Args[0] = "stile"
	dog.Dir, dog.Env = "/", []string{}
	dog.Stdin = read // and nothing else of ours: somebody may wait for the end of our output
	dog.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	w := &Watchdog{write}
	w.Until(left) // before there is a moment in which it would know nothing
	if err := dog.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	go func() { _ = dog.Wait() }() // so that no zombie is left while we run
	return w, nil
}

// Until says that the command may run for so long from now, and no longer if nothing else is said.
func (w *Watchdog) Until(left time.Duration) {
	w.tell(strconv.FormatInt(int64(max(now()+left, 1)), 10))
}

// Close dismisses the watchdog.
func (w *Watchdog) Close() {
	if w != nil {
		w.tell(over)
		w.pipe.Close()
	}
}

// tell does not wait for a watchdog that does not listen, and does not mind one that is dead. There is room in the pipe for
// thousands of words. It is one attempt, without a deadline: that could pass, on a busy machine, before anything is written,
// and a watchdog that has not heard that all is over kills.
func (w *Watchdog) tell(text string) {
	if w == nil {
		return
	}
	pipe, err := w.pipe.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = pipe.Write(func(fd uintptr) (done bool) {
		for {
			if _, err := unix.Write(int(fd), []byte(text+"\n")); !errors.Is(err, unix.EINTR) {
				return true // done, or the pipe is full or broken
			}
		}
	})
}

// Run is the hidden verb: it watches a process group, as it is told on stdin.
func Run(group int, mark []string) {
	inherited.Close() // it ends a little later than the process that has started it
	Watch(os.Stdin, now, func() { child.Kill(group, mark) })
}

// now is the time since the machine was started, suspends included: the same for all processes.
func now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // cannot fail on a kernel that Go runs on
	return time.Duration(t.Nano())
}
