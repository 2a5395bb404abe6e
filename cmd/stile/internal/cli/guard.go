package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
	"github.com/stilelock/stile/storeurl"
)

// guard is a lock that is held for a command, and what it takes to hold it.
type guard struct {
	opened     *storeurl.Opened
	client     *stile.Client
	hold       *stile.Hold
	obtained   time.Time
	ttl        time.Duration
	killAfter  time.Duration // how long after the signal a command that is being stopped is killed
	signal     os.Signal
	runTimeout time.Duration // zero is none
	verbose    bool
	renewed    chan stile.Renewed // the last attempt at a renewal, until it is looked at
	told       bool               // the user knows that the lock is lost, or as good as lost
	dog        *watchdog.Watchdog // what takes longer than a moment is watched by another process too
	charge     watchdog.Charge    // what that has to know
}

// noteRenewal is a hook: it must not block.
func (g *guard) noteRenewal(r stile.Renewed) {
	select {
	case <-g.renewed: // nobody has looked at the one before
	default:
	}
	select {
	case g.renewed <- r:
	default: // somebody else was faster: as good
	}
}

// mostKillAfter is how much of a TTL, less what a store may take back of it, can be left for stopping a command. Renewals are
// due when three tenths of it have passed and may take some time; what is lost is lost after nine tenths.
func mostKillAfter(ttl time.Duration) time.Duration { return min(ttl, stile.MaxTTL) * 3 / 8 }

// usualKillAfter is how much of it is left if nobody has asked for more or less.
func usualKillAfter(ttl time.Duration) time.Duration { return min(5*time.Second, ttl/4) }

// leastTTL is the shortest TTL, in whole seconds, that leaves so much time for stopping a command.
func leastTTL(killAfter time.Duration) time.Duration {
	return (killAfter*8/3 + time.Second - 1).Truncate(time.Second)
}

// stopBy returns when the command has to be told to end if nothing more is heard from the store: early enough to kill
// it, on a busy machine, before the lock may be somebody else's.
func (g *guard) stopBy() time.Time {
	return g.hold.Deadline().Add(-g.killAfter - busyTime(g.ttl))
}

// busyTime is what a busy machine may need besides.
func busyTime(ttl time.Duration) time.Duration { return usualKillAfter(ttl) / 16 }

// preparation is how long a command that is to be suspended may take to put its screen in order. One that does not handle TSTP
// stops at once; one that ignores it keeps its user waiting so long.
const preparation = 5 * time.Second

// supervise runs the command, and ends it if the lock cannot be kept. It returns the exit code. An error means that the
// command could not be run.
func (g *guard) supervise(stdio Stdio, signals *child.Signals, c child.Command) (int, error) {
	if !g.hold.Valid() { // we have stood still since it was obtained, stopped perhaps, or writing to a terminal held with ^S
		<-g.hold.Lost() // it is on its way
		g.told = true
		stdio.say(g.lost() + "; the command was not run")
		return exitLost, nil
	}
	p, err := child.Start(c, signals)
	if err != nil {
		return 0, err
	}
	// Timers stand still while the machine is suspended, so that they would be late afterwards: look again every so often.
	const longest = time.Second
	timer := time.NewTimer(longest)
	defer timer.Stop()

	defer func() { g.dog.Close() }()
	g.charge.Tree = p.Tree()
	moment := min(time.Second, g.ttl/4)
	unwatched := time.After(moment)

	var timeout <-chan time.Time
	if g.runTimeout > 0 {
		timeout = time.After(g.runTimeout)
	}
	var lastErr error
	suspended := false // the command is, because we were; that it is past stopBy does no harm then
	var continued time.Time
	var toSuspend <-chan time.Time
	var stoppedBy syscall.Signal
	for {
		stopBy := time.Until(g.stopBy())
		switch {
		case suspended && stopBy > 0 && g.hold.Valid():
			suspended, continued = false, time.Now()
			p.Resume()
		case !g.hold.Valid():
			<-g.hold.Lost() // it is on its way: we have stood still
		case !suspended && stopBy <= 0:
			g.told = true
			g.stop(stdio, p, g.atRisk(lastErr), g.killAfter, g.hold.Lost())
			return exitLost, nil
		}
		if suspended {
			stopBy = longest
		}
		g.dog.Until(time.Until(g.hold.Deadline()))
		timer.Reset(min(stopBy, longest))
		select {
		case <-unwatched:
			unwatched = g.watch(stdio, 10*moment)
		case <-g.dog.Gone():
			g.remark(stdio, "the watchdog of the command was killed; starting another")
			g.dog.Close()
			g.dog, unwatched = nil, time.After(moment)
		case <-p.Done():
			code := p.ExitCode()
			if !g.hold.Valid() {
				<-g.hold.Lost() // it is on its way
				g.told = true
				stdio.say(fmt.Sprintf("%s; the command had ended by then, with exit code %d", g.lost(), code))
				return exitLost, nil
			}
			return code, nil
		case <-g.hold.Lost():
			g.told = true
			g.dog.Until(g.graceAfterLoss())
			g.stop(stdio, p, g.lost()+"; stopping the command", g.graceAfterLoss(), nil)
			return exitLost, nil
		case <-timeout:
			why := fmt.Sprintf("the command under lock %q has run for %v; stopping it", g.hold.Name(), g.runTimeout)
			g.stop(stdio, p, why, g.killAfter, g.hold.Lost())
			return exitTimeout, nil
		case sig := <-signals.C():
			if child.Stops(sig) {
				suspended, toSuspend = true, nil
				p.AskToStop(min(preparation, time.Until(g.stopBy())), g.hold.Lost())
				g.dog.Until(time.Until(g.hold.Deadline())) // there may have been renewals
				p.Suspend()
				break
			}
			p.Signal(sig)
			if child.Ends(sig) && !suspended { // one that is stopped would not notice
				continued, toSuspend = time.Now(), nil
				p.Resume()
			}
		case sig := <-p.Stopped():
			// kill %1 of a shell sends TERM and then CONT. A command that was stopped because it reads from the terminal is so
			// again at once, and we must not stop too before TERM has arrived: it would be lost on both.
			if p.WantsToStop(sig) {
				stoppedBy, toSuspend = sig, time.After(time.Until(continued.Add(settling)))
			}
		case <-toSuspend:
			toSuspend = nil
			if p.WantsToStop(stoppedBy) { // it may have come to the foreground meanwhile
				suspended = true
				p.Suspend()
			}
		case r := <-g.renewed:
			lastErr = r.Err
		case <-timer.C:
		}
	}
}

// settling is how long the signals that have come with CONT may take to arrive, on a busy machine too.
const settling = time.Second

// watch starts the watchdog. If that fails, it returns when to try again.
func (g *guard) watch(stdio Stdio, pause time.Duration) (again <-chan time.Time) {
	var err error
	if g.dog, err = watchdog.Start(g.charge, time.Until(g.hold.Deadline())); err != nil {
		g.remark(stdio, err.Error())
		return time.After(pause)
	}
	return nil
}

// remark says something if the user wants to know everything. It does not wait for that to be read: a terminal may be held with
// ^S.
func (g *guard) remark(stdio Stdio, text string) {
	if g.verbose {
		go stdio.say(text)
	}
}

// stop ends the command, and says why. It does not wait for somebody to read that: a terminal may be held with ^S, and a
// pipe be full.
func (g *guard) stop(stdio Stdio, p *child.Process, why string, grace time.Duration, hurry <-chan struct{}) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		stdio.say(why)
	}()
	p.Stop(g.signal, grace, hurry)
	p.ExitCode()
	g.dog.Close() // nothing is left to watch while we wait to be heard
	select {
	case <-said:
	case <-time.After(time.Second):
	}
}

// atRisk says why the command is stopped though the lock is still held.
func (g *guard) atRisk(lastErr error) string {
	return fmt.Sprintf("lost contact with the store%s; stopping the command before lock %q expires", g.because(lastErr), g.hold.Name())
}

// lost says why the lock is not held any more.
func (g *guard) lost() string {
	lost, ok := errors.AsType[*stile.LostError](g.hold.Err())
	switch {
	case !ok:
		return fmt.Sprintf("lock %q was lost", g.hold.Name())
	case lost.Reason == stile.LostDeadline:
		return fmt.Sprintf("lock %q expired: it was not renewed in time%s", lost.Name, g.because(lost.Err))
	default:
		return fmt.Sprintf("lock %q was broken, or its lease expired", lost.Name)
	}
}

// because puts an error of the store into parentheses: all of it for those who want to know everything, for others what they
// can do something about.
func (g *guard) because(err error) string {
	switch {
	case err == nil:
		return ""
	case g.verbose:
		return " (" + err.Error() + ")"
	case gist(err) == "":
		return ""
	default:
		return " (" + gist(err) + ")"
	}
}

// gist says in a few words why a store was not reached; nothing if that is not simply put.
func gist(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	text := err.Error() // not every client of a store passes on what the system has said
	for _, known := range []string{
		"connection refused", "connection reset by peer", "no route to host", "network is unreachable", "no such host",
		"broken pipe", "no such file or directory", "permission denied", "no answer",
	} {
		if strings.Contains(text, known) {
			return known
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || strings.Contains(text, context.DeadlineExceeded.Error()) {
		return "no answer"
	}
	return ""
}

// graceAfterLoss is how long a command may take to end after its lock was lost. None if the time is up, because that
// means that all the time there was for ending has passed while we, or the machine, stood still.
func (g *guard) graceAfterLoss() time.Duration {
	if lost, ok := errors.AsType[*stile.LostError](g.hold.Err()); ok && lost.Reason == stile.LostDeadline {
		return 0
	}
	return g.killAfter
}

// keepFor keeps the lock closed for the rest of the time that it was wanted for at least. Where the store can do that
// alone it returns at once, otherwise when the time is over, or a signal says that it has been enough.
func (g *guard) keepFor(stdio Stdio, signals *child.Signals, rest time.Duration) {
	if rest <= 0 || g.hold.Err() != nil {
		return
	}
	if g.verbose {
		stdio.say(fmt.Sprintf("keeping lock %q for another %v", g.hold.Name(), round(rest)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.farewell())
	defer cancel()
	err := g.hold.ReleaseAfter(ctx, rest)
	if errors.Is(err, stile.ErrUnsupported) {
		g.waitFor(stdio, signals, rest)
		return
	}
	if err != nil && !g.told {
		stdio.say(g.notReleased(err))
	}
	g.hold = nil
}

// notReleased says that the lock may not have been released. The library's error says that it goes on trying; but we end.
func (g *guard) notReleased(err error) string {
	switch {
	case errors.Is(err, stile.ErrLost):
		return fmt.Sprintf("lock %q was broken, or its lease expired, before it was released", g.hold.Name())
	case errors.Is(err, stile.ErrNotKnown):
		return fmt.Sprintf("lock %q is released, but may have been lost before: the store did not answer at first", g.hold.Name())
	default:
		return fmt.Sprintf("could not confirm the release of lock %q%s; it may stay held for up to %s",
			g.hold.Name(), g.because(err), brief(g.ttl))
	}
}

// waitFor waits while the lock is kept.
func (g *guard) waitFor(stdio Stdio, signals *child.Signals, rest time.Duration) {
	progress := newProgress(stdio)
	defer progress.clear()
	over := time.After(rest)
	until := time.Now().Add(rest)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-g.hold.Lost():
			return
		case sig := <-signals.C():
			if child.Ends(sig) {
				return
			}
		case <-tick.C:
			progress.show(fmt.Sprintf("the command has ended; keeping lock %q for another %v", g.hold.Name(), round(time.Until(until))))
		}
	}
}

// farewell is how long the store may take to confirm that we are gone. It is short if there is nothing to let go of any
// more, or the store does not seem to be there.
func (g *guard) farewell() time.Duration {
	if g.told {
		return time.Second
	}
	return 3 * time.Second
}

// close lets the lock go, if it is held, and everything else. What goes wrong then is said, and changes nothing.
func (g *guard) close(stdio Stdio) {
	ctx, cancel := context.WithTimeout(context.Background(), g.farewell())
	defer cancel()
	if g.hold != nil {
		err := g.hold.Release(ctx)
		switch {
		case err != nil && !g.told:
			stdio.say(g.notReleased(err))
		case err == nil && g.verbose:
			stdio.say(fmt.Sprintf("lock %q released after %v", g.hold.Name(), round(time.Since(g.obtained))))
		}
	}
	if g.client != nil {
		_ = g.client.Close(ctx) // what is left in the store goes with the TTL
	}
	_ = g.opened.Close()
}
