//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/report"
	"github.com/stilelock/stile/lab/torture/verdict"
)

func newCheck() *cobra.Command {
	var out, format string
	cmd := &cobra.Command{
		Use:   "check HISTORY",
		Short: "Judge a history",
		Long: `Check reads a history and prints which rules were broken, and figures of what happened. It writes the same as report.json
beside the history, and as report.html, with a timeline of holds and faults.

It exits with 0 if no rule was broken, 1 if one was, and 2 if the history cannot be read.`,
		Example: `  torture check torture-out/stile@etcd3-hot-1/history.jsonl
  torture check -o json history.jsonl | jq .figures`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if out == "" {
				out = filepath.Dir(args[0])
			}
			return check(args[0], out, format)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "directory for the reports (default: that of the history)")
	cmd.Flags().StringVarP(&format, "output", "o", "text", "output format: text or json")
	return cmd
}

func newTable() *cobra.Command {
	var brief bool
	cmd := &cobra.Command{
		Use:     "table HISTORY...",
		Short:   "Judge several histories and print one table of them",
		Example: "  torture table --brief torture-out/matrix/*/history.jsonl",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var all []*verdict.Verdict
			for _, path := range args {
				h, err := history.Read(path)
				if err != nil {
					return err
				}
				all = append(all, verdict.Judge(h))
			}
			return report.Table(os.Stdout, brief, all...)
		},
	}
	cmd.Flags().BoolVar(&brief, "brief", false, "one row for each history, without a row for each fault")
	return cmd
}

// check judges a history, prints the verdict and writes the reports.
func check(path, out, format string) error {
	h, err := history.Read(path)
	if err != nil {
		return err
	}
	v := verdict.Judge(h)
	if err := writeReports(v, out); err != nil {
		return err
	}
	switch format {
	case "json":
		asJSON, err := json.MarshalIndent(v, "", "\t")
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", asJSON)
	case "text":
		if err := report.Text(os.Stdout, v); err != nil {
			return err
		}
		fmt.Println("timeline:", filepath.Join(out, "report.html"))
	default:
		return fmt.Errorf("unknown output format %q: use text or json", format)
	}
	if len(v.Broken()) > 0 {
		return errBroken
	}
	return nil
}

// reportJSON is the name of the file with the verdict. It is written last: a run that has one is
// complete.
const reportJSON = "report.json"

// writeReports writes a verdict as HTML and JSON.
func writeReports(v *verdict.Verdict, out string) error {
	asJSON, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(out, "report.html"), func(w io.Writer) error { return report.Page(w, v) }); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, reportJSON), append(asJSON, '\n'), 0o644)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
