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
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
	"github.com/stilelock/stile/store"
)

// run is one call of the verb.
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

// newRunInto returns the verb, which stores its flags and arguments in r.
func newRunInto(r *run) *cobra.Command {
	r.ttl, r.conflict = duration(stile.DefaultTTL), exitNotObtained
	cmd := &cobra.Command{
		Use:        "run [flags] NAME -- COMMAND [ARGUMENT…]",
		Short:      "Run a command while holding a lock",
		SuggestFor: []string{"lock", "exec", "flock", "acquire", "with"},
		Long: `Acquire the lock NAME, run the command, and release the lock.

If the lock cannot be kept, because the store is unreachable or the lock was broken, the
command is stopped with everything it has started: SIGTERM first, then SIGKILL, before the
next holder is admitted. (If the lock was broken, two commands may overlap briefly; use
STILE_TOKEN, which increases with every holder, to tell them apart.)

The command inherits stdin, stdout, stderr and the terminal. Signals are forwarded to it.
If acquiring takes more than a second, a status line on the terminal shows the holder.

A NAME that begins with /, ./ or ../ is a path, as with flock: the lock's name is the
absolute path without its first slash. No file is created or opened. flock's -x, -e, -o,
--nb and --timeout are accepted.

Environment of the command:
  STILE_NAME   the name of the lock
  STILE_TOKEN  the fencing token
  STILE_OWNER  the holder, as others see it
  STILE_TTL    the TTL, in seconds
  STILE_URL    the store, without a password that was given with --url
  STILE_HELD   this lock and those of the enclosing stile runs, in JSON

Exit codes:
  the command's own, or 128+N if signal N ended it
  75   the lock could not be acquired (-n, -w); -E chooses another
  79   the lock was lost and the command stopped
  124  the command ran for too long and was stopped (--run-timeout)
  125  stile failed; the command was not run
  126  the command cannot be executed
  127  the command was not found
  128+N  signal N ended the wait

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
	flags.SetInterspersed(false) // flags after NAME belong to the command
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

// nameAndCommand splits NAME -- COMMAND…. As with flock(1), the dashes may be missing, unless the
// command starts with a dash. The command may be missing if there is a line for the shell: -c LINE,
// before or after the name.
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

// shell returns the command that runs a line.
func shell(line string) []string { return []string{"sh", "-c", line} }

func (r *run) run(ctx context.Context) error {
	owner, stopSignal, err := r.check()
	if err != nil {
		return err
	}
	if r.store, err = chooseStore(r.url); err != nil {
		return err
	}
	path, err := child.Look(r.argv[0]) // before anybody waits for a lock that would not be used
	if err != nil {
		return commandFailure(err)
	}
	signals := child.Listen()
	defer signals.Close()
	// SIGPIPE must not end this process: the command would end too, and the entry would stay in the
	// store.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	ctx, cancel := context.WithCancel(ctx) // ends the use of the local server, however long the last output takes
	defer cancel()
	l, err := r.acquire(ctx, signals, owner)
	if err != nil {
		return err
	}
	defer l.close()

	outcome, code, err := supervise.Run(r.job(l, path, stopSignal, signals))
	if err != nil {
		return commandFailure(err)
	}
	l.lossReported = outcome == supervise.Lost
	l.keepFor(signals, time.Duration(r.minHold)-time.Since(l.obtained))
	return exitFor(outcome, code)
}

// job returns the command to run under the lock.
func (r *run) job(l *lock, path string, stopSignal os.Signal, signals *child.Signals) supervise.Job {
	inner := held{r.name, l.hold.Token(), l.hold.Owner().String()}
	all, mark := inner.within()
	charge := watchdog.Charge{
		Name: inner.Name, Token: inner.Token, Owner: inner.Owner, URL: r.store.url, Env: os.Environ(),
		NotBefore: watchdog.Now() + time.Duration(r.minHold),
	}
	charge.Dir, _ = os.Getwd() // if it is unknown, paths in the URL must be absolute
	return supervise.Job{
		Command: child.Command{
			Path: path, Args: r.argv, Env: r.environment(inner, all), Mark: heldVar + "=" + mark,
			Stdin: r.stdio.In, Stdout: r.stdio.Out, Stderr: r.stdio.Err,
		},
		Signals: signals, Hold: l.hold, TTL: l.ttl, Renewals: l.renewals,
		StopSignal: stopSignal, KillAfter: l.killAfter, Timeout: time.Duration(r.runTimeout),
		Charge: charge, Say: r.stdio.say, Remark: l.remark, Because: l.because,
	}
}

// exitFor returns the error with the exit code of a finished command; nil means success.
func exitFor(outcome supervise.Outcome, code int) error {
	switch outcome {
	case supervise.Lost:
		code = exitLost
	case supervise.TimedOut:
		code = exitTimeout
	case supervise.Ended:
	}
	if code == 0 {
		return nil
	}
	return &exit{Code: code}
}

// check validates the flags before the store is contacted.
func (r *run) check() (owner stile.Owner, stopSignal os.Signal, err error) {
	owner = stile.DefaultOwner()
	owner.Command = filepath.Base(r.argv[0]) // without its arguments, which may be secret
	owner.Reason = r.reason
	if stopSignal, err = child.SignalNamed(r.signal); err != nil {
		return owner, nil, fmt.Errorf("--signal %s: %w", r.signal, err)
	}
	if owner.Labels, err = labels(r.labels); err != nil {
		return owner, nil, err
	}
	ttl, killAfter := time.Duration(r.ttl), time.Duration(r.killAfter)
	switch maxKillAfter := supervise.MaxKillAfter(ttl); {
	case r.nonblock && r.waitSet:
		err = errors.New("-n and -w contradict each other: use one of them")
	case r.quiet && r.verbose:
		err = errors.New("-q and -v contradict each other: use one of them")
	case ttl == 0:
		err = fmt.Errorf("--ttl must be more than 0, and at most %s; stores may require a larger minimum", brief(stile.MaxTTL))
	case killAfter > supervise.MaxKillAfter(stile.MaxTTL):
		err = fmt.Errorf("--kill-after %s is too long: use at most %s, with --ttl %s",
			brief(killAfter), brief(supervise.MaxKillAfter(stile.MaxTTL)), brief(stile.MaxTTL))
	case killAfter > maxKillAfter:
		err = fmt.Errorf("--kill-after %s is too long for --ttl %s: use at most %s, or --ttl %s or more",
			brief(killAfter), brief(ttl), brief(maxKillAfter), brief(supervise.MinTTL(killAfter)))
	default:
		err = store.CheckName(r.name)
	}
	return owner, stopSignal, err
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

// commandFailure adds the exit code to errors of package child.
func commandFailure(err error) error {
	if e, ok := errors.AsType[*child.Error](err); ok {
		return &exit{e.Code, err}
	}
	return err
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

// environment returns this process's environment with the variables about the command's lock. They
// replace those about the lock of an enclosing stile run.
func (r *run) environment(h held, all string) []string {
	token := "" // empty on stores without tokens: never the token of the enclosing lock
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
