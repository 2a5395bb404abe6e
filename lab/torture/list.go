//go:build linux

package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/lab/torture/mutant"
	"github.com/stilelock/stile/lab/torture/nemesis"
	"github.com/stilelock/stile/lab/torture/trial"
	"github.com/stilelock/stile/lab/torture/workload"
)

func newList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List targets, workloads, faults and mutants",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "TARGETS")
			for _, t := range trial.Targets() {
				fmt.Fprintf(w, "  %s\n", t)
			}
			fmt.Fprintln(w, "WORKLOADS")
			for _, name := range workload.Names() {
				fmt.Fprintf(w, "  %s\n", name)
			}
			fmt.Fprintln(w, "FAULTS")
			for _, f := range nemesis.All() {
				fmt.Fprintf(w, "  %s\t%s\n", f.Name, f.Summary)
			}
			fmt.Fprintln(w, "MUTANTS")
			for _, m := range mutant.All() {
				target := fmt.Sprintf("stile+%s@%s", m.Name, m.Cluster)
				if m.Package != "" {
					target = m.Name + " (" + m.Package + ")"
				}
				fmt.Fprintf(w, "  %s\tbreaks %s\n", target, m.Breaks)
			}
			return w.Flush()
		},
	}
}
