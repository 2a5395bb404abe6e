package watchdog

import (
	"bytes"
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
	"github.com/stilelock/stile/cmd/stile/internal/uptime"
)

// Verb is the hidden verb that makes the program a watchdog. The names of the locks follow, for
// people who list processes.
const Verb = "watchdog"

// A Watchdog watches one command. A nil Watchdog watches nothing. It must be used by one goroutine
// only.
type Watchdog struct {
	pipe *os.File
	gone chan struct{}
}

// Start starts a watchdog for a command that may run until a deadline, as with [Watchdog.Until].
// The watchdog must be closed when the command has ended: others may get the number of its process group.
func Start(c Target, deadline time.Duration) (_ *Watchdog, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start the watchdog: %w", err)
		}
	}()
	c.PID = os.Getpid()
	target, err := c.write()
	if err != nil {
		return nil, err
	}
	defer target.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	// The running executable, even if the file has been replaced.
	// A name may begin with a dash.
	dog := exec.Command("/proc/self/exe", append([]string{Verb, "--"}, c.names()...)...)
	dog.Args[0] = "stile"
	dog.Dir, dog.Env = "/", []string{}
	dog.Stdin = read // nothing else is inherited: a reader may wait for the end of our output
	dog.ExtraFiles = []*os.File{target}
	dog.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	w := &Watchdog{pipe: write, gone: make(chan struct{})}
	w.Until(deadline) // so that it has one from its first moment
	if err := dog.Start(); err != nil {
		write.Close()
		return nil, err
	}
	go func() {
		defer close(w.gone)
		_ = dog.Wait() // reap it
	}()
	return w, nil
}

// names returns the names of the locks.
func (c Target) names() []string {
	names := make([]string, 0, len(c.Holds))
	for _, h := range c.Holds {
		names = append(names, h.Name)
	}
	return names
}

// targetFile is the watchdog's descriptor of its charge. The file is in memory that is inaccessible
// to other users: the charge may contain passwords, which must not appear in a list of processes.
const targetFile = 3

func (c Target) write() (*os.File, error) {
	fd, err := unix.MemfdCreate("stile-watchdog", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "target")
	err = gob.NewEncoder(f).Encode(c)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart) // the descriptors share the file position
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// readTarget reads a charge, and closes the file.
func readTarget(f *os.File) (c Target, err error) {
	defer f.Close()
	if err := gob.NewDecoder(f).Decode(&c); err != nil {
		return c, fmt.Errorf("the watchdog can only be started by stile run: %w", err)
	}
	return c, nil
}

// Gone is closed when the watchdog has ended. Before Close this happens only if the watchdog was
// killed.
func (w *Watchdog) Gone() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.gone
}

// Until sets the deadline, on the clock of [uptime.Now].
func (w *Watchdog) Until(deadline time.Duration) {
	w.send(strconv.FormatInt(int64(max(deadline, 1)), 10))
}

// Close dismisses the watchdog.
func (w *Watchdog) Close() {
	if w != nil {
		w.send(dismissal)
		w.pipe.Close()
	}
}

// send sends a message. It ignores a watchdog that is dead, or does not read: the pipe has room for
// thousands of messages. It tries once and without a deadline: on a busy machine a deadline could
// pass before anything is written, and a watchdog that is not dismissed kills the command.
func (w *Watchdog) send(text string) {
	if w == nil {
		return
	}
	pipe, err := w.pipe.SyscallConn()
	if err != nil {
		return // the pipe is closed
	}
	_ = pipe.Write(func(fd uintptr) (done bool) {
		for {
			if _, err := unix.Write(int(fd), []byte(text+"\n")); !errors.Is(err, unix.EINTR) {
				return true // done, or the pipe is full or broken
			}
		}
	})
}

// Run runs the watchdog: it watches a command by the messages on stdin.
func Run(release Release) error {
	inherited.Close(targetFile) // it outlives its parent
	c, err := readTarget(os.NewFile(targetFile, "target"))
	if err != nil {
		return err
	}
	// The end of a service or a login signals all of its processes. The watchdog has to go on until
	// the lock's process dismisses it.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	in := inbox{fd: int(os.Stdin.Fd())}
	await(in.receive, uptime.Now, c.Tree.Kill, func(deadline time.Duration) { c.orphaned(deadline, release) })
	return nil
}

// inbox reads messages from a pipe.
type inbox struct {
	fd     int
	unread []byte
}

// receive is the argument of [await].
func (b *inbox) receive(wait time.Duration) (string, error) {
	for end := time.Now().Add(wait); ; wait = max(time.Until(end), 0) {
		if line, rest, ok := bytes.Cut(b.unread, []byte("\n")); ok {
			b.unread = rest
			return string(line), nil
		}
		ms := int((wait + time.Millisecond - 1) / time.Millisecond)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}}, ms)
		if err == nil && n == 0 {
			return "", errNoMessage
		}
		buffer := make([]byte, 4096)
		if err == nil {
			n, err = unix.Read(b.fd, buffer)
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", err
		case n == 0:
			return "", io.EOF
		default:
			b.unread = append(b.unread, buffer[:n]...)
		}
	}
}

// orphaned kills the command after the process of the lock has ended, and then has the lock
// released.
func (c Target) orphaned(deadline time.Duration, release Release) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline-uptime.Now())
	defer cancel()
	safe, released := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(released)
		release(ctx, c, safe)
	}()
	if !c.end(func() bool { return uptime.Now() >= deadline }) {
		return // the TTL ends the hold
	}
	select {
	case <-time.After(c.NotBefore - uptime.Now()):
		close(safe)
	case <-ctx.Done():
	}
	<-released
}

// end kills the command, and reports whether all its processes are dead.
func (c Target) end(enough func() bool) bool {
	for os.Getppid() == c.PID { // its pipe is closed before its children get a new parent
		if enough() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return c.Tree.End(os.Getppid(), enough)
}
