package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/history"
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
what is wrong with the line and how to repair it. What stile once has recorded for the name
follows.

Exit codes:
  0    the lock was shown, held or free
  125  stile failed, or could not read the store`,
		Example: `  stile show nightly-backup
  stile show -o json nightly-backup | jq -r '.holders[].token'`,
		Args: nameArg(&name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return stdio.withClient(cmd.Context(), r.url, func(client *stile.Client) error {
				line, err := client.Line(cmd.Context(), name)
				if err != nil {
					return err
				}
				jobs := jobsOf(cmd.Context(), client, &line)
				if r.format == formatJSON {
					return stdio.writeJSON(shownInJSON{asJSONLine(line), jobs})
				}
				return stdio.write(append(lineDetails(line, time.Now()), jobDetails(jobs)...))
			})
		},
	}
	r.addFlags(cmd.Flags())
	return cmd
}

// shownInJSON is the JSON output.
type shownInJSON struct {
	jsonLine
	// Jobs are the last attempts of stile once, by key. The key is empty for calls without --key.
	Jobs map[string]history.Job `json:"jobs,omitempty"`
}

// jobsOf returns what stile once has recorded for a line's name; nil if there is nothing. If that cannot be
// read or understood, it adds a remark to the line: a user may be allowed to read lines only.
func jobsOf(ctx context.Context, client *stile.Client, line *stile.Line) map[string]history.Job {
	h, err := history.Read(ctx, client, line.Name)
	switch {
	case err == nil, errors.Is(err, stile.ErrUnsupported), errors.Is(err, stile.ErrBadName): // a lock that Stile cannot take has no record
	case errors.Is(err, history.ErrDamaged):
		line.Remarks = append(line.Remarks, fmt.Sprintf("%v; stile once --forget removes it", err))
	default:
		line.Remarks = append(line.Remarks, "what stile once has recorded cannot be read: "+textOf(reasonOf(err)))
	}
	return h.Jobs
}

// jobDetails formats the last attempts of stile once.
func jobDetails(jobs map[string]history.Job) []byte {
	var buf bytes.Buffer
	table := newTable(&buf)
	for _, key := range slices.Sorted(maps.Keys(jobs)) {
		name := "once"
		if key != "" {
			name += " " + strconv.Quote(key)
		}
		job := jobs[key]
		if a := job.Success; a != nil {
			fmt.Fprintf(table, "%s\tsucceeded, called %s\n", name, callText(*a))
		}
		if a := job.Failure; a != nil {
			fmt.Fprintf(table, "%s\tfailed with exit code %d, called %s\n", name, a.ExitCode, callText(*a))
		}
	}
	table.Flush()
	return buf.Bytes()
}

// callText says when an attempt was called, by whom, and under which token.
func callText(a history.Attempt) string {
	return fmt.Sprintf("%s by %s, token %d", a.Called.Local().Format(time.DateTime), plain(a.Owner), a.Token)
}
