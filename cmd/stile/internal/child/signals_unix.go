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

// Signals receives the signals for the command. If HUP or INT were ignored when this process was
// started, by nohup(1) or in the background of a script, they stay ignored. Go does not report
// whether other signals were.
type Signals struct {
	c     chan os.Signal
	ready chan struct{} // closed when all signals are received
}

// Listen starts to receive, in the background: Go switches threads twice for each of the fifty signals,
// which takes a millisecond. Until [Signals.Await] has returned, a signal may still have its default effect.
// Close ends the receiving.
func Listen() *Signals {
	s := &Signals{make(chan os.Signal, 16), make(chan struct{})}
	go func() {
		defer close(s.ready)
		for sig := unix.Signal(1); sig <= maxSignal; sig++ {
			if !isOwn(sig) {
				s.add(sig)
			}
		}
	}()
	return s
}

// Await returns when all signals are received.
func (s *Signals) Await() { <-s.ready }

// maxSignal is the highest signal number: that of Linux's last real-time signal. Numbers that are
// not signals on this system are harmless.
const maxSignal = unix.Signal(64)

// isOwn reports whether a signal is for this process alone: it cannot be caught, reports a fault, a
// child or a broken pipe, is used by Go or the C library within the process, or belongs to job
// control.
func isOwn(sig unix.Signal) bool {
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

// SignalNamed returns the signal with a name, such as TERM or SIGTERM, or a number.
func SignalNamed(name string) (os.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= int(maxSignal) {
		return unix.Signal(n), nil
	}
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")); sig != 0 {
		return sig, nil
	}
	return nil, errors.New("no such signal; kill -l lists the signals")
}

func (s *Signals) add(sigs ...os.Signal) {
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(s.c, sig)
		}
	}
}

// C returns the channel of the signals.
func (s *Signals) C() <-chan os.Signal { return s.c }

// Close restores the signals' default effect, in the background: a process that ends need not wait for it.
func (s *Signals) Close() {
	go func() {
		s.Await()
		signal.Stop(s.c)
	}()
}

// Ends reports whether a signal ends a program that does not handle it. Other signals only matter
// to the command.
func Ends(sig os.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT:
		return true
	default:
		return false
	}
}

// Stops reports whether a signal asks the program to suspend.
func Stops(sig os.Signal) bool { return sig == unix.SIGTSTP }

// IgnoreTerminalInput makes reading from the terminal an error, instead of stopping this process, while
// it is in the background.
func IgnoreTerminalInput() { signal.Ignore(unix.SIGTTIN) }
