package supervise

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
)

// A Job is a command to run, and the lock to run it under.
type Job struct {
	// Command is what to run, and Signals are those that are passed on to it.
	Command child.Command
	Signals *child.Signals
	// Hold is the lock, TTL the one that was asked for, and Renewals what the client reports of its renewals.
	Hold     *stile.Hold
	TTL      time.Duration
	Renewals Renewals
	// StopSignal asks the command to end. KillAfter later it is killed: at most [MaxKillAfter] of what is [Certain].
	StopSignal os.Signal
	KillAfter  time.Duration
	// Timeout is how long the command may run. Zero is for ever.
	Timeout time.Duration
	// Charge is what a watchdog has to know of the lock.
	Charge watchdog.Charge
	// Say tells the user something. It may block: a terminal may be held with ^S. Remark tells what only a user wants to know
	// who wants to know everything, and does not block. Because puts an error of the store into a clause in parentheses.
	Say     func(text string)
	Remark  func(text string)
	Because func(err error) string
}

// An Outcome is how a command under a lock came to its end.
type Outcome int

const (
	// Ended: by itself, while the lock was held.
	Ended Outcome = iota
	// Lost: the lock was lost or about to be; the command was stopped, or not run at all. The user has been told.
	Lost
	// TimedOut: it has run for too long and was stopped.
	TimedOut
)

// Renewals carries the last attempt at a renewal from a client's hook to the supervisor. Make one with [NewRenewals].
type Renewals chan stile.RenewalEvent

// NewRenewals returns one that has nothing to report.
func NewRenewals() Renewals { return make(Renewals, 1) }

// Note is for the hook. It does not block.
func (r Renewals) Note(attempt stile.RenewalEvent) {
	select {
	case <-r: // nobody has looked at the one before
	default:
	}
	select {
	case r <- attempt:
	default: // somebody else was faster: as good
	}
}

// Run runs the command and ends it if the lock cannot be kept. The exit code is that of a command that has [Ended]. An error
// means that the command could not be run.
func Run(j Job) (outcome Outcome, code int, err error) {
	s := supervisor{Job: j}
	if !s.Hold.Valid() { // we have stood still since it was obtained, stopped perhaps, or writing to a terminal held with ^S
		<-s.Hold.Lost() // it is on its way
		s.Say(s.lost() + "; the command was not run")
		return Lost, 0, nil
	}
	if s.process, err = child.Start(j.Command, j.Signals); err != nil {
		return 0, 0, err
	}
	outcome, code = s.watch()
	return outcome, code, nil
}

// supervisor is what watches over one command. All of it is for one goroutine.
type supervisor struct {
	Job
	process *child.Process
	lastErr error // of the last attempt at a renewal; nil if it was confirmed

	dog       *watchdog.Watchdog // what takes longer than a moment is watched by another process too
	unwatched <-chan time.Time   // it is time to start one; nil if there is one

	suspended bool // the command is, because we were; that it is past stopBy does no harm then
	continued time.Time
	stoppedBy syscall.Signal   // what has stopped the command, if toSuspend is set
	toSuspend <-chan time.Time // it is time to stop with it
}

// watch returns when the command has ended.
func (s *supervisor) watch() (Outcome, int) {
	timer := time.NewTimer(lookInterval)
	defer timer.Stop()
	defer func() { s.dog.Close() }()
	s.Charge.Tree = s.process.Tree()
	moment := min(time.Second, s.TTL/4)
	s.unwatched = time.After(moment)
	var timeout <-chan time.Time
	if s.Timeout > 0 {
		timeout = time.After(s.Timeout)
	}
	for {
		stopBy := time.Until(s.stopBy())
		switch {
		case s.suspended && stopBy > 0 && s.Hold.Valid():
			s.resume()
		case !s.Hold.Valid():
			<-s.Hold.Lost() // it is on its way: we have stood still
		case !s.suspended && stopBy <= 0:
			s.stop(s.atRisk(), s.KillAfter, s.Hold.Lost())
			return Lost, 0
		}
		if s.suspended {
			stopBy = lookInterval
		}
		s.tellDog()
		timer.Reset(min(stopBy, lookInterval))
		select {
		case <-s.unwatched:
			s.startDog(10 * moment)
		case <-s.dog.Gone():
			s.Remark("the watchdog of the command was killed; starting another")
			s.dog.Close()
			s.dog, s.unwatched = nil, time.After(moment)
		case <-s.process.Done():
			return s.ended()
		case <-s.Hold.Lost():
			grace := s.graceAfterLoss()
			s.dog.Until(grace)
			s.stop(s.lost()+"; stopping the command", grace, nil)
			return Lost, 0
		case <-timeout:
			why := fmt.Sprintf("the command under lock %q has run for %v; stopping it", s.Hold.Name(), s.Timeout)
			s.stop(why, s.KillAfter, s.Hold.Lost())
			return TimedOut, 0
		case sig := <-s.Signals.C():
			s.forward(sig)
		case sig := <-s.process.Stopped():
			// kill %1 of a shell sends TERM and then CONT. A command that was stopped because it reads from the terminal is so
			// again at once, and we must not stop too before TERM has arrived: it would be lost on both.
			if s.process.WantsToStop(sig) {
				s.stoppedBy, s.toSuspend = sig, time.After(time.Until(s.continued.Add(settling)))
			}
		case <-s.toSuspend:
			s.toSuspend = nil
			if s.process.WantsToStop(s.stoppedBy) { // it may have come to the foreground meanwhile
				s.suspended = true
				s.process.Suspend()
			}
		case attempt := <-s.Renewals:
			s.lastErr = attempt.Err
		case <-timer.C:
		}
	}
}

// stopBy returns when the command has to be told to end if nothing more is heard from the store: early enough to kill
// it, on a busy machine, before the lock may be somebody else's.
func (s *supervisor) stopBy() time.Time {
	return s.Hold.Deadline().Add(-s.KillAfter - busyTime(s.TTL))
}

// ended returns how a command that has ended has come out.
func (s *supervisor) ended() (Outcome, int) {
	code := s.process.ExitCode()
	if s.Hold.Valid() {
		return Ended, code
	}
	<-s.Hold.Lost() // it is on its way
	s.Say(fmt.Sprintf("%s; the command had ended by then, with exit code %d", s.lost(), code))
	return Lost, 0
}

// forward passes a signal on to the command. One that asks to be suspended suspends both.
func (s *supervisor) forward(sig os.Signal) {
	if child.Stops(sig) {
		s.suspended, s.toSuspend = true, nil
		s.process.AskToStop(min(preparation, time.Until(s.stopBy())), s.Hold.Lost())
		s.tellDog() // there may have been renewals
		s.process.Suspend()
		return
	}
	s.process.Signal(sig)
	if child.Ends(sig) && !s.suspended { // one that is stopped would not notice
		s.toSuspend = nil
		s.resume()
	}
}

func (s *supervisor) resume() {
	s.suspended, s.continued = false, time.Now()
	s.process.Resume()
}

// startDog starts the watchdog. If that fails it is tried again after a pause.
func (s *supervisor) startDog(pause time.Duration) {
	var err error
	s.unwatched = nil
	if s.dog, err = watchdog.Start(s.Charge, time.Until(s.Hold.Deadline())); err != nil {
		s.Remark(err.Error())
		s.unwatched = time.After(pause)
	}
}

// tellDog tells the watchdog until when the command may run.
func (s *supervisor) tellDog() { s.dog.Until(time.Until(s.Hold.Deadline())) }

// stop ends the command, and says why. It does not wait for somebody to read that: a terminal may be held with ^S, and a
// pipe be full.
func (s *supervisor) stop(why string, grace time.Duration, hurry <-chan struct{}) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		s.Say(why)
	}()
	s.process.Stop(s.StopSignal, grace, hurry)
	s.process.ExitCode()
	s.dog.Close() // nothing is left to watch while we wait to be heard
	select {
	case <-said:
	case <-time.After(time.Second):
	}
}

// graceAfterLoss is how long a command may take to end after its lock was lost. None if the time is up, because that
// means that all the time there was for ending has passed while we, or the machine, stood still.
func (s *supervisor) graceAfterLoss() time.Duration {
	if lost, ok := errors.AsType[*stile.LostError](s.Hold.Err()); ok && lost.Reason == stile.LostDeadline {
		return 0
	}
	return s.KillAfter
}

// atRisk says why the command is stopped though the lock is still held.
func (s *supervisor) atRisk() string {
	return fmt.Sprintf("lost contact with the store%s; stopping the command before lock %q expires",
		s.Because(s.lastErr), s.Hold.Name())
}

// lost says why the lock is not held any more.
func (s *supervisor) lost() string {
	lost, ok := errors.AsType[*stile.LostError](s.Hold.Err())
	switch {
	case !ok:
		return fmt.Sprintf("lock %q was lost", s.Hold.Name())
	case lost.Reason == stile.LostDeadline:
		return fmt.Sprintf("lock %q expired: it was not renewed in time%s", lost.Name, s.Because(lost.Err))
	default:
		return fmt.Sprintf("lock %q was broken, or its lease expired", lost.Name)
	}
}
