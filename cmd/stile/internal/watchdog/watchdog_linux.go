package watchdog

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/inherited"
)

// Verb is the hidden verb of the program that makes it a watchdog; for people who list processes, the name of a lock follows.
const Verb = "watchdog"

// A Watchdog watches one command. A nil Watchdog watches nothing. It is for one goroutine.
type Watchdog struct {
	pipe *os.File
	gone chan struct{}
}

// Start starts a watchdog for a command which may run for so long from now, as with [Watchdog.Until]. It must be closed before
// the command's process group can have been given to others: before the command is waited for no longer.
func Start(c Charge, left time.Duration) (_ *Watchdog, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start the watchdog: %w", err)
		}
	}()
	c.PID = os.Getpid()
	charge, err := c.write()
	if err != nil {
		return nil, err
	}
	defer charge.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	// The file that is being run, even if another one has its name by now.
	dog := exec.Command("/proc/self/exe", Verb, c.Name)
	dog.Args[0] = "stile"
	dog.Dir, dog.Env = "/", []string{}
	dog.Stdin = read // and nothing else of ours: somebody may wait for the end of our output
	dog.ExtraFiles = []*os.File{charge}
	dog.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	w := &Watchdog{pipe: write, gone: make(chan struct{})}
	w.Until(left) // before there is a moment in which it would know nothing
	if err := dog.Start(); err != nil {
		write.Close()
		return nil, err
	}
	go func() {
		defer close(w.gone)
		_ = dog.Wait() // so that no zombie is left while we run
	}()
	return w, nil
}

// chargeFile is the descriptor on which a watchdog finds its charge: in memory that nobody else can reach, because there may be
// passwords in it, which must not be seen in a list of processes.
const chargeFile = 3

func (c Charge) write() (*os.File, error) {
	fd, err := unix.MemfdCreate("stile-watchdog", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "charge")
	err = gob.NewEncoder(f).Encode(c)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart) // the descriptors have the position in common
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readCharge reads a charge, and closes the file.
func readCharge(f *os.File) (c Charge, err error) {
	defer f.Close()
	if err := gob.NewDecoder(f).Decode(&c); err != nil {
		return c, fmt.Errorf("the watchdog is started by stile run alone: %w", err)
	}
	return c, nil
}

// Gone is closed when the watchdog has ended. It is not to be closed before Close is called, but somebody may kill it.
func (w *Watchdog) Gone() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.gone
}

// Until says that the command may run for so long from now, and no longer if nothing else is said.
func (w *Watchdog) Until(left time.Duration) {
	w.tell(strconv.FormatInt(int64(max(Now()+left, 1)), 10))
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

// Run is the hidden verb: it watches a command, as it is told on stdin.
func Run(release Release) error {
	inherited.Close(chargeFile) // it ends a little later than the process that has started it
	c, err := readCharge(os.NewFile(chargeFile, "charge"))
	if err != nil {
		return err
	}
	// Who ends a service, or a login, ends all of its processes at once. It is the other one that has to know when it is over.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	await(os.Stdin, Now, c.Tree.Kill, func(deadline time.Duration) { c.orphaned(deadline, release) })
	return nil
}

// orphaned ends the command after the process that holds the lock has ended, and then has the lock released.
func (c Charge) orphaned(deadline time.Duration, release Release) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline-Now())
	defer cancel()
	safe, released := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(released)
		release(ctx, c, safe)
	}()
	if !c.end(func() bool { return Now() >= deadline }) {
		return // after the TTL it is released all the same
	}
	select {
	case <-time.After(c.NotBefore - Now()):
		close(safe)
	case <-ctx.Done():
	}
	<-released
}

// end kills the command, and reports whether all of it is dead.
func (c Charge) end(enough func() bool) bool {
	for os.Getppid() == c.PID { // its files are closed before its children are given to somebody else
		if enough() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return c.Tree.End(os.Getppid(), enough)
}

// Now is the time since the machine was started, suspends included: the same for all processes.
func Now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // cannot fail on a kernel that Go runs on
	return time.Duration(t.Nano())
}
