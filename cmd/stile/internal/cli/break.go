package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
)

// exitNothingBroken is the exit code for a token that no entry has.
const exitNothingBroken = 1

// breakCmd is one call of the verb break.
type breakCmd struct {
	reader
	name     string
	token    token
	tokenSet bool
}

// token is the value of a flag that takes a token as stile show prints it: a decimal number.
type token uint64

// Set implements pflag.Value.
func (t *token) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return errors.New("must be a number, as stile show prints it")
	}
	*t = token(n)
	return nil
}

// String implements pflag.Value.
func (t *token) String() string { return strconv.FormatUint(uint64(*t), 10) }

// Type implements pflag.Value.
func (t *token) Type() string { return "token" }

func newBreak(stdio Stdio) *cobra.Command {
	b := breakCmd{reader: newReader(stdio)}
	cmd := &cobra.Command{
		Use:        "break [flags] NAME --token N",
		Short:      "Forcibly remove a holder or a waiter",
		SuggestFor: []string{"unlock", "release", "kill", "rm", "remove", "delete", "steal"},
		Long: `Remove the holder or waiter with the given token from the line of the lock NAME, and print
what it was. If no entry has that token, nothing changes: a hold that began after you looked
is not broken by mistake. stile show prints the tokens.

NAME may be any name that stile ls prints, in double quotes too, or a path as for stile run.

A holder that is broken is notified, and stile run stops its command; but the next holder is
admitted at once, so the two may overlap. Only a resource that checks tokens is safe from
that. A waiter that is broken rejoins the line at its end.

Exit codes:
  0    the holder or waiter was removed
  1    no holder or waiter has that token; nothing was changed
  125  stile failed; the message says whether the entry may have been removed`,
		Example: `  stile show nightly-backup
  stile break nightly-backup --token 34816`,
		Args: nameArg(&b.name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b.tokenSet = cmd.Flags().Changed("token")
			return stdio.withClient(cmd.Context(), b.url, func(client *stile.Client) error {
				return b.run(cmd.Context(), client)
			})
		},
	}
	flags := cmd.Flags()
	b.addFlags(flags)
	flags.Var(&b.token, "token", "the `token` of the holder or waiter to remove; required")
	return cmd
}

func (b *breakCmd) run(ctx context.Context, client *stile.Client) error {
	if !b.tokenSet {
		return b.whichToken(ctx, client)
	}
	// Read first: the store returns no more about the removed entry than about the others.
	line, err := client.Line(ctx, b.name)
	if err != nil {
		return err
	}
	entry, err := client.Break(ctx, b.name, uint64(b.token))
	switch {
	case errors.Is(err, stile.ErrGone):
		return &exit{exitNothingBroken, fmt.Errorf("no holder or waiter of %q has token %d; nothing changed (see stile show %s)",
			b.name, b.token, asArgument(b.name))}
	case err != nil:
		return fmt.Errorf("%w; run stile show %s to see whether the entry was removed", err, asArgument(b.name))
	case b.format == formatJSON:
		return b.stdio.writeJSON(broken{b.name, entry, argumentFor(b.name)})
	default:
		was, lasted := "holder", holding(entry, time.Now())
		if slices.ContainsFunc(line.Waiters, func(e stile.Entry) bool { return e.Token == entry.Token }) {
			was, lasted = "waiter", "in line for "+ageOf(entry, time.Now())
		}
		return b.stdio.write(fmt.Appendf(nil, "removed %s %s from lock %s: %s, %v, %s\n",
			was, who(entry), asArgument(b.name), tokenOf(entry), entry.Mode, lasted))
	}
}

// broken is the JSON output of break.
type broken struct {
	Name string `json:"name"`
	stile.Entry
	Argument string `json:"argument,omitempty"`
}

// whichToken returns the error for a missing token.
func (b *breakCmd) whichToken(ctx context.Context, client *stile.Client) error {
	line, err := client.Line(ctx, b.name)
	switch {
	case err != nil:
		return fmt.Errorf("--token is required, and the holder of %q cannot be read: %w", b.name, reasonOf(err))
	case len(line.Holders) == 0:
		return fmt.Errorf("--token is required, and nobody holds lock %q: there is nothing to break", b.name)
	case len(line.Holders) > 1:
		return fmt.Errorf("--token is required; %d clients hold lock %q (see stile show %s)",
			len(line.Holders), b.name, asArgument(b.name))
	case line.Holders[0].Token == 0:
		return fmt.Errorf("--token is required, and the holder of %q (%s) has none: stile cannot break what it has not made; "+
			"delete its key in the store", b.name, who(line.Holders[0]))
	default:
		return fmt.Errorf("--token is required; the holder of %q (%s) has --token %d",
			b.name, who(line.Holders[0]), line.Holders[0].Token)
	}
}
