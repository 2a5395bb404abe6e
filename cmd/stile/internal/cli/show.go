package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
)

func newShow(stdio Stdio) *cobra.Command {
	r := newReader(stdio)
	var name string
	cmd := &cobra.Command{
		Use:        "show [flags] NAME",
		Short:      "Show who holds a lock, and who waits for it",
		SuggestFor: []string{"status", "info", "get", "who", "state"},
		Long: `Show who holds the lock NAME and who waits for it, in order, with all that they say of
themselves. A free lock is not an error.

NAME may be any name that stile ls prints, in double quotes too, or a path as for stile run.

A token is what stile break wants. How long a lock has been held, how long its holder waited
for it and how long others have been in line is by the clocks of their hosts. An entry lives as
long as its session, which its owner renews. Remarks tell what is odd about the line, and how
to repair it.`,
		Example: `  stile show nightly-backup
  stile show -o json nightly-backup | jq -r '.holders[].token'`,
		Args: nameArg(&name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return stdio.withClient(cmd.Context(), r.url, func(client *stile.Client) error {
				line, err := client.Line(cmd.Context(), name)
				switch {
				case err != nil:
					return err
				case r.format == formatJSON:
					return stdio.writeJSON(asJSONLine(line))
				default:
					return stdio.write(details(line, time.Now()))
				}
			})
		},
	}
	r.addFlags(cmd.Flags())
	return cmd
}
