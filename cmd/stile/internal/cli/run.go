package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/storeurl"
)

// run is one use of the verb.
type run struct {
	stdio    Stdio
	url      string
	nonblock bool
	wait     duration
	waitSet  bool
	ttl      duration
	name     string
	argv     []string
}

func newRun(stdio Stdio) *cobra.Command {
	r := run{stdio: stdio, ttl: duration(stile.DefaultTTL)}
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short: "Run a command while holding a lock",
		Long: `Wait until the lock NAME is free, take it, run the command, and let the lock go.

If the lock cannot be kept, because the store cannot be reached or somebody has broken the
lock, the command is stopped, with everything it has started: SIGTERM first, and SIGKILL
while nobody else can have been let in yet. (If somebody has broken the lock, that is too
late: the token in STILE_TOKEN, which grows with every holder, tells old from new.)

The command inherits stdin, stdout, stderr and the terminal. Signals are passed on to it.
It finds in its environment:
  STILE_NAME   the name of the lock
  STILE_TOKEN  the fencing token
  STILE_TTL    the TTL, in seconds
  STILE_URL    the store, without a password that was given with --url

Exit codes:
  the command's own, or 128+N if signal N ended it
  75   the lock was not obtained (-n, -w)
  79   the lock was lost and the command stopped
  125  stile failed; the command was not run
  126  the command cannot be executed
  127  the command was not found
  128+N  signal N ended the waiting

A DURATION is in seconds (5, 0.5) or has units (500ms, 1m30s).`,
		Example: `  stile run nightly-backup -- ./backup.sh
  stile run -n reindex -- ./reindex --all || echo "somebody else is at it"
  stile run -w 30 --ttl 10s deploy/web -- sh -c 'echo "token $STILE_TOKEN"; make deploy'
  stile run --url etcd://db1:2379,db2:2379/team report -- ./report`,
		Args: func(_ *cobra.Command, args []string) error {
			var err error
			r.name, r.argv, err = nameAndCommand(args)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.waitSet = cmd.Flags().Changed("wait")
			return r.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows NAME is not for us
	addURL(flags, &r.url)
	flags.BoolVarP(&r.nonblock, "nonblock", "n", false, "do not wait if the lock is not free")
	flags.VarP(&r.wait, "wait", "w", "wait no longer than that; 0 is -n")
	flags.Var(&r.ttl, "ttl", "after a crash the lock is free that much later; renewed three times in that time")
	return cmd
}

// nameAndCommand takes NAME -- COMMAND… apart. The dashes may be missing, as fingers used to flock(1) would have it,
// unless the command begins with one.
func nameAndCommand(args []string) (name string, argv []string, err error) {
	const see = "; see stile run --help"
	if len(args) == 0 {
		return "", nil, errors.New("no lock is named: stile run [flags] NAME -- COMMAND [ARGUMENT…]" + see)
	}
	name, argv = args[0], args[1:]
	switch {
	case len(argv) > 0 && argv[0] == "--":
		argv = argv[1:]
	case len(argv) > 0 && strings.HasPrefix(argv[0], "-"):
		return "", nil, fmt.Errorf("%s after the lock's name: flags stand before it, and the command after --%s",
			argv[0], see)
	}
	if len(argv) == 0 {
		return "", nil, fmt.Errorf("no command to run under the lock %q: stile run [flags] NAME -- COMMAND [ARGUMENT…]%s",
			name, see)
	}
	return name, argv, nil
}

func (r *run) run(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	path, err := child.Look(r.argv[0]) // before anybody has to wait for a lock that nothing is done with
	if err != nil {
		return commandFailure(err)
	}
	signals := child.Listen()
	defer signals.Close()

	waiting, listened := untilInterrupted(ctx, signals)
	g, err := r.acquire(waiting)
	listened()
	if interrupted, ok := errors.AsType[*interruption](context.Cause(waiting)); ok {
		if err == nil {
			g.close(r.stdio)
		}
		return &exit{Code: child.ExitCodeFor(interrupted.signal)}
	}
	if err != nil {
		return err
	}
	defer g.close(r.stdio)

	code, err := g.supervise(r.stdio, signals, child.Command{
		Path: path, Args: r.argv, Env: r.environment(g.hold),
		Stdin: r.stdio.In, Stdout: r.stdio.Out, Stderr: r.stdio.Err,
	})
	if err != nil {
		return commandFailure(err)
	}
	if code != 0 {
		return &exit{Code: code}
	}
	return nil
}

// check finds what is wrong before the store is asked.
func (r *run) check() error {
	switch {
	case r.nonblock && r.waitSet:
		return errors.New("-n and -w contradict each other: give one of them")
	case r.ttl == 0:
		return fmt.Errorf("--ttl must be more than 0, and at most %v; stores have higher lower limits", stile.MaxTTL)
	}
	return store.CheckName(r.name)
}

// commandFailure gives the errors of package child their exit code.
func commandFailure(err error) error {
	if e, ok := errors.AsType[*child.Error](err); ok {
		return &exit{e.Code, err}
	}
	return err
}

// acquire takes the lock. If it fails, everything is closed.
func (r *run) acquire(ctx context.Context) (_ *guard, err error) {
	opened, err := openStore(ctx, storeURL(r.url))
	if err != nil {
		return nil, err
	}
	g := &guard{opened: opened, ttl: time.Duration(r.ttl), renewed: make(chan stile.Renewed, 1)}
	defer func() {
		if err != nil {
			g.close(r.stdio)
		}
	}()
	owner := stile.DefaultOwner()
	owner.Command = filepath.Base(r.argv[0]) // its arguments may be secret
	g.client, err = stile.New(opened.Store, &stile.Options{
		TTL: g.ttl, Owner: owner, Hooks: stile.Hooks{Renewed: g.noteRenewal},
	})
	if err != nil {
		return nil, err
	}
	mutex := g.client.Mutex(r.name)
	switch {
	case r.nonblock || r.waitSet && r.wait == 0:
		g.hold, err = mutex.TryLock(ctx)
		if errors.Is(err, stile.ErrHeld) {
			return nil, &exit{exitNotObtained, err}
		}
		return g, err
	case r.waitSet:
		return g, r.lockWithin(ctx, g, mutex)
	default:
		g.hold, err = mutex.Lock(ctx)
		return g, err
	}
}

// lockWithin waits for the lock as long as -w says.
func (r *run) lockWithin(ctx context.Context, g *guard, mutex *stile.Mutex) (err error) {
	within, cancel := context.WithTimeout(ctx, time.Duration(r.wait))
	defer cancel()
	g.hold, err = mutex.Lock(within)
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	line, err := g.client.Show(asking, r.name)
	if err != nil { // so that may be why the lock was not obtained
		return fmt.Errorf("lock %q not obtained within %v, and the store does not tell who holds it: %w",
			r.name, &r.wait, err)
	}
	return &exit{exitNotObtained, fmt.Errorf("lock %q not obtained within %v: %s", r.name, &r.wait, holderOf(line))}
}

// holderOf says who holds a lock that others wait for.
func holderOf(line stile.Line) string {
	switch {
	case len(line.Holders) == 0:
		return "it has become free just now"
	case line.Holders[0].Owner.IsZero():
		return fmt.Sprintf("it is held by session %s, a client that left no word of who it is", line.Holders[0].Session)
	default:
		return fmt.Sprintf("it is held by %v", line.Holders[0].Owner)
	}
}

// interruption is the cause with which the waiting ends when a signal does it.
type interruption struct{ signal os.Signal }

// Error names the signal.
func (i *interruption) Error() string { return "interrupted by signal: " + i.signal.String() }

// untilInterrupted returns a context that ends with the first signal that ends a program. After the function returned
// with it has been called, signals are left for others.
func untilInterrupted(ctx context.Context, signals *child.Signals) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	enough, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case s := <-signals.C():
				if child.Ends(s) { // others are for the command, which is not there yet
					cancel(&interruption{s})
				}
			case <-enough:
				return
			}
		}
	}()
	return ctx, func() {
		close(enough)
		<-ended
	}
}

// environment returns our own, with what the command is told about its lock in place of what we may have been told
// about ours.
func (r *run) environment(hold *stile.Hold) []string {
	token := "" // where the store has none, and then not that of the lock around us either
	if hold.Token() > 0 {
		token = strconv.FormatUint(hold.Token(), 10)
	}
	ours := []string{
		"STILE_NAME=" + r.name,
		"STILE_TOKEN=" + token,
		"STILE_TTL=" + inSeconds(time.Duration(r.ttl)),
		urlVar + "=" + r.urlToShow(),
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc(ours, func(o string) bool {
			name, _, _ := strings.Cut(o, "=")
			return strings.HasPrefix(v, name+"=")
		})
	})
	return append(env, ours...)
}

// urlToShow is the store's URL without a password, unless the password is in the environment already.
func (r *run) urlToShow() string {
	url := storeURL(r.url)
	if r.url == "" || strings.HasPrefix(url, "local:") {
		return url
	}
	return storeurl.Redact(url)
}
