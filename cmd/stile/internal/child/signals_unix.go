//go:build unix

package child

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Signals receives the signals that are meant for the command. HUP and INT stay ignored if they were when we were started,
// by nohup(1) for example, or in the background of a script; of others Go does not tell.
type Signals struct{ c chan os.Signal }

// Listen begins to receive. Close ends it.
func Listen() *Signals {
	s := &Signals{make(chan os.Signal, 16)}
	for sig := unix.Signal(1); sig <= last; sig++ {
		if !ours(sig) {
			s.add(sig)
		}
	}
	return s
}

// last is the highest number of a signal: Linux's real-time signals end there. Numbers that are not signals on this
// system do no harm.
const last = unix.Signal(64)

// ours reports whether a signal has a meaning for this process alone: it cannot be caught, tells of a fault, of a child
// or of a pipe that nobody reads, is used by Go or the C library within the process, or belongs to job control.
func ours(sig unix.Signal) bool {
	switch sig {
	case unix.SIGKILL, unix.SIGSTOP,
		unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGSYS,
		unix.SIGCHLD, unix.SIGPIPE, unix.SIGURG, 32, 33, 34,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCONT:
		return true
	default:
		return false
	}
}

// SignalNamed returns the signal with a name, like TERM or SIGTERM, or a number.
func SignalNamed(name string) (os.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= int(last) {
		return unix.Signal(n), nil
	}
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")); sig != 0 {
		return sig, nil
	}
	return nil, errors.New("there is no such signal; kill -l lists those there are")
}

func (s *Signals) add(sigs ...os.Signal) {
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(s.c, sig)
		}
	}
}

// C is where they arrive.
func (s *Signals) C() <-chan os.Signal { return s.c }

// Close gives the signals back their usual effect.
func (s *Signals) Close() { signal.Stop(s.c) }

// Ends reports whether a signal ends a program that only waits. The others are for the command, if there is one.
func Ends(sig os.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT:
		return true
	default:
		return false
	}
}

// Stops reports whether a signal asks to be suspended.
func Stops(sig os.Signal) bool { return sig == unix.SIGTSTP }
