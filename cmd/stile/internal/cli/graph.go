package cli

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
)

// exitCycle is the exit code of stile graph if holders wait for each other.
const exitCycle = 1

func newGraph(stdio Stdio) *cobra.Command {
	r := newReader(stdio)
	var prefix string
	cmd := &cobra.Command{
		Use:        "graph [flags] [PREFIX]",
		Short:      "Show which holders wait for other locks, and deadlocks",
		SuggestFor: []string{"deadlock", "deadlocks", "cycles", "waits", "tree"},
		Long: `Show which holders of locks wait for other locks, and cycles of them first: of all locks, or
of those whose name begins with PREFIX.

In a cycle, the holder of each lock waits for the next one. That is a deadlock if the locks
are exclusive. It lasts until one of the waits ends (stile run -w ends them by itself), or
until a hold is removed with stile break. To avoid cycles, take several locks at once, with
stile run --all, or always in the same order.

A wait is known if a stile run is part of the command of another one, or if a program waits
with the context of its hold for longer than a second. The lines of the locks are read one
after another, so a wait that begins or ends meanwhile may be shown or not. Redlock stores
have no record of waits.

Exit codes:
  0    there is no cycle
  1    there is a cycle
  125  stile failed`,
		Example: `  stile graph
  stile graph -o json deploy/ | jq '.cycles'`,
		Args: prefixArg(&prefix),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return stdio.withClient(cmd.Context(), r.url, func(client *stile.Client) error {
				g, err := client.WaitGraph(cmd.Context(), prefix)
				if err != nil {
					return err
				}
				if r.format == formatJSON {
					err = stdio.writeJSON(g)
				} else {
					if len(g.Waits) == 0 {
						stdio.sayAtTerminal("no holder waits for another lock")
					}
					err = stdio.write(waits(g, time.Now()))
				}
				if err == nil && len(g.Cycles) > 0 {
					err = &exit{Code: exitCycle}
				}
				return err
			})
		},
	}
	r.addFlags(cmd.Flags())
	return cmd
}

// waits formats a wait graph: a line for each cycle, then a table with a row for each wait.
func waits(g *stile.WaitGraph, now time.Time) []byte {
	var buf bytes.Buffer
	for _, cycle := range g.Cycles {
		var names []string
		for _, name := range append(cycle, cycle[0]) {
			names = append(names, asArgument(name))
		}
		fmt.Fprintf(&buf, "cycle: %s\n", strings.Join(names, " -> "))
	}
	if len(g.Waits) == 0 {
		return buf.Bytes()
	}
	table := newTable(&buf)
	fmt.Fprintln(table, "HELD\tHOLDER\tTOKEN\tWAITS FOR\tWAITED")
	for _, w := range g.Waits {
		waited := "?"
		if d, ok := elapsed(w.Since, now); ok {
			waited = twoUnits(d)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", asArgument(w.Held), clip(who(w.Holder), 80), w.Holder.Token, asArgument(w.For), waited)
	}
	table.Flush()
	return buf.Bytes()
}
