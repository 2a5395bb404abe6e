package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
)

// exitNothingBroken is the exit code for a token that no entry has.
const exitNothingBroken = 1

// breaking is one use of the verb break.
type breaking struct {
	reader
	name     string
	token    token
	tokenSet bool
}

// token is the value of a flag that takes what stile show tells: a decimal number.
type token uint64

// Set implements pflag.Value.
func (t *token) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return errors.New("want a number, as stile show tells it")
	}
	*t = token(n)
	return nil
}

// String implements pflag.Value.
func (t *token) String() string { return strconv.FormatUint(uint64(*t), 10) }

// Type implements pflag.Value.
func (t *token) Type() string { return "token" }

func newBreak(stdio Stdio) *cobra.Command {
	b := breaking{reader: newReader(stdio)}
	cmd := &cobra.Command{
		Use:   "break [flags] NAME --token N",
		Short: "Take somebody's hold, or place in the line, away",
		Long: `Remove the entry with the given token from the line of the lock NAME, whosever it is, and
print whose it was. If no entry has that token, nothing is changed: a lock that has gone to
somebody else since you looked is not broken by mistake. stile show tells the tokens.

A holder that is broken is told so, and its command is stopped if stile run has started it; but
the next one is let in at once, and may meet the old one at work. Only a resource that checks
tokens is safe from that. A waiter that is broken joins the line again, at its end.

Exit codes:
  0    the entry was removed
  1    no entry in the line has that token; nothing was changed
  125  stile failed; the message says whether something may have been changed`,
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
	flags.Var(&b.token, "token", "the `token` of the entry to remove; required")
	return cmd
}

func (b *breaking) run(ctx context.Context, client *stile.Client) error {
	if !b.tokenSet {
		return b.whichToken(ctx, client)
	}
	entry, err := client.Break(ctx, b.name, uint64(b.token))
	switch {
	case errors.Is(err, stile.ErrGone):
		return &exit{exitNothingBroken, fmt.Errorf("nobody in the line of lock %q has the token %d: nothing was changed; "+
			"stile show tells who stands there now", b.name, b.token)}
	case err != nil:
		return fmt.Errorf("%w; whether the entry has been removed stile show tells", err)
	case b.format == formatJSON:
		return b.stdio.writeJSON(broken{b.name, entry})
	default:
		return b.stdio.write(fmt.Appendf(nil, "broke lock %s: it was %s, %s, %v, in line for %s\n",
			plain(b.name), who(entry), tokenOf(entry), entry.Mode, ageOf(entry, time.Now())))
	}
}

// broken is what break writes as JSON.
type broken struct {
	Name string `json:"name"`
	stile.Entry
}

// whichToken is the error for a missing token.
func (b *breaking) whichToken(ctx context.Context, client *stile.Client) error {
	line, err := client.Show(ctx, b.name)
	switch {
	case err != nil:
		return fmt.Errorf("no --token is given, and who holds the lock cannot be read: %w", err)
	case len(line.Holders) == 0:
		return fmt.Errorf("no --token is given, and nobody holds the lock %q: there is nothing to break", b.name)
	case len(line.Holders) > 1:
		return fmt.Errorf("no --token is given, and %d hold the lock %q: stile show tells their tokens",
			len(line.Holders), b.name)
	case line.Holders[0].Token == 0:
		return fmt.Errorf("no --token is given, and the lock %q is held by %s, which has none: stile cannot break what it has "+
			"not made; delete its key in the store", b.name, who(line.Holders[0]))
	default:
		return fmt.Errorf("no --token is given: to break the lock %q of %s, give --token %d",
			b.name, who(line.Holders[0]), line.Holders[0].Token)
	}
}
