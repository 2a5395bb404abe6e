package cli

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
)

func newLs(stdio Stdio) *cobra.Command {
	r := newReader(stdio)
	var prefix string
	cmd := &cobra.Command{
		Use:        "ls [flags] [PREFIX]",
		Short:      "List the locks that are held",
		SuggestFor: []string{"list", "locks", "ps"},
		Long: `List the locks that are held, with their holders and the number of waiters, sorted by name:
all locks, or those whose name begins with PREFIX.

AGE is how long the lock has been held, by the clock of the holder's host. If the time of
acquisition is not known, as in the first second, AGE is an upper bound, such as <5m. LEFT is how
long the holder's session lives if it is not renewed. If a lock has several holders, the
first one is shown and the others are counted. Long lists are printed while they are
read, so columns may become wider on the way. A name that stile run does not accept, or
that is not printable, is printed as a Go string in double quotes; show, wait and break
accept it in that form.

Exit codes:
  0    the locks were listed; there may be none
  125  stile failed, or could not read the store`,
		Example: `  stile ls
  stile ls deploy/
  stile ls -o json | jq -r '.[] | select(.waiters != []) | .name'`,
		Args: prefixArg(&prefix),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A listing keeps little of what it reads. To collect garbage early takes a fifth more of the processor's
			// time, and a tenth less memory.
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(40)
			}
			return stdio.withClient(cmd.Context(), r.url, func(client *stile.Client) error {
				lines := client.LinesSeq(cmd.Context(), prefix)
				if r.format == formatJSON {
					return writeJSONLines(lines, stdio.write)
				}
				n, err := overview(lines, time.Now, stdio.write)
				switch {
				case err != nil || n > 0:
				case prefix == "":
					stdio.sayAtTerminal("no lock is held")
				default:
					stdio.sayAtTerminal(fmt.Sprintf("no lock is held whose name begins with %q", prefix))
				}
				return err
			})
		},
	}
	r.addFlags(cmd.Flags())
	return cmd
}
