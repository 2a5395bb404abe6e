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
	conflict   int
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
}

func newRun(stdio Stdio) *cobra.Command { return newRunInto(&run{stdio: stdio}) }

// newRunInto returns the verb; its flags and arguments go into r.
func newRunInto(r *run) *cobra.Command {
	r.ttl = duration(stile.DefaultTTL)
	cmd := &cobra.Command{
		Use:   "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short: "Run a command while holding a lock",
		Long: `Wait until the lock NAME is free, take it, run the command, and let the lock go.

If the lock cannot be kept, because the store cannot be reached or somebody has broken the
lock, the command is stopped, with everything it has started: SIGTERM first, and SIGKILL
while nobody else can have been let in yet. (If somebody has broken the lock, that is too
late: the token in STILE_TOKEN, which grows with every holder, tells old from new.)

The command inherits stdin, stdout, stderr and the terminal. Signals are passed on to it.
Who waits longer than a second at a terminal is told who has the lock.

Environment of the command:
  STILE_NAME   the name of the lock
  STILE_TOKEN  the fencing token
  STILE_OWNER  who holds the lock, as others see it
  STILE_TTL    the TTL, in seconds
  STILE_URL    the store, without a password that was given with --url

Exit codes:
  the command's own, or 128+N if signal N ended it
  75   the lock was not obtained (-n, -w); -E chooses another
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
  stile run --run-timeout 1h --ttl 60 -k 20 --reason "ticket 812" migrate -- ./migrate up
  stile run --url etcd://db1:2379,db2:2379/team -c 'dump | gzip >dump.gz' backup`,
		Args: func(cmd *cobra.Command, args []string) error {
			var err error
			r.name, r.argv, err = nameAndCommand(args, cmd.Flags().Changed("command"), r.line)
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
	flags.VarP(&r.wait, "wait", "w", "wait no longer than that; 0 is -n")
	flags.IntVarP(&r.conflict, "conflict-exit-code", "E", exitNotObtained, "exit code if the lock is not obtained")
	flags.Var(&r.ttl, "ttl", "after a crash the lock is free that much later; renewed three times in that time")
	flags.Var(&r.minHold, "min-hold", "keep the lock for at least that long, even if the command ends sooner")
	flags.Var(&r.runTimeout, "run-timeout", "stop the command when it has run for that long; 0 is never")
	flags.VarP(&r.killAfter, "kill-after", "k",
		"kill a command that is being stopped that long after telling it (default: a quarter of the TTL, on ZooKeeper a sixth, 5s at most)")
	flags.StringVar(&r.signal, "signal", "TERM", "what a command that is being stopped is told first, a `name` or number")
	flags.StringArrayVar(&r.labels, "label", nil, "tell others about this holder, as `name=value`; may be repeated")
	flags.StringVar(&r.reason, "reason", "", "tell others why the lock is wanted, in a `text`")
	flags.StringVarP(&r.line, "command", "c", "", "run this `line` with sh, instead of a COMMAND")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing about waiting, or not obtaining the lock")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "say when waiting begins, the lock is obtained, and let go")
	return cmd
}

// nameAndCommand takes NAME -- COMMAND… apart. The dashes may be missing, as fingers used to flock(1) would have it,
// unless the command begins with one; so may the command, if there is a line for the shell, as -c LINE before or after
// the name.
func nameAndCommand(args []string, lineSet bool, line string) (name string, argv []string, err error) {
	const see = "; see stile run --help"
	if len(args) == 0 {
		return "", nil, errors.New("no lock is named: stile run [flags] NAME -- COMMAND [ARGUMENT…]" + see)
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
		return "", nil, fmt.Errorf("%s after the lock's name: flags stand before it, and the command after --%s",
			argv[0], see)
	}
	switch {
	case lineSet && len(argv) > 0:
		return "", nil, fmt.Errorf("there is a line for the shell (-c) and a command, %s: give one of them%s", argv[0], see)
	case lineSet:
		return name, shell(line), nil
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

	code, err := g.supervise(r.stdio, signals, child.Command{
		Path: path, Args: r.argv, Env: r.environment(g.hold), Mark: r.mark(g.hold),
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
		return nil, owner, errors.New("-n and -w contradict each other: give one of them")
	case r.quiet && r.verbose:
		return nil, owner, errors.New("-q and -v contradict each other: give one of them")
	case r.conflict < 0 || r.conflict > 255:
		return nil, owner, fmt.Errorf("--conflict-exit-code %d: exit codes are 0 to 255", r.conflict)
	case g.ttl == 0:
		return nil, owner, fmt.Errorf("--ttl must be more than 0, and at most %v; stores have higher lower limits", stile.MaxTTL)
	case g.killAfter > mostKillAfter(stile.MaxTTL):
		return nil, owner, fmt.Errorf("--kill-after %v: the most is %v, with --ttl %v",
			g.killAfter, mostKillAfter(stile.MaxTTL), stile.MaxTTL)
	case g.killAfter > longest:
		return nil, owner, fmt.Errorf("--kill-after %v is too long for a TTL of %v, after which others are let in: "+
			"it can be %v, or give --ttl %v", g.killAfter, g.ttl, longest, leastTTL(g.killAfter))
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
			return r.notObtained(err)
		}
	} else {
		g.hold, err = r.lock(ctx, g.client)
	}
	if err != nil {
		return err
	}
	g.obtained, g.killAfter = time.Now(), time.Duration(st.fitting.Load())
	if r.verbose {
		r.stdio.say(fmt.Sprintf("lock %q obtained after %v, token %d", r.name, round(g.obtained.Sub(began)), g.hold.Token()))
	}
	return nil
}

// notObtained is the error of a lock that somebody else has.
func (r *run) notObtained(err error) error {
	if r.quiet {
		err = nil
	}
	return &exit{r.conflict, err}
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
		return nil, fmt.Errorf("lock %q not obtained within %v, and the store does not tell who holds it: %w",
			r.name, &r.wait, unread)
	case trouble != context.DeadlineExceeded && len(line.Holders) == 0:
		return nil, fmt.Errorf("lock %q not obtained within %v, though nobody holds it: %w", r.name, &r.wait, trouble)
	}
	return nil, r.notObtained(fmt.Errorf("lock %q not obtained within %v: %s", r.name, &r.wait, holderOf(line)))
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
	ours := append(r.mark(hold), "STILE_TTL="+inSeconds(time.Duration(r.ttl)), urlVar+"="+r.store.forCommand())
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc(ours, func(o string) bool {
			name, _, _ := strings.Cut(o, "=")
			return strings.HasPrefix(v, name+"=")
		})
	})
	return append(env, ours...)
}

// mark is the part of the environment that tells this hold, and with it what runs under it, from all others.
func (r *run) mark(hold *stile.Hold) []string {
	token := "" // where the store has none, and then not that of the lock around us either
	if hold.Token() > 0 {
		token = strconv.FormatUint(hold.Token(), 10)
	}
	return []string{"STILE_NAME=" + r.name, "STILE_TOKEN=" + token, "STILE_OWNER=" + hold.Owner().String()}
}
