package cli

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/cmd/stile/internal/top"
)

func newTop(stdio Stdio) *cobra.Command {
	var url, prefix string
	cmd := &cobra.Command{
		Use:        "top [flags] [PREFIX]",
		SuggestFor: []string{"ui", "tui", "live", "dashboard"},
		Short:      "Show the locks live in the terminal",
		Long: `Show all locks, or those whose name begins with PREFIX, live in the terminal: who holds them, for
how long, how long the holder's session lives if it is not renewed, and how many wait. The
columns are those of stile ls. The bar is full after a renewal of the session.

Keys:
  up, down, page up, page down, home, end   move
  n, w, a   sort by name, by the number of waiters, by age (the oldest hold first)
  /         filter: type a part of a name or of a holder, then enter; esc shows all again
  enter     everything about the selected lock: holders, waiters, tokens, reasons, labels; esc goes back
  q         quit

While the store cannot be read, the first line says since when: what is shown is that old. In a
narrow terminal some columns are left out. Colors are left out if NO_COLOR is set.

Without a terminal, and where TERM is dumb, it prints one table and ends, like stile ls.

Exit codes:
  0    the user, SIGINT or SIGTERM ended it; without a terminal, the table was printed
  125  stile failed, or could not read the store at the start`,
		Example: `  stile top
  stile top deploy/
  stile top --url redis://db1`,
		Args: prefixArg(&prefix),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !stdio.canDraw() {
				return stdio.withClient(cmd.Context(), url, func(client *stile.Client) error {
					_, err := overview(client.LinesSeq(cmd.Context(), prefix), time.Now, stdio.write)
					return err
				})
			}
			return stdio.withObserver(cmd.Context(), url, prefix, func(ctx context.Context, o *observe.Observer) error {
				if err := awaitReading(ctx, o); err != nil {
					return err
				}
				return top.Run(ctx, o, top.Texts{
					Row: topRow, Plain: plain,
					Details: func(l stile.Line, now time.Time) string { return string(lineDetails(l, now)) },
				}, stdio.In, stdio.Out)
			})
		},
	}
	addURL(cmd.Flags(), &url)
	return cmd
}

// canDraw reports whether stdin and stdout are a terminal on which the cursor can be moved.
func (s Stdio) canDraw() bool {
	return term.IsTerminal(int(s.In.Fd())) && term.IsTerminal(int(s.Out.Fd())) && os.Getenv("TERM") != "dumb"
}

// awaitReading waits for the first reading of the lines. It returns an error if that fails.
func awaitReading(ctx context.Context, o *observe.Observer) error {
	var last uint64
	for ctx.Err() == nil {
		status := o.Status()
		if status.Read || status.Err != nil {
			return status.Err
		}
		_, last, _ = o.Updates(last)
		o.Wait(ctx, last, status)
	}
	return nil
}

// topRow returns the row of a line, with the columns of [overview].
func topRow(l stile.Line, now time.Time) top.Row {
	r := top.Row{Name: asArgument(l.Name), Holder: holders(l), Age: "?", Left: "?", Waiting: len(l.Waiters)}
	if len(l.Holders) == 0 {
		return r
	}
	first := l.Holders[0]
	r.Age, r.Left, r.Since = heldFor(first, now), leftOf(first), first.Owner.Obtained
	if r.Since.IsZero() {
		r.Since = first.Owner.Since
	}
	return r
}
