package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/storeurl"
)

// lock is a lock that is held for a command, with everything needed to hold it.
type lock struct {
	stdio        Stdio
	verbose      bool
	opened       *storeurl.Conn
	client       *stile.Client
	renewals     supervise.Renewals
	ttl          time.Duration
	hold         *stile.Hold // nil before and after the hold
	obtained     time.Time
	killAfter    time.Duration // time that the command has to end before the hold's deadline
	lossReported bool          // the user was told that the lock is lost or is about to be
}

// acquire takes the lock. A signal that would end the process ends the wait. On failure everything
// is closed.
func (r *run) acquire(ctx context.Context, signals *child.Signals, owner stile.Owner) (*lock, error) {
	waiting, listened := untilInterrupted(ctx, signals)
	l, err := r.take(waiting, owner)
	listened()
	if interrupted, ok := errors.AsType[*interruption](context.Cause(waiting)); ok {
		if err == nil {
			l.close()
		}
		return nil, &exit{Code: child.ExitCodeFor(interrupted.signal)}
	}
	return l, err
}

func (r *run) take(ctx context.Context, owner stile.Owner) (_ *lock, err error) {
	l := &lock{stdio: r.stdio, verbose: r.verbose, ttl: time.Duration(r.ttl), renewals: supervise.NewRenewals()}
	if l.opened, err = r.stdio.open(ctx, r.store); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if caps := l.opened.Store.Capabilities(); l.ttl < caps.MinTTL || l.ttl > min(caps.MaxTTL, stile.MaxTTL) {
		return nil, fmt.Errorf("--ttl %s: this store allows %s to %s", brief(l.ttl), brief(caps.MinTTL), brief(min(caps.MaxTTL, stile.MaxTTL)))
	}
	if r.store.url == "mem:" && !r.quiet {
		r.stdio.say("mem: is private to this process: the lock excludes no other process")
	}
	hooks := stile.Hooks{SessionRenewed: l.renewals.Note}
	if l.client, err = stile.New(l.opened.Store, &stile.Options{TTL: l.ttl, Owner: owner, Hooks: hooks}); err != nil {
		return nil, err
	}
	began := time.Now()
	if l.hold, err = r.obtain(ctx, l.client); err != nil {
		return nil, err
	}
	l.obtained = time.Now()
	if l.killAfter, err = r.killAfterUnder(l.hold.Terms()); err != nil { // the session may be a later one, with other terms
		return nil, err
	}
	l.report("lock %q acquired after %v, token %d", r.name, round(l.obtained.Sub(began)), l.hold.Token())
	return l, nil
}

// killAfterUnder returns how long the command may take to end under a session with these terms. A
// store may end a session early, on ZooKeeper by a third of the TTL. Less time is left to share
// then: with the default of a quarter of the TTL, the command would be stopped before the client
// leaves a server that hangs for another one; with three eighths, even before the first renewal. So
// the default is smaller on such a store, and a value that the user has set too large is an error.
func (r *run) killAfterUnder(granted store.Terms) (time.Duration, error) {
	certain := supervise.Certain(granted)
	maxKillAfter, chosen := supervise.MaxKillAfter(certain), time.Duration(r.killAfter)
	switch {
	case !r.killSet:
		return supervise.DefaultKillAfter(min(certain, time.Duration(r.ttl))), nil
	case chosen > maxKillAfter:
		return 0, fmt.Errorf("--kill-after %s is too long for --ttl %s on this store, which may end a session after %s: "+
			"use at most %s, or a longer --ttl", brief(chosen), brief(granted.TTL), brief(round(certain)), brief(maxKillAfter.Truncate(time.Millisecond)))
	}
	return chosen, nil
}

// obtain takes the lock as the flags say. It does not wait for a lock under which the command could
// not be stopped in time.
func (r *run) obtain(ctx context.Context, client *stile.Client) (*stile.Hold, error) {
	if r.nonblock || r.waitSet && r.wait == 0 {
		if err := r.checkTerms(ctx, client); err != nil {
			return nil, err
		}
		hold, err := client.Mutex(r.name).TryLock(ctx)
		if errors.Is(err, stile.ErrHeld) {
			err = r.notObtained(heldError(err))
		}
		return hold, err
	}
	if !r.waitSet {
		return r.waitFor(ctx, client)
	}
	within, cancel := context.WithTimeout(ctx, time.Duration(r.wait))
	defer cancel()
	hold, err := r.waitFor(within, client)
	// The store's own attempts have deadlines too; those are not -w.
	if errors.Is(err, context.DeadlineExceeded) && within.Err() != nil && ctx.Err() == nil {
		err = r.waitTimeoutError(ctx, client, err)
	}
	return hold, err
}

func (r *run) checkTerms(ctx context.Context, client *stile.Client) error {
	granted, err := client.Terms(ctx)
	if err == nil {
		_, err = r.killAfterUnder(granted)
	}
	return err
}

// waitFor waits for the lock and shows the user who holds it.
func (r *run) waitFor(ctx context.Context, client *stile.Client) (*stile.Hold, error) {
	if err := r.checkTerms(ctx, client); err != nil {
		return nil, err
	}
	place, err := client.Mutex(r.name).Join(ctx)
	if err != nil {
		return nil, err
	}
	if !r.quiet {
		r.showWaiting(ctx, client, place)
	}
	return place.Wait(ctx)
}

// waitTimeoutError returns the error for a wait that -w ended. It says who holds the lock, or what is
// wrong with the store if that was the cause.
func (r *run) waitTimeoutError(ctx context.Context, client *stile.Client, err error) error {
	trouble := reasonOf(err) // more than the deadline if the entry could not be added
	// As long as opening a store may take: on a busy machine that takes seconds, and a slow reply
	// must not look like an outage.
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	line, unread := client.Line(asking, r.name)
	within := brief(time.Duration(r.wait))
	switch {
	case unread != nil:
		return fmt.Errorf("could not acquire lock %q within %s, and the store does not say who holds it: %w", r.name, within, reasonOf(unread))
	case trouble != context.DeadlineExceeded && len(line.Holders) == 0:
		return fmt.Errorf("could not acquire lock %q within %s, though nobody holds it: %w", r.name, within, trouble)
	}
	return r.notObtained(fmt.Errorf("could not acquire lock %q within %s: %s", r.name, within, holderOf(line)))
}

// notObtained returns the error for a lock that another client holds.
func (r *run) notObtained(err error) error {
	if r.quiet {
		err = nil
	}
	return &exit{int(r.conflict), err}
}

// heldError says who holds a lock that a try found held.
func heldError(err error) error {
	held, ok := errors.AsType[*stile.HeldError](err)
	if !ok || held.Holder == nil || held.ClosedFor > 0 {
		return err
	}
	return fmt.Errorf("lock %q is held by %s", held.Name, holderName(*held.Holder))
}

// keepFor keeps the lock closed for the rest of --min-hold. If the store can do that by itself, it
// returns at once; otherwise when the time is over or a signal ends it.
func (l *lock) keepFor(signals *child.Signals, rest time.Duration) {
	if rest <= 0 || l.hold.Err() != nil {
		return
	}
	l.report("keeping lock %q for another %v", l.hold.Name(), round(rest))
	ctx, cancel := context.WithTimeout(context.Background(), l.closeTimeout())
	defer cancel()
	err := l.hold.ReleaseAfter(ctx, rest)
	if errors.Is(err, stile.ErrUnsupported) {
		l.waitOut(signals, rest)
		return
	}
	if err != nil && !l.lossReported {
		l.stdio.say(l.notReleased(err))
	}
	l.hold = nil
}

// waitOut waits while the lock is kept closed.
func (l *lock) waitOut(signals *child.Signals, rest time.Duration) {
	progress := newProgress(l.stdio)
	defer progress.clear()
	over := time.After(rest)
	until := time.Now().Add(rest)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-l.hold.Lost():
			return
		case sig := <-signals.C():
			if child.Ends(sig) {
				return
			}
		case <-tick.C:
			progress.show(fmt.Sprintf("the command has ended; keeping lock %q for another %v", l.hold.Name(), round(time.Until(until))))
		}
	}
}

// close releases the lock, if it is held, and closes everything. Errors are printed and do not
// change the exit code.
func (l *lock) close() {
	ctx, cancel := context.WithTimeout(context.Background(), l.closeTimeout())
	defer cancel()
	if l.hold != nil {
		err := l.hold.Release(ctx)
		switch {
		case err == nil:
			l.report("lock %q released after %v", l.hold.Name(), round(time.Since(l.obtained)))
		case !l.lossReported:
			l.stdio.say(l.notReleased(err))
		}
	}
	if l.client != nil {
		_ = l.client.Close(ctx) // otherwise the TTL ends what is left in the store
	}
	_ = l.opened.Close()
}

// closeTimeout returns how long the store may take to confirm the end of the session. It is short if
// nothing is held any more, or if the store does not seem reachable.
func (l *lock) closeTimeout() time.Duration {
	if l.lossReported {
		return time.Second
	}
	return 3 * time.Second
}

// notReleased says that the lock may not be released. It leaves out the library's remark that the
// release continues in the background, because this process ends.
func (l *lock) notReleased(err error) string {
	switch {
	case errors.Is(err, stile.ErrLost):
		return fmt.Sprintf("lock %q was broken, or its lease expired, before it was released", l.hold.Name())
	case errors.Is(err, stile.ErrNotKnown):
		return fmt.Sprintf("lock %q is released, but may have been lost before: the store did not answer at first", l.hold.Name())
	default:
		return fmt.Sprintf("could not confirm the release of lock %q%s; it may stay held for up to %s",
			l.hold.Name(), l.because(reasonOf(err)), brief(l.ttl))
	}
}

// report prints a message if -v is set.
func (l *lock) report(format string, args ...any) {
	if l.verbose {
		l.stdio.say(fmt.Sprintf(format, args...))
	}
}

// remark is report without waiting for the output: ^S can stop a terminal.
func (l *lock) remark(text string) {
	if l.verbose {
		go l.stdio.say(text)
	}
}

// because puts an error of the store into parentheses: the whole text with -v, otherwise the part
// that the user can act on.
func (l *lock) because(err error) string {
	switch {
	case err == nil:
		return ""
	case l.verbose:
		return " (" + textOf(err) + ")"
	case shortCause(err) == "":
		return ""
	default:
		return " (" + shortCause(err) + ")"
	}
}

// shortCause describes in a few words why a store was not reached; "" if there is no short description.
func shortCause(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	text := err.Error() // not all client libraries keep the system's error
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
