package redisstore

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"

	"github.com/stilelock/stile/store/internal/attempts"
)

// setLimit is [store.Capabilities.SetLimit]. The limit has a key of its own, which does not expire. Each
// change has a random name and names the one before it, so a request that is carried out after a later
// change has no effect. Like an entry, a limit counts when enough replicas have it.
func (s *Store) setLimit(ctx context.Context, name string, limit int) error {
	change, last := rand.Text(), ""
	for {
		expected := last
		o := operation{
			line: s.server.keys.forLine(name), op: "limit", args: []string{strconv.Itoa(limit), change, expected},
		}
		err := retryBounded(ctx, func(ctx context.Context) (err error) {
			r := s.server.evalAll(ctx, s.server.replicas, nil, []operation{o})[0]
			if r.err != nil {
				return r.err
			}
			last, err = r.ToString()
			return err
		})
		switch {
		case err != nil:
			return s.wrapErr("limit the slots", attempts.WithContextErr(ctx, err))
		case last == change:
			return nil
		}
	}
}

// parseLimit parses the value of a limit's key: the limit, and the name of the change.
func parseLimit(value string) int {
	limit, _, _ := strings.Cut(value, " ")
	return int(parseInt(limit))
}
