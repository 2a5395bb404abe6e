package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
	"github.com/stilelock/stile/internal/patience"
	"github.com/stilelock/stile/storeurl"
)

// lock is a lock that is held, or several, with everything needed to hold it.
type lock struct {
	stdio        Stdio
	verbose      bool
	opened       *storeurl.Conn
	client       *stile.Client
	renewals     supervise.Renewals
	ttl          time.Duration
	owner        string // as others see it
	names        []string
	hold         hold // nil before and after the hold
	obtained     time.Time
	lossReported bool // the user was told that the lock is lost or is about to be
}

// acquire takes the lock. A signal that would end the process ends the wait. On failure everything
// is closed.
func (r *request) acquire(ctx context.Context, signals *child.Signals, owner stile.Owner) (*lock, error) {
	// SIGPIPE must not end this process: the entry would stay in the store, and a command would end too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	waiting, listened := untilInterrupted(ctx, signals)
	l, err := r.take(waiting, signals, owner)
	listened()
	if interrupted, ok := errors.AsType[*interruption](context.Cause(waiting)); ok {
		if err == nil {
			l.close()
		}
		return nil, &exit{Code: child.ExitCodeFor(interrupted.signal)}
	}
	return l, err
}

func (r *request) take(ctx context.Context, signals *child.Signals, owner stile.Owner) (_ *lock, err error) {
	l := &lock{
		stdio: r.stdio, verbose: r.verbose, ttl: time.Duration(r.ttl), renewals: supervise.NewRenewals(),
		owner: owner.String(), names: r.names,
	}
	if l.opened, err = r.stdio.open(ctx, r.store); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	signals.Await() // from here on there may be something in the store that a signal must not leave behind
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
	if r.beforeWait != nil {
		if err := r.beforeWait(ctx, l.client); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if l.hold, err = r.obtain(ctx, l.client); err != nil {
		return nil, err
	}
	l.obtained = time.Now()
	if r.accept != nil { // the session may be a later one, with other terms
		if err := r.accept(l.hold.Terms()); err != nil {
			return nil, err
		}
	}
	l.report("%s acquired after %v, %s", l.what(), round(l.obtained.Sub(began)), l.tokens())
	return l, nil
}

// what names the locks.
func (l *lock) what() string { return lockText(l.names...) }

// held describes the locks.
func (l *lock) held(validity string) []held { return heldLocks(l.hold, l.owner, validity) }

// tokens says which tokens the holds have.
func (l *lock) tokens() string {
	var tokens []string
	for _, h := range l.held("") {
		tokens = append(tokens, strconv.FormatUint(h.Token, 10))
	}
	if len(tokens) == 1 {
		return "token " + tokens[0]
	}
	return "tokens " + strings.Join(tokens, ", ")
}

// An interruption is the cause of a wait that was ended by a signal.
type interruption struct{ signal os.Signal }

// Error names the signal.
func (i *interruption) Error() string { return "interrupted by signal: " + i.signal.String() }

// untilInterrupted returns a context that ends with the first signal that would end the process.
// The returned function stops it from receiving signals.
func untilInterrupted(ctx context.Context, signals *child.Signals) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case s := <-signals.C():
				if child.Ends(s) { // other signals are for the command, which has not started yet
					cancel(&interruption{s})
				}
			case <-stopped:
				return
			}
		}
	}()
	return ctx, func() {
		close(stopped)
		<-ended
	}
}

// keepFor keeps the lock closed for the rest of --min-hold. If the store can do that by itself, it
// returns at once; otherwise when the time is over or a signal ends it.
func (l *lock) keepFor(signals *child.Signals, rest time.Duration) {
	if rest <= 0 || l.hold.Err() != nil {
		return
	}
	l.report("keeping %s for another %v", l.what(), round(rest))
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
			progress.show(fmt.Sprintf("the command has ended; keeping %s for another %v", l.what(), round(time.Until(until))))
		}
	}
}

// close releases the lock, if it is held, and closes everything. Errors are printed and do not
// change the exit code.
func (l *lock) close() {
	ctx, cancel := context.WithTimeout(context.Background(), l.closeTimeout())
	defer cancel()
	if l.hold != nil {
		err := l.release(ctx)
		switch {
		case err == nil:
			l.report("%s released after %v", l.what(), round(time.Since(l.obtained)))
		case !l.lossReported:
			l.stdio.say(l.notReleased(err))
		}
	}
	if l.client != nil {
		_ = l.client.Close(ctx) // otherwise the TTL ends what is left in the store
	}
	_ = l.opened.Close()
}

// briefly is how long a hold may last that the end of the session releases.
const briefly = time.Second

// release releases the lock. If it was held briefly, the end of the session does that, in one request instead of
// two. Unlike Release, that does not tell whether the lock was held until then: it cannot have expired so soon, but
// if it was broken, and the notice has not come yet, that is not reported.
func (l *lock) release(ctx context.Context) error {
	if time.Since(l.obtained) >= briefly {
		return l.hold.Release(ctx)
	}
	err := l.client.Close(ctx)
	if lost, ok := errors.AsType[*stile.LostError](l.hold.Err()); ok && lost.Reason != stile.LostClosed {
		return lost
	}
	return err
}

// closeTimeout returns how long the store may take to confirm the end of the session. It is short if
// nothing is held any more, or if the store does not seem reachable.
func (l *lock) closeTimeout() time.Duration {
	if l.lossReported {
		return time.Second
	}
	return patience.Factor * 3 * time.Second
}

// notReleased says that the lock may not be released. It leaves out the library's remark that the
// release continues in the background, because this process ends.
func (l *lock) notReleased(err error) string {
	are, they := "is", "it"
	if len(l.names) > 1 {
		are, they = "are", "they"
	}
	if lost, ok := errors.AsType[*stile.LostError](err); ok {
		return fmt.Sprintf("lock %q was broken, or its lease expired, before it was released", lost.Name)
	}
	if errors.Is(err, stile.ErrNotKnown) {
		return fmt.Sprintf("%s %s released, but may have been lost before: the store did not answer at first", l.what(), are)
	}
	return fmt.Sprintf("could not confirm the release of %s%s; %s may stay held for up to %s",
		l.what(), l.because(reasonOf(err)), they, brief(l.ttl))
}

// report prints a message if -v is set.
func (l *lock) report(format string, args ...any) {
	if l.verbose {
		l.stdio.say(fmt.Sprintf(format, args...))
	}
}

// reportAsync is report without waiting for the output: ^S can stop a terminal.
func (l *lock) reportAsync(text string) {
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
