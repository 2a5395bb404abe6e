package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
	"github.com/stilelock/stile/internal/history"
)

// once is one call of the verb.
type once struct {
	execution
	call   history.Call
	every  duration
	keep   duration
	skip   exitCode
	forget bool
}

func newOnce(stdio Stdio) *cobra.Command {
	o := once{execution: execution{request: newRequest(stdio)}}
	cmd := &cobra.Command{
		Use: "once [flags] NAME -- COMMAND [ARGUMENT…]",
		Annotations: map[string]string{
			"usage": "once --forget [flags] NAME",
		},
		Short:      "Run a command that has to succeed once, or once in a period",
		SuggestFor: []string{"cron", "every", "job"},
		Long: `Run the command under the lock NAME, unless it has succeeded already, on this host or another one.

With --key KEY the command runs unless a success is recorded for KEY. With --every DURATION it runs
once in each such period: so the same crontab on ten hosts runs it on one of them. A call skips the
command if the last call that succeeded was made less than nine tenths of the DURATION before. So
the clocks of the hosts may differ by a tenth of the DURATION, less the time by which the calls come
early or late. With both, it runs once in each period for each KEY.

A call that waits while the command runs elsewhere takes over its result: after a success, it skips
the command; after a failure, it ends with the same exit code. With --retry it runs the command
after a failure. A call that comes after the failure runs it anyway.

The success is recorded in the store in one step with a check that the lock is still held. If that
fails, or stile is killed before, the command may run again: it runs at least once. It also runs
again if the store loses its data, in a restore from a backup for example. A recorded success stays.
With --keep DURATION, a new success removes those of other keys that are older than this. With
--forget, stile once removes what is recorded under NAME, or for KEY, and runs nothing. stile show
prints what is recorded.

The command is stopped if the lock is lost, as by stile run. Its environment is described there.

Exit codes:
  the command's own, or 128+N if signal N ended it
  0    the command was skipped, because it has succeeded; -E chooses another
  that of another call's command, which failed while this call waited
  75   the lock could not be acquired (-n, -w)
  79   the lock was lost, and the command was stopped or not started, or had just ended;
       nothing is recorded
  125  stile failed, was used wrongly, or could not read what is recorded; the command was not run
  126  the command cannot be executed
  127  the command was not found
  128+N  signal N ended the wait

A DURATION is in seconds (5, 0.5) or has units (500ms, 1m30s).`,
		Example: `  stile once --every 24h nightly-backup -- ./backup.sh       # in the crontab of several hosts
  stile once --key "$VERSION" migrate -- ./migrate up        # by each of the new instances
  stile once --key "$(date +%F)" --keep 720h report -- ./report
  stile once --forget --key v42 migrate                      # the next call runs it again`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.forget {
				return o.takeName(cmd, args)
			}
			return o.take(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.call.At = time.Now()
			set := cmd.Flags().Changed
			if err := o.checkFlags(set); err != nil {
				return err
			}
			if o.forget {
				return o.runForget(cmd.Context())
			}
			return o.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after NAME belong to the command
	o.addFlags(flags)
	flags.StringVar(&o.call.Key, "key", "", "name of what has to succeed once, any `text`")
	flags.Var(&o.every, "every", "the period in which the command has to succeed once")
	flags.BoolVar(&o.call.Retry, "retry", false, "run the command although it has failed elsewhere during the wait")
	flags.Var(&o.keep, "keep", "forget successes for other keys that are older than this")
	flags.BoolVar(&o.forget, "forget", false, "forget what is recorded, and run nothing")
	o.addPatienceFlags(flags)
	flags.VarP(&o.skip, "skip-exit-code", "E", "exit status if the command was skipped because it has succeeded")
	return cmd
}

// takeName stores the name from the arguments of --forget.
func (o *once) takeName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("missing lock name: stile once --forget [flags] NAME; see stile once --help")
	}
	if err := atMost(1, cmd, args); err != nil {
		return err
	}
	name, err := lockName(args[0])
	o.names = []string{name}
	o.set(cmd.Flags())
	return err
}

// checkFlags validates the flags that other verbs do not have.
func (o *once) checkFlags(set func(flag string) bool) error {
	o.call.Every = time.Duration(o.every)
	switch {
	case set("every") && o.every == 0:
		return errors.New("--every must be more than 0")
	case set("keep") && o.keep == 0:
		return errors.New("--keep must be more than 0")
	case set("keep") && o.keep < o.every:
		return fmt.Errorf("--keep %s is shorter than --every %s: use a longer --keep",
			brief(time.Duration(o.keep)), brief(time.Duration(o.every)))
	case !set("key") && !set("every") && !o.forget:
		return errors.New("neither --key nor --every is given: say what has to succeed once; see stile once --help")
	}
	if o.forget {
		for _, flag := range []string{"every", "retry", "keep", "skip-exit-code", "command"} {
			if set(flag) {
				return fmt.Errorf("--%s has no meaning with --forget", flag)
			}
		}
	}
	if set("key") {
		if err := history.CheckKey(o.call.Key); err != nil {
			return fmt.Errorf("--key %q: %w", clip(o.call.Key, 40), err)
		}
	}
	return nil
}

func (o *once) run(ctx context.Context) error {
	if err := o.prepare(); err != nil {
		return err
	}
	o.beforeWait = o.lookBefore
	signals := child.Listen()
	defer signals.Close()
	ctx, cancel := context.WithCancel(ctx) // ends the use of the local server, however long the last output takes
	defer cancel()
	l, err := o.acquire(ctx, signals, o.owner)
	if err != nil {
		return err
	}
	defer l.close()

	h, err := o.read(ctx, l.client)
	if err != nil {
		return err
	}
	if ended := o.skipped(h); ended != nil {
		return ended
	}
	if s := h.InFuture(o.call, time.Now()); s != nil {
		o.stdio.say(fmt.Sprintf("%s: the last success, by %s, is said to be of %s, in the future: running the command; "+
			"check the clocks of the hosts", l.what(), plain(s.Owner), s.Called.Local().Format(time.DateTime)))
	}
	attempt := history.Attempt{Called: o.call.At, Owner: l.owner, Token: l.hold.(*stile.Hold).Token()}
	if _, err := o.with(h, attempt).Record(); err != nil { // before the command runs each time without being recorded
		return fmt.Errorf("%s: the success of the command could not be recorded: %w; use --keep, --forget, or another NAME", l.what(), err)
	}
	result, err := o.runUnder(l, signals)
	if err != nil {
		return err
	}
	if attempt.ExitCode = result.ExitCode; result.Outcome == supervise.Ended && (result.ExitCode == 0 || !result.Interrupted) {
		o.record(ctx, l, signals, o.with(h, attempt), result.ExitCode)
	}
	return exitFor(result)
}

func (o *once) with(h history.History, a history.Attempt) history.History {
	return h.With(o.call.Key, a, time.Duration(o.keep))
}

// lookBefore is the request's beforeWait. It ends the call before it joins the line, if the command has
// succeeded, and notes the last failure: a later one comes while the call waits.
func (o *once) lookBefore(ctx context.Context, client *stile.Client) error {
	h, err := o.read(ctx, client)
	if err != nil {
		return err
	}
	o.call.Seen = h.LastFailure(o.call.Key)
	if ended := o.skipped(h); ended != nil {
		return ended
	}
	return nil
}

// read reads the history of the name.
func (o *once) read(ctx context.Context, client *stile.Client) (history.History, error) {
	h, err := history.Read(ctx, client, o.names[0])
	if errors.Is(err, history.ErrDamaged) {
		err = fmt.Errorf("%w; stile once --forget %s removes it", err, asArgument(o.names[0]))
	}
	return h, err
}

// skipped returns the exit if the command is not to be run, and nil if it is.
func (o *once) skipped(h history.History) *exit {
	verdict, a := h.Judge(o.call, time.Now())
	if verdict == history.Run {
		return nil
	}
	said := fmt.Errorf("%s: the command was not run: %s", lockText(o.names...), attemptText(o.call.Key, *a))
	switch {
	case verdict == history.Failed && o.quiet:
		return &exit{Code: a.ExitCode}
	case verdict == history.Failed:
		return &exit{a.ExitCode, said}
	case o.verbose:
		return &exit{int(o.skip), said}
	default:
		return &exit{Code: int(o.skip)}
	}
}

// attemptText describes an attempt in a few words.
func attemptText(key string, a history.Attempt) string {
	text := "it"
	if key != "" {
		text = fmt.Sprintf("%q", key)
	}
	if a.ExitCode == 0 {
		text += " succeeded"
	} else {
		text += fmt.Sprintf(" failed with exit code %d during the wait", a.ExitCode)
	}
	return text + fmt.Sprintf(", called by %s at %s", plain(a.Owner), a.Called.Local().Format(time.DateTime))
}

// record writes the history. If that fails, it says so: it does not change the exit code. It tries as long
// as the lock is held, but a signal ends it.
func (o *once) record(ctx context.Context, l *lock, signals *child.Signals, h history.History, exitCode int) {
	ctx, listened := untilInterrupted(ctx, signals)
	err := writeHistory(ctx, l, h)
	if interrupted, ok := errors.AsType[*interruption](context.Cause(ctx)); ok && err != nil {
		err = interrupted
	}
	listened()
	switch {
	case err != nil && exitCode == 0:
		o.stdio.say(fmt.Sprintf("%s: the command succeeded, but this is not recorded, so it may run again: %s", l.what(), textOf(reasonOf(err))))
	case err != nil:
		o.stdio.say(fmt.Sprintf("%s: the command failed, but this is not recorded, so the waiters may run it: %s", l.what(), textOf(reasonOf(err))))
	case exitCode == 0:
		l.report("%s: the success is recorded", l.what())
	}
}

// writeHistory writes the history of the lock's name, while the lock is held.
func writeHistory(ctx context.Context, l *lock, h history.History) error {
	one := l.hold.(*stile.Hold)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(one.Context(), cancel)()
	return history.Write(ctx, one, h)
}

// runForget removes the history of the name, or that of the key, under the lock.
func (o *once) runForget(ctx context.Context) error {
	owner, err := o.request.check("stile once --forget")
	if err != nil {
		return err
	}
	if o.store, err = chooseStore(o.url); err != nil {
		return err
	}
	signals := child.Listen()
	defer signals.Close()
	ctx, cancel := context.WithCancel(ctx) // ends the use of the local server, however long the last output takes
	defer cancel()
	l, err := o.acquire(ctx, signals, owner)
	if err != nil {
		return err
	}
	defer l.close()
	var h history.History
	if o.call.Key != "" {
		if h, err = o.read(ctx, l.client); err != nil {
			return err
		}
		if _, known := h.Jobs[o.call.Key]; !known {
			return nil
		}
		h = h.Without(o.call.Key)
	}
	return writeHistory(ctx, l, h)
}
