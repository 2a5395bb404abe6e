package supervise

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/uptime"
	"github.com/stilelock/stile/cmd/stile/internal/validity"
	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
)

// A Job is a command and the lock to run it under.
type Job struct {
	// Command is the command, and Signals are the signals to forward to it.
	Command child.Command
	Signals *child.Signals
	// Hold is the lock, and Lock names it: lock "a", or locks "a" and "b". TTL is the one that was
	// requested, and Renewals reports the client's renewals.
	Hold     Hold
	Lock     string
	TTL      time.Duration
	Renewals Renewals
	// Validity tells the command's processes until when the lock is held; it may be nil.
	Validity *validity.Record
	// StopSignal asks the command to end. It is killed KillAfter later, which is at most
	// [MaxKillAfter] of the [GuaranteedTTL].
	StopSignal os.Signal
	KillAfter  time.Duration
	// Timeout is how long the command may run. Zero means no limit.
	Timeout time.Duration
	// Target describes the lock to a watchdog.
	Target watchdog.Target
	// Say shows the user a message. It may block, because a terminal may be held with ^S. Report
	// shows a message for verbose mode and does not block. FormatCause formats an error of the store
	// as a clause in parentheses.
	Say         func(text string)
	Report      func(text string)
	FormatCause func(err error) string
}

// A Hold is a [stile.Hold] or a [stile.MultiHold].
type Hold interface {
	Valid() bool
	Deadline() time.Time
	Lost() <-chan struct{}
	Err() error
}

// An Outcome is how a command under a lock ended.
type Outcome int

const (
	// Ended means that the command ended by itself while the lock was held.
	Ended Outcome = iota
	// Lost means that the lock was lost, or at risk for too long. The command was stopped or not
	// run at all. The user has been informed.
	Lost
	// TimedOut means that the command exceeded its timeout and was stopped.
	TimedOut
)

// A Result is the outcome of a command.
type Result struct {
	Outcome Outcome
	// ExitCode is that of a command that has [Ended].
	ExitCode int
	// Interrupted is true if the command was asked to end by INT, QUIT or TERM, which were forwarded to
	// it, or was ended by a forwarded HUP. Other commands read their configuration again after a HUP.
	Interrupted bool
}

// Renewals carries the last renewal attempt from a client's hook to the supervisor. Create one with
// [NewRenewals].
type Renewals chan stile.RenewalEvent

// NewRenewals returns an empty Renewals.
func NewRenewals() Renewals { return make(Renewals, 1) }

// Note records an attempt. It is called by the hook and does not block.
func (r Renewals) Note(attempt stile.RenewalEvent) {
	select {
	case <-r: // replaces an attempt that was not received
	default:
	}
	select {
	case r <- attempt:
	default: // a concurrent call was faster
	}
}

// Run runs the command, and stops it if the lock cannot be kept. An error means that the command
// could not be started.
func Run(j Job) (Result, error) {
	s := supervisor{Job: j}
	defer s.Validity.Until(0)
	s.publishDeadline()  // before the command can ask for it
	if !s.Hold.Valid() { // this process was stopped since it got the lock, or blocked on a terminal held with ^S
		<-s.Hold.Lost() // closes promptly once the hold is not valid
		s.Say(s.lostText() + "; the command was not run")
		return Result{Outcome: Lost}, nil
	}
	var err error
	if s.process, err = child.Start(j.Command, j.Signals); err != nil {
		return Result{}, err
	}
	outcome, code := s.watch()
	hungUp := s.hangup && code == child.ExitCodeFor(syscall.SIGHUP)
	return Result{outcome, code, s.interrupted || hungUp}, nil
}

// supervisor watches one command. It is used by one goroutine.
type supervisor struct {
	Job
	process     *child.Process
	lastErr     error // of the last renewal attempt; nil if it was confirmed
	interrupted bool  // INT, QUIT or TERM was forwarded
	hangup      bool  // HUP was forwarded

	watchdog    *watchdog.Watchdog // nil at first: a short command needs none
	watchdogDue <-chan time.Time   // fires when a watchdog is to be started; nil if there is one

	suspended bool // the command is suspended because we were; passing stopBy is harmless then
	continued time.Time
	stoppedBy syscall.Signal   // what stopped the command, if toSuspend is set
	toSuspend <-chan time.Time // fires when we are to stop too
}

// watch watches the command and returns when it has ended.
func (s *supervisor) watch() (Outcome, int) {
	timer := time.NewTimer(clockInterval)
	defer timer.Stop()
	defer func() { s.watchdog.Close() }()
	s.Target.Tree = s.process.Tree()
	interval := min(time.Second, s.TTL/4)
	s.watchdogDue = time.After(interval)
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
			<-s.Hold.Lost() // closes promptly; its timers ran late because we were stopped
		case !s.suspended && stopBy <= 0:
			s.stop(s.atRiskText(), s.KillAfter, s.Hold.Lost())
			return Lost, 0
		}
		if s.suspended {
			stopBy = clockInterval
		}
		s.publishDeadline()
		timer.Reset(min(stopBy, clockInterval))
		select {
		case <-s.watchdogDue:
			s.startWatchdog(10 * interval)
		case <-s.watchdog.Gone():
			s.Report("the watchdog of the command was killed; starting another")
			s.watchdog.Close()
			s.watchdog, s.watchdogDue = nil, time.After(interval)
		case <-s.process.Done():
			return s.ended()
		case <-s.Hold.Lost():
			s.Validity.Until(0)
			grace := s.graceAfterLoss()
			s.watchdog.Until(uptime.Now() + grace)
			s.stop(s.lostText()+"; stopping the command", grace, nil)
			return Lost, 0
		case <-timeout:
			reason := fmt.Sprintf("the command under %s has run for %v; stopping it", s.Lock, s.Timeout)
			s.stop(reason, s.KillAfter, s.Hold.Lost())
			return TimedOut, 0
		case sig := <-s.Signals.C():
			s.forward(sig)
		case sig := <-s.process.Stopped():
			// kill %1 of a shell sends TERM and then CONT. A command that stopped because it reads
			// from the terminal stops again at once, and we must not stop too before TERM has
			// arrived: neither would receive it.
			if s.process.WantsToStop(sig) {
				s.stoppedBy, s.toSuspend = sig, time.After(time.Until(s.continued.Add(settleTime)))
			}
		case <-s.toSuspend:
			s.toSuspend = nil
			if s.process.WantsToStop(s.stoppedBy) { // not if the command got the foreground meanwhile
				s.suspended = true
				s.process.Suspend()
			}
		case attempt := <-s.Renewals:
			s.lastErr = attempt.Err
		case <-timer.C:
		}
	}
}

// stopBy returns the time of the stop signal if no renewal is confirmed: early enough to kill the
// command, on a busy machine too, before another holder may be admitted.
func (s *supervisor) stopBy() time.Time {
	return s.Hold.Deadline().Add(-s.KillAfter - busyTime(s.TTL))
}

// ended returns the outcome of a command that has ended.
func (s *supervisor) ended() (Outcome, int) {
	code := s.process.ExitCode()
	if s.Hold.Valid() {
		return Ended, code
	}
	<-s.Hold.Lost() // closes promptly once the hold is not valid
	s.Say(fmt.Sprintf("%s; the command had already ended, with exit code %d", s.lostText(), code))
	return Lost, 0
}

// forward forwards a signal to the command. A signal that asks to suspend suspends both processes.
func (s *supervisor) forward(sig os.Signal) {
	if child.Stops(sig) {
		s.suspended, s.toSuspend = true, nil
		s.process.AskToStop(min(suspendTimeout, time.Until(s.stopBy())), s.Hold.Lost())
		s.publishDeadline() // it may have moved
		s.process.Suspend()
		return
	}
	s.process.Signal(sig)
	s.hangup = s.hangup || sig == syscall.SIGHUP
	s.interrupted = s.interrupted || child.Ends(sig) && sig != syscall.SIGHUP
	if child.Ends(sig) && !s.suspended { // a stopped command does not receive it
		s.toSuspend = nil
		s.resume()
	}
}

func (s *supervisor) resume() {
	s.suspended, s.continued = false, time.Now()
	s.process.Resume()
}

// startWatchdog starts the watchdog. If that fails, it is retried after a pause.
func (s *supervisor) startWatchdog(pause time.Duration) {
	var err error
	s.watchdogDue = nil
	if s.watchdog, err = watchdog.Start(s.Target, uptime.At(s.Hold.Deadline())); err != nil {
		s.Report(err.Error())
		s.watchdogDue = time.After(pause)
	}
}

// publishDeadline sends the hold's deadline to the watchdog, and to the command's processes.
func (s *supervisor) publishDeadline() {
	deadline := uptime.At(s.Hold.Deadline())
	s.watchdog.Until(deadline)
	s.Validity.Until(deadline)
}

// stop stops the command and reports the reason. It waits at most a second longer for the report,
// because a terminal may be held with ^S, and a pipe be full.
func (s *supervisor) stop(reason string, grace time.Duration, hurry <-chan struct{}) {
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		s.Say(reason)
	}()
	s.process.Stop(s.StopSignal, grace, hurry)
	s.process.ExitCode()
	s.watchdog.Close() // the command has ended
	select {
	case <-reported:
	case <-time.After(time.Second):
	}
}

// graceAfterLoss returns how long the command may take to end after the loss. It is zero if the
// deadline has passed: the time for ending has then passed too, while this process or the machine
// stood still.
func (s *supervisor) graceAfterLoss() time.Duration {
	if lost, ok := errors.AsType[*stile.LostError](s.Hold.Err()); ok && lost.Reason == stile.LostDeadline {
		return 0
	}
	return s.KillAfter
}

// atRiskText returns why the command is stopped while the lock is still held.
func (s *supervisor) atRiskText() string {
	return fmt.Sprintf("lost contact with the store%s; stopping the command before %s expires",
		s.FormatCause(s.lastErr), s.Lock)
}

// lostText returns why the lock is no longer held.
func (s *supervisor) lostText() string { return LostText(s.Hold, s.Lock, s.FormatCause) }

// LostText returns why a lock is no longer held. The other arguments are those of a [Job].
func LostText(h Hold, lock string, because func(err error) string) string {
	lost, ok := errors.AsType[*stile.LostError](h.Err())
	switch {
	case !ok:
		return lock + " was lost"
	case lost.Reason == stile.LostDeadline:
		return fmt.Sprintf("lock %q expired: it was not renewed in time%s", lost.Name, because(lost.Err))
	default:
		return fmt.Sprintf("lock %q was broken, or its lease expired", lost.Name)
	}
}
