package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
)

// slotsCmd is one call of the verb slots.
type slotsCmd struct {
	reader
	name   string
	limit  count // zero: only show it
	remove bool
}

func newSlots(stdio Stdio) *cobra.Command {
	s := slotsCmd{reader: newReader(stdio)}
	cmd := &cobra.Command{
		Use:        "slots [flags] NAME [N]",
		Short:      "Show or set the limit of a lock's slots",
		SuggestFor: []string{"limit", "resize", "semaphore", "scale", "capacity"},
		Long: `Show how many slots of the lock NAME are taken, and the limit. With N, set the limit: no more
than N holders at a time, however many slots the commands ask for with --slots. With --remove,
or with 0, remove the limit.

A limit that is higher than the number of slots that the commands ask for has no effect. So let
commands ask for as many slots as can ever be sensible, and set the limit to what is sensible
today. A limit that is raised admits the waiters that now fit. A limit that is lowered stops
nobody: the next waiter is admitted when enough holders have ended.

The limit is kept in the store, for all hosts, until it is changed or removed. It can be set
before anybody uses the lock. It has an effect on locks with --slots only.

NAME may be any name that stile ls prints, in double quotes too, or a path as for stile run.

Exit codes:
  0    the limit was shown, set or removed
  125  stile failed; the limit may have been set`,
		Example: `  stile slots builds
  stile slots builds 2
  stile slots --remove builds
  stile slots -o json builds | jq .limit`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				if s.remove {
					return errors.New("both a limit and --remove are given: use one of them")
				}
				if s.remove = args[1] == "0"; !s.remove {
					if err := s.limit.Set(args[1]); err != nil {
						return fmt.Errorf("the limit %q: %w, or 0 to remove it", args[1], err)
					}
				}
				args = args[:1]
			}
			return nameArg(&s.name)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return stdio.withClient(cmd.Context(), s.url, func(client *stile.Client) error {
				return s.run(cmd.Context(), client)
			})
		},
	}
	flags := cmd.Flags()
	s.addFlags(flags)
	flags.BoolVar(&s.remove, "remove", false, "remove the limit")
	return cmd
}

func (s *slotsCmd) run(ctx context.Context, client *stile.Client) error {
	if s.remove || s.limit > 0 {
		if err := client.Resize(ctx, s.name, int(s.limit)); err != nil {
			return err
		}
	}
	line, err := client.Line(ctx, s.name)
	switch {
	case err != nil && (s.remove || s.limit > 0):
		return fmt.Errorf("the limit of lock %q was changed, but the lock cannot be read: %w", s.name, reasonOf(err))
	case err != nil:
		return err
	case s.format == formatJSON:
		return s.stdio.writeJSON(slotsInJSON{
			s.name, argumentFor(s.name), line.Limit, slotsOf(line), len(line.Holders), len(line.Waiters),
		})
	default:
		return s.stdio.write(fmt.Appendf(nil, "lock %s: %s; %s\n", asArgument(s.name), state(line), limitText(line)))
	}
}

// slotsInJSON is the JSON output of slots.
type slotsInJSON struct {
	Name     string `json:"name"`
	Argument string `json:"argument,omitempty"`
	Limit    int    `json:"limit"`
	Slots    int    `json:"slots"`
	Holders  int    `json:"holders"`
	Waiters  int    `json:"waiters"`
}

// limitText says what a lock's limit is.
func limitText(l stile.Line) string {
	asked := slotsAsked(l)
	switch {
	case l.Limit == 0:
		return "no limit"
	case asked == 0 && len(l.Holders)+len(l.Waiters) > 0:
		return fmt.Sprintf("limit %s, without effect: the lock is used without --slots", slotsText(l.Limit))
	case asked == 0:
		return "limit " + slotsText(l.Limit)
	case l.Limit < asked:
		return fmt.Sprintf("limit %s, of %d asked for", slotsText(l.Limit), asked)
	default:
		return fmt.Sprintf("limit %s, without effect on the %d asked for", slotsText(l.Limit), asked)
	}
}

func slotsText(n int) string {
	if n == 1 {
		return "1 slot"
	}
	return fmt.Sprintf("%d slots", n)
}
