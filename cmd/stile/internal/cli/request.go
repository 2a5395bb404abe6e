package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/patience"
	"github.com/stilelock/stile/store"
)

// request is a lock to be taken, or several, as the flags of a verb say.
type request struct {
	stdio    Stdio
	url      string
	store    choice
	kind     kind
	names    []string
	nonblock bool
	wait     duration
	waitSet  bool
	conflict exitCode
	ttl      duration
	labels   []string
	reason   string
	value    string // of an election's candidate
	quiet    bool
	verbose  bool
	// accept returns an error for a session with terms that do not suit; nil accepts all terms.
	accept func(store.Terms) error
	// beforeWait is called before the lock is asked for; an error ends the request. Nil does nothing.
	beforeWait func(context.Context, *stile.Client) error
}

func newRequest(stdio Stdio) request {
	return request{stdio: stdio, ttl: duration(stile.DefaultTTL), conflict: exitNotObtained}
}

// addFlags adds the flags that every request has.
func (r *request) addFlags(flags *pflag.FlagSet) {
	addURL(flags, &r.url)
	flags.Var(&r.ttl, "ttl", "how long the lock stays held if nothing can release it: this process has died, or the store is out of reach")
	flags.StringArrayVar(&r.labels, "label", nil, "label shown to others in stile show, as `name=value`; may be repeated")
	flags.StringVar(&r.reason, "reason", "", "why you hold the lock, a `text` shown in stile show")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "do not report waiting or failure to acquire")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "report waiting, acquiring and releasing")
}

// addWaitFlags adds the flags that limit the wait.
func (r *request) addWaitFlags(flags *pflag.FlagSet) {
	r.addPatienceFlags(flags)
	flags.VarP(&r.conflict, "conflict-exit-code", "E", "exit status if the lock could not be acquired")
}

// addPatienceFlags is addWaitFlags without the exit status.
func (r *request) addPatienceFlags(flags *pflag.FlagSet) {
	flags.BoolVarP(&r.nonblock, "nonblock", "n", false, "do not wait if the lock is not free")
	flags.VarP(&r.wait, "wait", "w", "give up after this long; 0 means -n")
}

// check validates the flags before the store is contacted, and returns the owner that others will
// see. command is the name of the program that holds the lock.
func (r *request) check(command string) (owner stile.Owner, err error) {
	owner = stile.DefaultOwner()
	owner.Command = command
	owner.Reason = r.reason
	owner.Under = enclosingHolds(enclosingLocks())
	if owner.Labels, err = labels(r.labels); err != nil {
		return owner, err
	}
	switch {
	case r.nonblock && r.waitSet:
		return owner, errors.New("-n and -w contradict each other: use one of them")
	case r.quiet && r.verbose:
		return owner, errors.New("-q and -v contradict each other: use one of them")
	case r.ttl == 0:
		return owner, fmt.Errorf("--ttl must be more than 0, and at most %s; stores may require a larger minimum", brief(stile.MaxTTL))
	}
	if err := r.kind.check(); err != nil {
		return owner, err
	}
	for _, name := range r.names {
		if err := store.CheckName(name); err != nil {
			return owner, err
		}
	}
	return owner, nil
}

// enclosingHolds returns the innermost locks that this process runs under, for others to see. It skips what
// cannot be a hold: the environment may have been changed.
func enclosingHolds(around []held) (locks []store.Held) {
	for _, h := range around {
		if h.Token != 0 && store.CheckName(h.Name) == nil {
			locks = append(locks, store.Held{Name: h.Name, Token: h.Token})
		}
	}
	return locks[max(0, len(locks)-stile.MaxUnder):]
}

// labels parses name=value flags.
func labels(flags []string) (map[string]string, error) {
	all := make(map[string]string, len(flags))
	for _, f := range flags {
		name, value, ok := strings.Cut(f, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--label %q: want name=value, like team=web", f)
		}
		all[name] = value
	}
	return all, nil
}

// obtain takes the lock as the flags say. It does not wait for a lock under which the command could
// not be stopped in time.
func (r *request) obtain(ctx context.Context, client *stile.Client) (hold, error) {
	if r.nonblock || r.waitSet && r.wait == 0 {
		if err := r.checkTerms(ctx, client); err != nil {
			return nil, err
		}
		h, err := r.try(ctx, client)
		if errors.Is(err, stile.ErrHeld) {
			err = r.notObtained(heldError(err))
		}
		return h, err
	}
	if !r.waitSet {
		return r.waitFor(ctx, client)
	}
	within, cancel := context.WithTimeout(ctx, time.Duration(r.wait))
	defer cancel()
	h, err := r.waitFor(within, client)
	// The store's own attempts have deadlines too; those are not -w.
	if errors.Is(err, context.DeadlineExceeded) && within.Err() != nil && ctx.Err() == nil {
		err = r.waitTimeoutError(ctx, client, err)
	}
	return h, err
}

func (r *request) checkTerms(ctx context.Context, client *stile.Client) error {
	if r.accept == nil {
		return nil
	}
	granted, err := client.Terms(ctx)
	if err == nil {
		err = r.accept(granted)
	}
	return err
}

// waitFor waits for the lock and shows the user who holds it.
func (r *request) waitFor(ctx context.Context, client *stile.Client) (hold, error) {
	if err := r.checkTerms(ctx, client); err != nil {
		return nil, err
	}
	place, err := r.join(ctx, client)
	if err != nil {
		return nil, err
	}
	if !r.quiet {
		r.showWaiting(ctx, client, place)
	}
	return place.wait(ctx)
}

// waitTimeoutError returns the error for a wait that -w ended. It says who holds the lock, or what is
// wrong with the store if that was the cause.
func (r *request) waitTimeoutError(ctx context.Context, client *stile.Client, err error) error {
	trouble := reasonOf(err) // more than the deadline if the entry could not be added
	// As long as opening a store may take: on a busy machine that takes seconds, and a slow reply
	// must not look like an outage.
	asking, cancel := context.WithTimeout(ctx, patience.Factor*5*time.Second)
	defer cancel()
	line, unread := r.awaitedLine(asking, client)
	name := line.Name
	within := brief(time.Duration(r.wait))
	switch {
	case unread != nil:
		return fmt.Errorf("could not acquire lock %q within %s, and the store does not say who holds it: %w", name, within, reasonOf(unread))
	case trouble != context.DeadlineExceeded && len(line.Holders) == 0:
		return fmt.Errorf("could not acquire lock %q within %s, though nobody holds it: %w", name, within, trouble)
	}
	return r.notObtained(fmt.Errorf("could not acquire lock %q within %s: %s", name, within, holderOf(line)))
}

// notObtained returns the error for a lock that another client holds.
func (r *request) notObtained(err error) error {
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
	return fmt.Errorf("lock %q is %s%s", held.Name, heldWord(*held.Holder), holderName(*held.Holder))
}
