// Package cli implements the stile command. Each verb has a file.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/watchdog"
)

// Stdio is the command's standard input, output and error. Commands that it runs inherit them.
type Stdio struct{ In, Out, Err *os.File }

// Exit codes of stile itself. 75 is EX_TEMPFAIL of sysexits. 124 is the code of timeout(1) for a
// command that took too long, and 125 that of timeout(1) and env(1) for their own failures. 79 is
// the first code that sysexits leaves free.
const (
	exitNotObtained = 75
	exitLost        = 79
	exitTimeout     = 124
	exitFailure     = 125
)

// exit is an error with an exit code. If Err is not nil it is printed to stderr.
type exit struct {
	Code int
	Err  error
}

// Error returns the text of Err, if there is one.
func (e *exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *exit) Unwrap() error { return e.Err }

// Run executes a command line, without the program's name, and returns the exit code.
func Run(ctx context.Context, args []string, stdio Stdio) int {
	if needsServer(args) {
		return stdio.runServer(args)
	}
	root := newRoot(stdio)
	root.SetArgs(args)
	root.SetIn(stdio.In)
	root.SetOut(stdio.Out)
	root.SetErr(stdio.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	e, ok := errors.AsType[*exit](err)
	if !ok {
		e = &exit{exitFailure, err}
	}
	if e.Err != nil {
		stdio.sayError(e.Err)
	}
	return e.Code
}

// messagePrefix is the prefix of every line on stderr.
const messagePrefix = "stile: "

// say writes a line with the prefix to stderr.
func (s Stdio) say(text string) { fmt.Fprintln(s.Err, messagePrefix+text) }

// sayError writes an error to stderr.
func (s Stdio) sayError(err error) { s.say(textOf(err)) }

// textOf returns the text of an error without the prefix, which the library's errors have too.
func textOf(err error) string { return strings.TrimPrefix(err.Error(), messagePrefix) }

// reasonOf returns the cause of a library error, for texts that name the lock themselves.
func reasonOf(err error) error {
	if lost, ok := errors.AsType[*stile.LostError](err); ok && lost.Err != nil {
		return lost.Err
	}
	if reason := errors.Unwrap(err); reason != nil && strings.HasPrefix(err.Error(), messagePrefix) {
		return reason
	}
	return err
}

// serveShort is the short description of the verb serve.
const serveShort = "Run a lock server: an etcd, alone or as a member of a cluster"

// serveNames are other words for the verb serve.
func serveNames() []string { return []string{"server", "page", "web", "metrics", "dashboard"} }

func newRoot(stdio Stdio) *cobra.Command {
	version := false
	root := &cobra.Command{
		Use:   "stile",
		Short: "Distributed locks that stay correct when processes pause, crash or are cut off",
		Long: `Stile runs commands under distributed locks: one holder at a time, on any number of machines.

Locks are kept in a store: etcd, Redis or ZooKeeper. The first of these that is set names it:
  --url                    of the command line
  STILE_URL                in the environment
  /etc/stile/config        for all users of this machine: a line "url: URL"
  /run/stile/stile.sock    a stile serve on this machine, if this user may connect to it
If none is set, stile starts a server in the background, for this user on this machine.
stile version prints which store is used.

Environment:
  STILE_URL        the store, where --url does not name one
  XDG_STATE_HOME   where stile keeps the local server and its data; ~/.local/state if it is not set

Files:
  ~/.local/state/stile/local   the local server: its data, log, process id and socket
  ~/.local/state/stile/server  the data of stile serve`,
		Example: `  stile run nightly-backup -- ./backup.sh
  stile run --url etcd://db1:2379,db2:2379 -n deploy -- make deploy`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			s := cmd.SuggestionsFor(args[0])
			slices.Sort(s)
			if s = slices.Compact(s); len(s) > 0 { // duplicates: found for two reasons
				return fmt.Errorf(`unknown command %q; did you mean "%s"?`, args[0], strings.Join(s, `" or "`))
			}
			return fmt.Errorf("unknown command %q; see stile --help", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return stdio.write(fmt.Appendln(nil, ourVersions()))
			}
			return cmd.Help()
		},
		SuggestionsMinimumDistance: 2,
		SilenceUsage:               true,
		SilenceErrors:              true,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	// Not cobra's own flag: with a template in the program, the linker keeps every method of every type in it.
	root.Flags().BoolVarP(&version, "version", "v", false, "version for stile")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(newRun(stdio), newElect(stdio), newOnce(stdio), newHold(stdio), newAssert(stdio), newServe(stdio), newDemo(stdio), newVersion(stdio), newCompletion(), newMan())
	root.AddCommand(newLs(stdio), newShow(stdio), newWatch(stdio), newWait(stdio), newBreak(stdio), newSlots(stdio), newGraph(stdio), newTop(stdio), newTrace(stdio), newDoctor(stdio))
	root.AddCommand(newWatchdog())
	addCompletions(root)
	completePaths(root)
	hideZeros(root)
	return root
}

// hideZeros keeps help from printing a zero default that means "not set": -w 0 means not to wait,
// but without -w the wait is unbounded.
func hideZeros(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.DefValue == "0s" {
				f.DefValue = ""
			}
		})
	}
}

// newWatchdog returns the verb of the watchdog process; see package watchdog.
func newWatchdog() *cobra.Command {
	return &cobra.Command{
		Use:    watchdog.Verb + " NAME…",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE:   func(*cobra.Command, []string) error { return watchdog.Run(releaseOrphaned) },
	}
}

// untilStopSignal returns a context that ends with SIGINT or SIGTERM, unless the signal was ignored
// when the process started: a shell script ignores SIGINT for its background processes.
func untilStopSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM}, signal.Ignored)
	return signal.NotifyContext(ctx, signals...)
}
