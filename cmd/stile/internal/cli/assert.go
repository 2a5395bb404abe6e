package cli

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/cmd/stile/internal/validity"
)

// assert is one call of the verb.
type assert struct {
	stdio  Stdio
	format format
	quiet  bool
	name   string // empty means all locks
}

func newAssert(stdio Stdio) *cobra.Command {
	a := assert{stdio: stdio, format: formatText}
	cmd := &cobra.Command{
		Use:        "assert [flags] [NAME]",
		Short:      "Check, in a script under stile run, that the lock is still held",
		SuggestFor: []string{"check", "held", "valid"},
		Long: `Check that the locks that this script runs under are still held: those of the stile run around
it, and of the ones around that; or NAME only. Print for how long they are held at least, if no
further renewal is confirmed.

stile assert asks the stile run on this machine, not the store, and takes some milliseconds: use it
before every step that must not be made without the lock. The lock may still be lost a moment
later. To be safe from that too, let the resource check STILE_TOKEN.

It also works under stile elect.

Exit codes:
  0    all of them are held
  79   one of them is not held any more
  125  NAME is not one of these locks, no stile run is around this command, or it cannot be asked`,
		Example: `  stile run migrate -- sh -ec 'for f in *.sql; do stile assert -q; psql -f "$f"; done'
  stile assert -o json | jq -r '.[0].left_seconds'`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 0 {
				return nil
			}
			return nameArg(&a.name)(cmd, args)
		},
		RunE: func(*cobra.Command, []string) error { return a.run() },
	}
	flags := cmd.Flags()
	flags.VarP(&a.format, "output", "o", "text, or json for programs")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "print nothing unless stile itself fails")
	return cmd
}

// asserted is a lock in JSON.
type asserted struct {
	Name  string  `json:"name"`
	Token uint64  `json:"token,string"`
	Held  bool    `json:"held"`
	Left  float64 `json:"left_seconds"`
}

func (a *assert) run() error {
	around := enclosingLocks()
	if len(around) == 0 {
		return errors.New("there is no stile run around this command: " + heldVar + " is not set")
	}
	if a.name != "" {
		around = slices.DeleteFunc(around, func(h held) bool { return h.Name != a.name })
		if len(around) == 0 {
			return fmt.Errorf("no stile run around this command holds lock %q", a.name)
		}
	}
	var all []asserted
	var lost []string
	var shortest time.Duration
	for i, h := range around {
		left, err := validity.Left(h.Validity)
		if err != nil && !errors.Is(err, validity.ErrOver) {
			return fmt.Errorf("lock %q: the stile run that holds it cannot be asked: %w", h.Name, err)
		}
		if err != nil {
			lost = append(lost, h.Name)
		}
		if i == 0 || left < shortest {
			shortest = left
		}
		all = append(all, asserted{h.Name, h.Token, err == nil, left.Truncate(time.Millisecond).Seconds()})
	}
	return a.print(all, lost, shortest)
}

func (a *assert) print(all []asserted, lost []string, shortest time.Duration) error {
	var failure error
	if len(lost) > 0 {
		failure = &exit{exitLost, errors.New(lockText(lost...) + ": not held any more")}
	}
	switch {
	case a.quiet && failure != nil:
		return &exit{Code: exitLost}
	case a.quiet:
		return nil
	case a.format == formatJSON:
		if err := a.stdio.writeJSON(all); err != nil {
			return err
		}
		return failure
	case failure != nil:
		return failure
	}
	var names []string
	for _, l := range all {
		names = append(names, l.Name)
	}
	return a.stdio.write(fmt.Appendf(nil, "%s: held for another %v at least\n", lockText(names...), shortest.Truncate(100*time.Millisecond)))
}
