package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
	"github.com/stilelock/stile/cmd/stile/internal/uptime"
	"github.com/stilelock/stile/cmd/stile/internal/validity"
	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
	"github.com/stilelock/stile/store"
)

// execution is a command to be run under a lock, as the flags of a verb say.
type execution struct {
	request
	minHold    duration
	runTimeout duration
	killAfter  duration
	killSet    bool
	signal     string
	line       string
	argv       []string

	// Set by prepare.
	owner      stile.Owner
	path       string
	stopSignal os.Signal
}

// addFlags adds the flags that every execution has, besides those of the request.
func (x *execution) addFlags(flags *pflag.FlagSet) {
	x.request.addFlags(flags)
	flags.VarP(&x.killAfter, "kill-after", "k",
		"time between the stop signal and SIGKILL (default: a quarter of --ttl, at most 5s; a sixth on ZooKeeper)")
	flags.StringVar(&x.signal, "signal", "TERM", "`signal` that asks the command to stop, by name or number")
	flags.StringVarP(&x.line, "command", "c", "", "run this `line` with sh, instead of a COMMAND")
}

// set records which flags were given.
func (x *execution) set(flags *pflag.FlagSet) {
	x.waitSet, x.killSet = flags.Changed("wait"), flags.Changed("kill-after")
}

// take stores the names and the command from the arguments of a verb.
func (x *execution) take(cmd *cobra.Command, args []string) error {
	x.set(cmd.Flags())
	line := commandLine{cmd.CommandPath(), x.kind.all, cmd.Flags().Changed("command"), x.line}
	names, argv, err := line.split(args)
	if err != nil {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	}
	x.argv = argv
	for _, arg := range names {
		name, err := lockName(arg)
		if err != nil {
			return err
		}
		x.names = append(x.names, name)
	}
	return nil
}

// A commandLine is what decides how arguments are split.
type commandLine struct {
	verb      string // as the user types it: stile run
	all       bool   // there may be several names
	shellLine bool   // there is a line for the shell
	line      string
}

// split splits NAME -- COMMAND…. As with flock(1), the dashes may be missing, unless the command starts
// with a dash. The command may be missing if there is a line for the shell: -c LINE, before or after
// the name. Where there may be several names, the dashes end them.
func (c commandLine) split(args []string) (names, argv []string, err error) {
	usage := c.verb + " [flags] NAME -- COMMAND [ARGUMENT…]"
	if len(args) == 0 {
		return nil, nil, errors.New("missing lock name: " + usage)
	}
	names, argv = args[:1], args[1:]
	if dashes := slices.Index(args, "--"); c.all && dashes >= 0 {
		names, argv = args[:dashes], args[dashes:]
	} else if c.all && c.shellLine {
		names, argv = args, nil
	} else if c.all {
		return nil, nil, fmt.Errorf("--all takes one or more names before --: %s --all NAME… -- COMMAND [ARGUMENT…]", c.verb)
	}
	if len(names) == 0 {
		return nil, nil, errors.New("missing lock names: " + c.verb + " --all NAME… -- COMMAND [ARGUMENT…]")
	}
	name := names[0]
	switch {
	case len(argv) > 0 && argv[0] == "--":
		argv = argv[1:]
	case len(argv) > 0 && (argv[0] == "-c" || argv[0] == "--command") && !c.shellLine:
		if len(argv) != 2 {
			return nil, nil, fmt.Errorf("-c takes one line for the shell, and %d arguments follow it: quote the line", len(argv)-1)
		}
		return names, shell(argv[1]), nil
	case len(argv) > 0 && strings.HasPrefix(argv[0], "-"):
		return nil, nil, fmt.Errorf("put flags before the lock name: %s %s … %s -- COMMAND", c.verb, argv[0], asArgument(name))
	}
	switch {
	case c.shellLine && len(argv) > 0:
		return nil, nil, fmt.Errorf("both -c and a command, %s, are given: use one of them", argv[0])
	case c.shellLine:
		return names, shell(c.line), nil
	case len(argv) == 0 && isDescriptor(name):
		return nil, nil, fmt.Errorf("no command to run under the lock %q: there is no form for file descriptors, "+
			"give the command: %s", name, usage)
	case len(argv) == 0:
		return nil, nil, fmt.Errorf("no command to run under the lock %q: %s", name, usage)
	}
	return names, argv, nil
}

// shell returns the command that runs a line.
func shell(line string) []string { return []string{"sh", "-c", line} }

// prepare validates the flags, chooses the store and looks for the command, before anybody waits for
// a lock that would not be used.
func (x *execution) prepare() (err error) {
	if err := x.check(); err != nil {
		return err
	}
	if x.store, err = chooseStore(x.url); err != nil {
		return err
	}
	if x.path, err = child.Look(x.argv[0]); err != nil {
		return commandFailure(err)
	}
	return nil
}

// check validates the flags before the store is contacted.
func (x *execution) check() (err error) {
	if x.stopSignal, err = child.SignalNamed(x.signal); err != nil {
		return fmt.Errorf("--signal %s: %w", x.signal, err)
	}
	// The name is without its arguments, which may be secret.
	if x.owner, err = x.request.check(filepath.Base(x.argv[0])); err != nil {
		return err
	}
	x.accept = x.acceptTerms
	ttl, killAfter := time.Duration(x.ttl), time.Duration(x.killAfter)
	switch maxKillAfter := supervise.MaxKillAfter(ttl); {
	case killAfter > supervise.MaxKillAfter(stile.MaxTTL):
		return fmt.Errorf("--kill-after %s is too long: use at most %s, with --ttl %s",
			brief(killAfter), brief(supervise.MaxKillAfter(stile.MaxTTL)), brief(stile.MaxTTL))
	case killAfter > maxKillAfter:
		return fmt.Errorf("--kill-after %s is too long for --ttl %s: use at most %s, or --ttl %s or more",
			brief(killAfter), brief(ttl), brief(maxKillAfter), brief(supervise.MinTTL(killAfter)))
	}
	return nil
}

// killAfterUnder returns how long the command may take to end under a session with these terms. A
// store may end a session early, on ZooKeeper by a third of the TTL. That leaves less time for renewing
// and stopping: with the default of a quarter of the TTL, the command would be stopped a ninth of the
// TTL after a renewal is due; with three eighths, before it is due. So the default is smaller on such a
// store, and a larger value than it allows is an error.
func (x *execution) killAfterUnder(granted store.Terms) (time.Duration, error) {
	guaranteed := supervise.GuaranteedTTL(granted)
	maxKillAfter, chosen := supervise.MaxKillAfter(guaranteed), time.Duration(x.killAfter)
	switch {
	case !x.killSet:
		return supervise.DefaultKillAfter(min(guaranteed, time.Duration(x.ttl))), nil
	case chosen > maxKillAfter:
		return 0, fmt.Errorf("--kill-after %s is too long for --ttl %s on this store, which may end a session after %s: "+
			"use at most %s, or a longer --ttl", brief(chosen), brief(granted.TTL), brief(round(guaranteed)), brief(maxKillAfter.Truncate(time.Millisecond)))
	}
	return chosen, nil
}

// acceptTerms is the request's accept: it returns the error of killAfterUnder.
func (x *execution) acceptTerms(granted store.Terms) error {
	_, err := x.killAfterUnder(granted)
	return err
}

// runUnder runs the command under the lock. On an error it was not run.
func (x *execution) runUnder(l *lock, signals *child.Signals) (supervise.Result, error) {
	record, err := validity.Create()
	if err != nil {
		l.report("%v", err)
	}
	defer record.Close()
	held := l.held(record.Reference())
	value, mark := heldEnv(held)
	killAfter, err := x.killAfterUnder(l.hold.Terms())
	if err != nil {
		return supervise.Result{}, err
	}
	target := watchdog.Target{URL: x.store.url, Env: os.Environ(), NotBefore: uptime.Now() + time.Duration(x.minHold)}
	for _, h := range held {
		target.Holds = append(target.Holds, watchdog.Hold{Name: h.Name, Token: h.Token, Owner: h.Owner})
	}
	target.Dir, _ = os.Getwd() // if it is unknown, paths in the URL must be absolute
	result, err := supervise.Run(supervise.Job{
		Command: child.Command{
			Path: x.path, Args: x.argv, Env: x.environment(held, value), Mark: heldVar + "=" + mark,
			Stdin: x.stdio.In, Stdout: x.stdio.Out, Stderr: x.stdio.Err,
		},
		Signals: signals, Hold: l.hold, Lock: l.what(), TTL: l.ttl, Renewals: l.renewals, Validity: record,
		StopSignal: x.stopSignal, KillAfter: killAfter, Timeout: time.Duration(x.runTimeout),
		Target: target, Say: x.stdio.say, Report: l.reportAsync, FormatCause: l.because,
	})
	if err != nil {
		return result, commandFailure(err)
	}
	l.lossReported = result.Outcome == supervise.Lost
	return result, nil
}

// exitFor returns the error with the exit code of a finished command; nil means success.
func exitFor(r supervise.Result) error {
	code := r.ExitCode
	switch r.Outcome {
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

// commandFailure adds the exit code to errors of package child.
func commandFailure(err error) error {
	if e, ok := errors.AsType[*child.Error](err); ok {
		return &exit{e.Code, err}
	}
	return err
}

// environment returns this process's environment with the variables about the command's locks. They
// replace those about the locks of an enclosing stile run.
func (x *execution) environment(holds []held, all string) []string {
	tokens := make(map[string]string, len(holds))
	for _, h := range holds {
		tokens[h.Name] = tokenText(h.Token)
	}
	inJSON, err := json.Marshal(tokens)
	if err != nil {
		panic(err) // cannot happen: strings
	}
	name, token, slot := "", "", "" // of several locks none is the lock
	if len(holds) == 1 {
		name, token, slot = holds[0].Name, tokenText(holds[0].Token), slotText(holds[0].Slot)
	}
	ours := []string{
		"STILE_NAME=" + name, "STILE_TOKEN=" + token, "STILE_TOKENS=" + string(inJSON), "STILE_OWNER=" + holds[0].Owner,
		"STILE_SLOT=" + slot,
		heldVar + "=" + all, "STILE_TTL=" + inSeconds(time.Duration(x.ttl)), urlVar + "=" + x.store.forCommand(),
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc(ours, func(o string) bool {
			name, _, _ := strings.Cut(o, "=")
			return strings.HasPrefix(v, name+"=")
		})
	})
	return append(env, ours...)
}

// tokenText returns a token as a text that is empty on stores without tokens, so that it is never
// that of an enclosing lock.
func tokenText(token uint64) string {
	if token == 0 {
		return ""
	}
	return strconv.FormatUint(token, 10)
}

// slotText returns a slot number as a text that is empty if there is none, so that it is never that of
// an enclosing lock.
func slotText(slot *int) string {
	if slot == nil {
		return ""
	}
	return strconv.Itoa(*slot)
}
