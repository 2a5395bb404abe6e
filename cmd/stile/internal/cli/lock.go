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

// lock is a lock that is held for a command, and what it takes to hold it.
type lock struct {
	stdio     Stdio
	verbose   bool
	opened    *storeurl.Conn
	client    *stile.Client
	renewals  supervise.Renewals
	ttl       time.Duration
	hold      *stile.Hold // nil if there is none, or none any more
	obtained  time.Time
	killAfter time.Duration // what the command may take to end under the hold's session
	lossSaid  bool          // the user knows that the lock is lost, or as good as lost
}

// acquire takes the lock. A signal that ends a program ends the waiting. If it fails, everything is closed.
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
		r.stdio.say("mem: is the memory of this process alone: this lock keeps nobody out")
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
	if l.killAfter, err = r.killAfterUnder(l.hold.Terms()); err != nil { // of a session that followed a lost one
		return nil, err
	}
	l.report("lock %q acquired after %v, token %d", r.name, round(l.obtained.Sub(began)), l.hold.Token())
	return l, nil
}

// killAfterUnder returns how long a command may take to end under a session that was granted these terms. A store may end it
// early, by a third of its TTL on ZooKeeper. With so much less to share, a command that takes its quarter of the TTL to end
// would be told to before a server that hangs is given up for another; and one that takes three eighths before the
// first renewal. So there is less if the user has not chosen, and an error if the user has chosen too much.
func (r *run) killAfterUnder(granted store.Terms) (time.Duration, error) {
	certain := supervise.Certain(granted)
	longest, chosen := supervise.MaxKillAfter(certain), time.Duration(r.killAfter)
	switch {
	case !r.killSet:
		return supervise.DefaultKillAfter(min(certain, time.Duration(r.ttl))), nil
	case chosen > longest:
		return 0, fmt.Errorf("--kill-after %s is too long for --ttl %s on this store, which may end a session after %s: "+
			"use at most %s, or a longer --ttl", brief(chosen), brief(granted.TTL), brief(round(certain)), brief(longest.Truncate(time.Millisecond)))
	}
	return chosen, nil
}

// obtain takes the lock as the flags say. It does not wait for a lock under which the command could not be stopped in time.
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
	// An attempt to reach the store has deadlines of its own.
	if errors.Is(err, context.DeadlineExceeded) && within.Err() != nil && ctx.Err() == nil {
		err = r.waitedEnough(ctx, client, err)
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

// waitFor waits for the lock and shows the user who has it.
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

// waitedEnough makes an error of having waited for as long as -w says. It tells who has the lock, or what was wrong with the
// store if that is why it was not obtained.
func (r *run) waitedEnough(ctx context.Context, client *stile.Client, err error) error {
	trouble := reasonOf(err) // more than the deadline, if the store has not let us join the line
	// As long as opening a store may take. On a busy machine it does take seconds, and that the store was slow to tell must not look
	// like an outage.
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

// notObtained is the error of a lock that somebody else has.
func (r *run) notObtained(err error) error {
	if r.quiet {
		err = nil
	}
	return &exit{int(r.conflict), err}
}

// heldError says who holds a lock that was tried for.
func heldError(err error) error {
	held, ok := errors.AsType[*stile.HeldError](err)
	if !ok || held.Holder == nil || held.ClosedFor > 0 {
		return err
	}
	return fmt.Errorf("lock %q is held by %s", held.Name, holderName(*held.Holder))
}

// keepFor keeps the lock closed for the rest of the time that it was wanted for at least. Where the store can do that
// alone it returns at once, otherwise when the time is over, or a signal says that it has been enough.
func (l *lock) keepFor(signals *child.Signals, rest time.Duration) {
	if rest <= 0 || l.hold.Err() != nil {
		return
	}
	l.report("keeping lock %q for another %v", l.hold.Name(), round(rest))
	ctx, cancel := context.WithTimeout(context.Background(), l.farewell())
	defer cancel()
	err := l.hold.ReleaseAfter(ctx, rest)
	if errors.Is(err, stile.ErrUnsupported) {
		l.waitOut(signals, rest)
		return
	}
	if err != nil && !l.lossSaid {
		l.stdio.say(l.notReleased(err))
	}
	l.hold = nil
}

// waitOut waits while the lock is kept.
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

// close lets the lock go, if it is held, and everything else. What goes wrong then is said, and changes nothing.
func (l *lock) close() {
	ctx, cancel := context.WithTimeout(context.Background(), l.farewell())
	defer cancel()
	if l.hold != nil {
		err := l.hold.Release(ctx)
		switch {
		case err == nil:
			l.report("lock %q released after %v", l.hold.Name(), round(time.Since(l.obtained)))
		case !l.lossSaid:
			l.stdio.say(l.notReleased(err))
		}
	}
	if l.client != nil {
		_ = l.client.Close(ctx) // what is left in the store goes with the TTL
	}
	_ = l.opened.Close()
}

// farewell is how long the store may take to confirm that we are gone. It is short if there is nothing to let go of any
// more, or the store does not seem to be there.
func (l *lock) farewell() time.Duration {
	if l.lossSaid {
		return time.Second
	}
	return 3 * time.Second
}

// notReleased says that the lock may not have been released. The library's error says that it goes on trying; but we end.
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

// report says something if the user wants to know everything.
func (l *lock) report(format string, args ...any) {
	if l.verbose {
		l.stdio.say(fmt.Sprintf(format, args...))
	}
}

// remark says something if the user wants to know everything. It does not wait for that to be read: a terminal may be held with
// ^S.
func (l *lock) remark(text string) {
	if l.verbose {
		go l.stdio.say(text)
	}
}

// because puts an error of the store into parentheses: all of it for those who want to know everything, for others what they
// can do something about.
func (l *lock) because(err error) string {
	switch {
	case err == nil:
		return ""
	case l.verbose:
		return " (" + textOf(err) + ")"
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
