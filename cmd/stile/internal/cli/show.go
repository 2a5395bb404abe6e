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
		Short:      "Show the holders of a lock, and its waiters",
		SuggestFor: []string{"status", "info", "get", "who", "state"},
		Long: `Show the holders of the lock NAME and its waiters, in order, with everything known about
them. A free lock is not an error.

NAME may be any name that stile ls prints, in double quotes too, or a path as for stile run.

stile break takes the token. The times held and waited are measured by the clocks of the
owners' hosts. An entry lives as long as its session, which its owner renews. Remarks say
what is wrong with the line and how to repair it.`,
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
