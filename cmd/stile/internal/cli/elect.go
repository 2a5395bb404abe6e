package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
)

// elect is one call of the verb.
type elect struct {
	execution
	restart restart
	observe bool
	format  format
}

// restart says when the command is started again.
type restart string

const (
	onLoss restart = "on-loss"
	always restart = "always"
	never  restart = "never"
)

// Set implements pflag.Value.
func (r *restart) Set(s string) error {
	switch restart(s) {
	case onLoss, always, never:
		*r = restart(s)
		return nil
	default:
		return errors.New("must be on-loss, always or never")
	}
}

// String implements pflag.Value.
func (r *restart) String() string { return string(*r) }

// Type implements pflag.Value.
func (r *restart) Type() string { return "when" }

const (
	// firstPause and maxPause bound the pause before the next campaign, which doubles. It begins anew
	// when the command has run for maxPause.
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

func newElect(stdio Stdio) *cobra.Command {
	e := elect{execution: execution{request: newRequest(stdio)}, restart: onLoss, format: formatText}
	e.kind.election = true
	cmd := &cobra.Command{
		Use: "elect [flags] NAME -- COMMAND [ARGUMENT…]",
		Annotations: map[string]string{
			"usage": "elect --observe [flags] NAME",
		},
		Short:      "Run a command while this process is the leader",
		SuggestFor: []string{"leader", "campaign", "election"},
		Long: `Take part in the election NAME, and run the command while this process leads. Candidates become
leader in order of arrival (on Redlock in no order). The others wait.

If the leadership is lost, because the store is unreachable or the lock was broken, the command is
stopped as by stile run, and stile elect waits to lead again: then it starts the command again.
That is --restart on-loss, the default. With always, stile elect also resigns when the command has
ended by itself, waits to lead again, and starts the command again. With never, it ends whenever
the command does. Before it waits again, it pauses: for a second, and twice as long each further
time, up to half a minute.

The command is not started again if INT, QUIT or TERM was sent to stile elect, or if HUP was and has
killed the command.

An election is a lock whose holder publishes a value: --value. stile show prints it, and
stile elect --observe NAME prints the leaders as they come, and nobody when there is none. It skips
what changes again within a tenth of a second. With -o json each line of its output is an object
whose leader is null if there is none.

Environment of the command: see stile run.

Exit codes:
  the command's own, or 128+N if signal N ended it
  79   the leadership was lost (--restart never, or a signal came too)
  125  stile failed; the command was not run
  126  the command cannot be executed
  127  the command was not found
  128+N  signal N ended the wait

A DURATION is in seconds (5, 0.5) or has units (500ms, 1m30s).`,
		Example: `  stile elect scheduler -- ./scheduler
  stile elect --value "$HOSTNAME:8080" --restart always api-leader -- ./api --leader
  stile elect --observe api-leader
  stile elect --observe -o json api-leader | jq -r --unbuffered '.leader.value // "nobody"'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if e.observe {
				return e.takeObserved(cmd, args)
			}
			if cmd.Flags().Changed("output") {
				return errors.New("-o is for --observe only; see stile elect --help")
			}
			return e.take(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.observe {
				return e.runObserve(cmd.Context())
			}
			return e.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after NAME belong to the command
	e.addFlags(flags)
	flags.StringVar(&e.value, "value", "", "a `text` that others see while this process leads, an address for example")
	flags.Var(&e.restart, "restart", "start the command again: on-loss, always or never")
	flags.BoolVar(&e.observe, "observe", false, "print the leaders instead of taking part")
	flags.VarP(&e.format, "output", "o", "text, or json for programs (--observe)")
	return cmd
}

// takeObserved stores the name from the arguments of --observe, and refuses the flags of a candidate.
func (e *elect) takeObserved(cmd *cobra.Command, args []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && !slices.Contains([]string{"observe", "output", "url"}, f.Name) {
			err = fmt.Errorf("--%s has no meaning with --observe", f.Name)
		}
	})
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("missing lock name: stile elect --observe [flags] NAME; see stile elect --help")
	}
	var name string
	err = nameArg(&name)(cmd, args)
	e.names = []string{name}
	return err
}

func (e *elect) run(ctx context.Context) error {
	if err := e.prepare(); err != nil {
		return err
	}
	signals := child.Listen()
	defer signals.Close()
	ctx, cancel := context.WithCancel(ctx) // ends the use of the local server, however long the last output takes
	defer cancel()
	var storeOutage outage
	led := false
	var next pauses
	for {
		l, err := e.acquire(ctx, signals, e.owner)
		if _, final := errors.AsType[*exit](err); err != nil && (final || !led) {
			return err
		}
		if update := storeOutage.update(err); update != "" {
			e.stdio.say(update)
		}
		var pause time.Duration
		if err != nil {
			pause = next.after(0)
		} else {
			led = true
			began := time.Now()
			again, err := e.lead(l, signals)
			if !again {
				return err
			}
			pause = next.after(time.Since(began))
			if !e.quiet {
				e.stdio.say(fmt.Sprintf("campaigning for %s again in %v", l.what(), pause))
			}
		}
		if err := pauseFor(ctx, signals, pause); err != nil {
			return err
		}
	}
}

// lead runs the command, and gives the lock up. It reports whether to campaign again; if not, the
// error is the exit.
func (e *elect) lead(l *lock, signals *child.Signals) (again bool, err error) {
	defer l.close()
	result, err := e.runUnder(l, signals)
	switch {
	case err != nil, result.Interrupted:
	case e.restart == always, e.restart == onLoss && result.Outcome == supervise.Lost:
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, exitFor(result)
}

// pauses are those before the next campaigns. The zero value begins with [firstPause].
type pauses struct{ next time.Duration }

// after returns the pause after a campaign by which this process has led for so long; zero if it has not.
func (p *pauses) after(led time.Duration) time.Duration {
	pause := p.next
	if pause == 0 || led >= maxPause {
		pause = firstPause
	}
	p.next = min(2*pause, maxPause)
	return pause
}

// pauseFor returns after the pause, or with the exit for a signal that would end the process.
func pauseFor(ctx context.Context, signals *child.Signals, pause time.Duration) error {
	ctx, listened := untilInterrupted(ctx, signals)
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
	listened()
	if interrupted, ok := errors.AsType[*interruption](context.Cause(ctx)); ok {
		return &exit{Code: child.ExitCodeFor(interrupted.signal)}
	}
	return nil
}

// jsonLeader is a line of output of --observe.
type jsonLeader struct {
	Time   time.Time     `json:"time"`
	Name   string        `json:"name"`
	Leader *leaderInJSON `json:"leader"`
}

type leaderInJSON struct {
	Value   string      `json:"value"`
	Token   uint64      `json:"token,string"`
	Owner   stile.Owner `json:"owner"`
	Foreign bool        `json:"foreign,omitempty"`
	Session string      `json:"session"`
}

// runObserve prints the leaders until it is interrupted.
func (e *elect) runObserve(ctx context.Context) error {
	// Signals may end the process at once: there is nothing to clean up.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	onReaderGone(e.stdio.Out, func() { cancel(errStdoutClosed) })
	err := e.stdio.withClient(ctx, e.url, func(client *stile.Client) error { return e.printLeaders(ctx, client) })
	if errors.Is(context.Cause(ctx), errStdoutClosed) {
		return errStdoutClosed
	}
	return err
}

func (e *elect) printLeaders(ctx context.Context, client *stile.Client) error {
	var storeOutage outage
	begun := false
	for leader, err := range client.Election(e.names[0]).Observe(ctx) {
		if err != nil && !begun {
			return err
		}
		begun = true
		if update := storeOutage.update(err); update != "" {
			e.stdio.say(update)
		}
		if err != nil {
			continue
		}
		b, err := e.leaderLine(leader, time.Now())
		if err != nil {
			return err
		}
		if err := e.stdio.write(b); err != nil {
			return err
		}
	}
	return storeOutage.err // a permanent error is the last one
}

// leaderLine returns a line of output about the current leader; nil means nobody.
func (e *elect) leaderLine(l *stile.Leader, now time.Time) ([]byte, error) {
	if e.format == formatJSON {
		out := jsonLeader{Time: now.UTC().Truncate(time.Millisecond), Name: e.names[0]}
		if l != nil {
			out.Leader = &leaderInJSON{l.Value, l.Token, l.Owner, l.Foreign, l.Session}
		}
		return asJSON(out, "")
	}
	at := now.Local().Format(time.DateTime)
	if l == nil {
		return fmt.Appendf(nil, "%s  nobody\n", at), nil
	}
	entry := stile.Entry{Token: l.Token, Owner: l.Owner, Foreign: l.Foreign, Session: l.Session}
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "%s  leader  %s  %s", at, tokenOf(entry), who(entry))
	if l.Value != "" {
		fmt.Fprintf(&buf, "  value: %s", plain(l.Value))
	}
	buf.WriteByte('\n')
	return buf.Bytes(), nil
}
