package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
	"github.com/stilelock/stile/store"
)

// run is one use of the verb.
type run struct {
	stdio      Stdio
	url        string
	store      choice
	nonblock   bool
	wait       duration
	waitSet    bool
	conflict   exitCode
	ttl        duration
	minHold    duration
	runTimeout duration
	killAfter  duration
	killSet    bool
	signal     string
	labels     []string
	reason     string
	quiet      bool
	verbose    bool
	line       string
	name       string
	argv       []string
	flock      flockFlags
}

func newRun(stdio Stdio) *cobra.Command { return newRunInto(&run{stdio: stdio}) }

// newRunInto returns the verb; its flags and arguments go into r.
func newRunInto(r *run) *cobra.Command {
	r.ttl, r.conflict = duration(stile.DefaultTTL), exitNotObtained
	cmd := &cobra.Command{
		Use:        "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short:      "Run a command while holding a lock",
		SuggestFor: []string{"lock", "exec", "flock", "acquire", "with"},
		Long: `Acquire the lock NAME, run the command, and release the lock.

If the lock cannot be kept, because the store cannot be reached or somebody has broken the
lock, the command is stopped, with everything it has started: SIGTERM first, and SIGKILL
while nobody else can have been let in yet. (If somebody has broken the lock, then two commands
may overlap briefly; use STILE_TOKEN, which increases with every holder, to tell them apart.)

The command inherits stdin, stdout, stderr and the terminal. Signals are passed on to it.
If acquiring takes more than a second, a status line on the terminal shows the holder.

A NAME that begins with /, ./ or ../ is a path, as flock takes it: it is made absolute, and
the lock is called like that without the first slash. No file is made or opened. flock's -x,
-e, -o, --nb and --timeout are understood.

Environment of the command:
  STILE_NAME   the name of the lock
  STILE_TOKEN  the fencing token
  STILE_OWNER  who holds the lock, as others see it
  STILE_TTL    the TTL, in seconds
  STILE_URL    the store, without a password that was given with --url
  STILE_HELD   this lock and those of stile runs around this one, in JSON

Exit codes:
  the command's own, or 128+N if signal N ended it
  75   the lock could not be acquired (-n, -w); -E chooses another
  79   the lock was lost and the command stopped
  124  the command has run for too long and was stopped (--run-timeout)
  125  stile failed; the command was not run
  126  the command cannot be executed
  127  the command was not found
  128+N  signal N ended the waiting

A DURATION is in seconds (5, 0.5) or has units (500ms, 1m30s).`,
		Example: `  stile run nightly-backup -- ./backup.sh
  stile run -n reindex -- ./reindex --all || echo "somebody else is at it"
  stile run -w 30 --ttl 10s deploy/web -- sh -c 'echo "token $STILE_TOKEN"; make deploy'
  stile run -n -q -E 0 --min-hold 50s report -- ./report   # in a crontab of several hosts
  stile run -n /var/lock/backup.lock ./backup.sh           # instead of flock -n …
  stile run --run-timeout 1h --ttl 60 -k 20 --reason "ticket 812" migrate -- ./migrate up
  stile run --url etcd://db1:2379,db2:2379/team -c 'dump | gzip >dump.gz' backup`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := r.flock.refused(cmd.Flags()); err != nil {
				return err
			}
			name, argv, err := nameAndCommand(args, cmd.Flags().Changed("command"), r.line)
			if err != nil {
				return err
			}
			r.argv = argv
			r.name, err = lockName(name)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.waitSet, r.killSet = cmd.Flags().Changed("wait"), cmd.Flags().Changed("kill-after")
			return r.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows NAME is not for us
	addURL(flags, &r.url)
	flags.BoolVarP(&r.nonblock, "nonblock", "n", false, "do not wait if the lock is not free")
	flags.VarP(&r.wait, "wait", "w", "give up after this long; 0 means -n")
	flags.VarP(&r.conflict, "conflict-exit-code", "E", "exit status if the lock could not be acquired")
	flags.Var(&r.ttl, "ttl", "how long the lock stays held after this process dies (renewed at a third of that)")
	flags.Var(&r.minHold, "min-hold", "keep the lock for at least this long, even if the command ends sooner")
	flags.Var(&r.runTimeout, "run-timeout", "stop the command when it has run for this long; 0 means never")
	flags.VarP(&r.killAfter, "kill-after", "k",
		"time between the stop signal and SIGKILL (default: a quarter of --ttl, at most 5s; a sixth on ZooKeeper)")
	flags.StringVar(&r.signal, "signal", "TERM", "`signal` that asks the command to stop, by name or number")
	flags.StringArrayVar(&r.labels, "label", nil, "label shown to others in stile show, as `name=value`; may be repeated")
	flags.StringVar(&r.reason, "reason", "", "why you hold the lock, a `text` shown in stile show")
	flags.StringVarP(&r.line, "command", "c", "", "run this `line` with sh, instead of a COMMAND")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "do not report waiting or failure to acquire")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "report waiting, acquiring and releasing")
	r.flock.add(flags)
	return cmd
}

// nameAndCommand takes NAME -- COMMAND… apart. The dashes may be missing, as fingers used to flock(1) would have it,
// unless the command begins with one; so may the command, if there is a line for the shell, as -c LINE before or after
// the name.
func nameAndCommand(args []string, lineSet bool, line string) (name string, argv []string, err error) {
	const see = "; see stile run --help"
	if len(args) == 0 {
		return "", nil, errors.New("missing lock name: stile run [flags] NAME -- COMMAND [ARGUMENT…]" + see)
	}
	name, argv = args[0], args[1:]
	switch {
	case len(argv) > 0 && argv[0] == "--":
		argv = argv[1:]
	case len(argv) > 0 && (argv[0] == "-c" || argv[0] == "--command") && !lineSet:
		if len(argv) != 2 {
			return "", nil, fmt.Errorf("-c takes one line for the shell, and %d arguments follow it: quote the line%s",
				len(argv)-1, see)
		}
		return name, shell(argv[1]), nil
	case len(argv) > 0 && strings.HasPrefix(argv[0], "-"):
		return "", nil, fmt.Errorf("put flags before the lock name: stile run %s … %s -- COMMAND%s", argv[0], asArgument(name), see)
	}
	switch {
	case lineSet && len(argv) > 0:
		return "", nil, fmt.Errorf("both -c and a command, %s, are given: use one of them%s", argv[0], see)
	case lineSet:
		return name, shell(line), nil
	case len(argv) == 0 && isDescriptor(name):
		return "", nil, fmt.Errorf("no command to run under the lock %q: there is no form for file descriptors, "+
			"give the command: stile run [flags] NAME -- COMMAND [ARGUMENT…]%s", name, see)
	case len(argv) == 0:
		return "", nil, fmt.Errorf("no command to run under the lock %q: stile run [flags] NAME -- COMMAND [ARGUMENT…]%s",
			name, see)
	}
	return name, argv, nil
}

// shell is the command that runs a line.
func shell(line string) []string { return []string{"sh", "-c", line} }

func (r *run) run(ctx context.Context) error {
	g, owner, err := r.check()
	if err != nil {
		return err
	}
	if r.store, err = chooseStore(r.url); err != nil {
		return err
	}
	path, err := child.Look(r.argv[0]) // before anybody has to wait for a lock that nothing is done with
	if err != nil {
		return commandFailure(err)
	}
	signals := child.Listen()
	defer signals.Close()
	// If nobody reads what we say any more, that must not end us, and the command with us, and leave the entry behind.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	ctx, cancel := context.WithCancel(ctx) // afterwards nobody needs the local server, however long the last word takes
	defer cancel()
	waiting, listened := untilInterrupted(ctx, signals)
	err = r.acquire(waiting, g, owner)
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

	inner := r.held(g.hold)
	value, mark := inner.within()
	g.charge = watchdog.Charge{
		Name: inner.Name, Token: inner.Token, Owner: inner.Owner, URL: r.store.url, Env: os.Environ(),
		NotBefore: watchdog.Now() + time.Duration(r.minHold),
	}
	g.charge.Dir, _ = os.Getwd() // if that is not known, paths in the URL have to be absolute

	code, err := g.supervise(r.stdio, signals, child.Command{
		Path: path, Args: r.argv, Env: r.environment(inner, value), Mark: heldVar + "=" + mark,
		Stdin: r.stdio.In, Stdout: r.stdio.Out, Stderr: r.stdio.Err,
	})
	if err != nil {
		return commandFailure(err)
	}
	g.keepFor(r.stdio, signals, time.Duration(r.minHold)-time.Since(g.obtained))
	if code != 0 {
		return &exit{Code: code}
	}
	return nil
}

// check finds what is wrong before the store is asked. What it returns is not connected to anything yet.
func (r *run) check() (*guard, stile.Owner, error) {
	g := &guard{
		ttl:        time.Duration(r.ttl),
		killAfter:  usualKillAfter(time.Duration(r.ttl)),
		runTimeout: time.Duration(r.runTimeout),
		verbose:    r.verbose,
		renewed:    make(chan stile.Renewed, 1),
	}
	owner := stile.DefaultOwner()
	owner.Command = filepath.Base(r.argv[0]) // its arguments may be secret
	owner.Reason = r.reason

	var err error
	if g.signal, err = child.SignalNamed(r.signal); err != nil {
		return nil, owner, fmt.Errorf("--signal %s: %w", r.signal, err)
	}
	if owner.Labels, err = labels(r.labels); err != nil {
		return nil, owner, err
	}
	if r.killSet {
		g.killAfter = time.Duration(r.killAfter)
	}
	switch longest := mostKillAfter(g.ttl); {
	case r.nonblock && r.waitSet:
		return nil, owner, errors.New("-n and -w contradict each other: use one of them")
	case r.quiet && r.verbose:
		return nil, owner, errors.New("-q and -v contradict each other: use one of them")
	case g.ttl == 0:
		return nil, owner, fmt.Errorf("--ttl must be more than 0, and at most %s; stores may require a larger minimum", brief(stile.MaxTTL))
	case g.killAfter > mostKillAfter(stile.MaxTTL):
		return nil, owner, fmt.Errorf("--kill-after %s is too long: use at most %s, with --ttl %s",
			brief(g.killAfter), brief(mostKillAfter(stile.MaxTTL)), brief(stile.MaxTTL))
	case g.killAfter > longest:
		return nil, owner, fmt.Errorf("--kill-after %s is too long for --ttl %s: use at most %s, or --ttl %s or more",
			brief(g.killAfter), brief(g.ttl), brief(longest), brief(leastTTL(g.killAfter)))
	}
	return g, owner, store.CheckName(r.name)
}

// labels takes name=value apart.
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

// commandFailure gives the errors of package child their exit code.
func commandFailure(err error) error {
	if e, ok := errors.AsType[*child.Error](err); ok {
		return &exit{e.Code, err}
	}
	return err
}

// acquire takes the lock. If it fails, everything is closed.
func (r *run) acquire(ctx context.Context, g *guard, owner stile.Owner) (err error) {
	if g.opened, err = r.stdio.open(ctx, r.store); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			g.close(r.stdio)
		}
	}()
	if caps := g.opened.Store.Capabilities(); g.ttl < caps.MinTTL || g.ttl > min(caps.MaxTTL, stile.MaxTTL) {
		return fmt.Errorf("--ttl %s: this store allows %s to %s", brief(g.ttl), brief(caps.MinTTL), brief(min(caps.MaxTTL, stile.MaxTTL)))
	}
	if r.store.url == "mem:" && !r.quiet {
		r.stdio.say("mem: is the memory of this process alone: this lock keeps nobody out")
	}
	st := &stoppable{Store: g.opened.Store, killAfter: g.killAfter, asked: r.killSet}
	g.client, err = stile.New(st, &stile.Options{
		TTL: g.ttl, Owner: owner, Hooks: stile.Hooks{Renewed: g.noteRenewal},
	})
	if err != nil {
		return err
	}
	began := time.Now()
	if r.nonblock || r.waitSet && r.wait == 0 {
		g.hold, err = g.client.Mutex(r.name).TryLock(ctx)
		if errors.Is(err, stile.ErrHeld) {
			return r.notObtained(heldError(err))
		}
	} else {
		g.hold, err = r.lock(ctx, g.client)
	}
	if err != nil {
		return err
	}
	g.obtained, g.killAfter = time.Now(), time.Duration(st.fitting.Load())
	if r.verbose {
		r.stdio.say(fmt.Sprintf("lock %q acquired after %v, token %d", r.name, round(g.obtained.Sub(began)), g.hold.Token()))
	}
	return nil
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
	if !ok || held.Holder == nil || held.Closed > 0 {
		return err
	}
	return fmt.Errorf("lock %q is held by %s", held.Name, holderName(*held.Holder))
}

// lock waits for the lock, no longer than -w says.
func (r *run) lock(ctx context.Context, client *stile.Client) (*stile.Hold, error) {
	within, cancel := ctx, context.CancelFunc(func() {})
	if r.waitSet {
		within, cancel = context.WithTimeout(ctx, time.Duration(r.wait))
	}
	defer cancel()
	place, err := client.Mutex(r.name).Join(within)
	if err != nil {
		return nil, err
	}
	if !r.quiet {
		r.showWaiting(within, client, place)
	}
	hold, err := place.Hold()
	// An attempt to reach the store has deadlines of its own.
	if !errors.Is(err, context.DeadlineExceeded) || within.Err() == nil || ctx.Err() != nil {
		return hold, err
	}
	trouble := errors.Unwrap(err) // more than the deadline, if the store has not let us join the line
	// As long as opening a store may take. On a busy machine it does take seconds, and that the store was slow to tell must not look
	// like an outage.
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	line, unread := client.Show(asking, r.name)
	switch {
	case unread != nil: // so that may be why the lock was not obtained
		return nil, fmt.Errorf("could not acquire lock %q within %s, and the store does not say who holds it: %w",
			r.name, brief(time.Duration(r.wait)), unread)
	case trouble != context.DeadlineExceeded && len(line.Holders) == 0:
		return nil, fmt.Errorf("could not acquire lock %q within %s, though nobody holds it: %w",
			r.name, brief(time.Duration(r.wait)), trouble)
	}
	return nil, r.notObtained(fmt.Errorf("could not acquire lock %q within %s: %s", r.name, brief(time.Duration(r.wait)), holderOf(line)))
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

// held is the hold as those under it know it.
func (r *run) held(hold *stile.Hold) held { return held{r.name, hold.Token(), hold.Owner().String()} }

// environment returns our own, with what the command is told about its lock in place of what we may have been told
// about ours.
func (r *run) environment(h held, all string) []string {
	token := "" // where the store has none, and then not that of the lock around us either
	if h.Token > 0 {
		token = strconv.FormatUint(h.Token, 10)
	}
	ours := []string{
		"STILE_NAME=" + h.Name, "STILE_TOKEN=" + token, "STILE_OWNER=" + h.Owner, heldVar + "=" + all,
		"STILE_TTL=" + inSeconds(time.Duration(r.ttl)), urlVar + "=" + r.store.forCommand(),
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc(ours, func(o string) bool {
			name, _, _ := strings.Cut(o, "=")
			return strings.HasPrefix(v, name+"=")
		})
	})
	return append(env, ours...)
}
