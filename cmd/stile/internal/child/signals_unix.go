//go:build unix

package child

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Signals receives the signals that are meant for the command. Those that were ignored when we were started, by
// nohup(1) for example, stay so.
type Signals struct{ c chan os.Signal }

// Listen begins to receive. Close ends it.
func Listen() *Signals {
	s := &Signals{make(chan os.Signal, 16)}
	s.add(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	return s
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
