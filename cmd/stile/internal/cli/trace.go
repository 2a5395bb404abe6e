package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/cmd/stile/internal/trace"
)

// traceCmd is one call of the verb.
type traceCmd struct {
	stdio        Stdio
	url          string
	prefix, file string
	length       duration
}

func newTrace(stdio Stdio) *cobra.Command {
	t := traceCmd{stdio: stdio}
	cmd := &cobra.Command{
		Use:        "trace [flags] -o FILE [PREFIX]",
		SuggestFor: []string{"record", "perfetto", "timeline"},
		Short:      "Record waits, holds and hand-overs for a trace viewer",
		Long: `Record what happens to all locks, or to those whose name begins with PREFIX, until ^C or for the
time of --for. The file is in the JSON trace event format: open it at https://ui.perfetto.dev, or in
Chrome at chrome://tracing. Perfetto reads the file in the browser and does not upload it.

It shows each host, and each of its processes, with a slice for each wait and each hold. A slice
has the lock, the token, the owner, the reason and the labels, and why the hold ended, if that
is known. An arrow leads from the end of a hold to the hold of the waiter that came next. Losses
are marked, and so are the times in which the store could not be read.

The times are those at which this machine saw the changes. On etcd every hold is recorded, with
few exceptions. Other stores are read at most ten times a second, so a hold that begins and ends
between two readings is missed. What began before the recording, or went on after it, has a note
that says so.

The file is written as it is recorded. If stile is killed, the file can still be opened. A
terminal shows the number of events so far: joins, acquisitions and ends.

Exit codes:
  0    the time of --for is over, or SIGINT or SIGTERM ended the recording
  125  stile failed, or could not read the store at the start
  141  with -o -, the program that reads the trace has ended`,
		Example: `  stile trace -o locks.json
  stile trace -o deploy.json --for 10m deploy/
  stile trace -o - --for 1h | gzip >locks.json.gz`,
		Args: prefixArg(&t.prefix),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.file == "" {
				return errors.New("missing -o FILE: where to write the trace, or - for stdout; see stile trace --help")
			}
			return stdio.withObserver(cmd.Context(), t.url, t.prefix, t.run)
		},
	}
	flags := cmd.Flags()
	addURL(flags, &t.url)
	flags.StringVarP(&t.file, "output", "o", "", "`file` to write, or - for stdout")
	flags.Var(&t.length, "for", "record for so long; 0, the default, means until ^C")
	return cmd
}

func (t *traceCmd) run(ctx context.Context, o *observe.Observer) error {
	ctx, stop := untilStopSignal(ctx)
	defer stop()
	if t.file == "-" {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		onReaderGone(t.stdio.Out, func() { cancel(errStdoutClosed) })
		err := t.record(ctx, o, stdoutWriter{t.stdio})
		if errors.Is(context.Cause(ctx), errStdoutClosed) {
			return errStdoutClosed
		}
		return err
	}
	file, err := os.Create(t.file)
	if err != nil {
		return err
	}
	if err := t.record(ctx, o, file); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

func (t *traceCmd) record(ctx context.Context, o *observe.Observer, to io.Writer) error {
	p := newProgress(t.stdio)
	defer p.clear()
	events, err := trace.Record(ctx, o, trace.Config{
		To: to, For: time.Duration(t.length), Name: asArgument, Text: plain,
		Progress: func(events int) {
			p.show(fmt.Sprintf("%d events; ^C ends the recording", events), fmt.Sprintf("%d events", events))
		},
	})
	p.clear()
	if err == nil {
		t.stdio.sayAtTerminal(fmt.Sprintf("%d events recorded; open the file at https://ui.perfetto.dev", events))
	}
	return err
}

// stdoutWriter writes to stdout, with the errors of [Stdio.write].
type stdoutWriter struct{ stdio Stdio }

// Write implements io.Writer.
func (w stdoutWriter) Write(b []byte) (int, error) { return len(b), w.stdio.write(b) }

// withObserver opens the chosen store and calls f with an observer of the lines whose name begins with
// prefix. The observer runs until f returns. If the store refuses, the context of f ends, and that
// error is returned.
func (s Stdio) withObserver(ctx context.Context, url, prefix string, f func(context.Context, *observe.Observer) error) error {
	return s.withClient(ctx, url, func(client *stile.Client) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		o := observe.NewWithPrefix(client, prefix)
		refused := make(chan error, 1)
		go func() {
			defer cancel()
			refused <- o.Run(ctx)
		}()
		err := f(ctx, o)
		cancel()
		if refusal := <-refused; err == nil {
			err = refusal
		}
		return err
	})
}
