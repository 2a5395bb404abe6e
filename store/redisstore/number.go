package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/stilelock/stile/store"
)

// claimNumber is [store.Extensions.ClaimNumber]. The number is kept with the data of the entry, whose
// id is never reused. So a repeated request finds the number that it has claimed, and a late one
// changes nothing once the entry is gone. Like the entry, the claim counts when enough replicas have it.
func (e *entry) claimNumber(ctx context.Context) (number int, order uint64, err error) {
	se := e.session
	op := "claim a slot number"
	if err := se.life.Err(); err != nil {
		return 0, 0, err
	}
	if e.over() {
		return 0, 0, fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	var words []string
	server := se.store.server
	err = retry(bounded, func(ctx context.Context) (err error) {
		words, err = server.evalAll(ctx, server.replicas, nil, []operation{{line: e.line, op: "number", args: []string{e.id}}})[0].strings()
		return err
	})
	switch {
	case err != nil:
		return 0, 0, se.wrapErr(ctx, op, err)
	case len(words) == 1 && words[0] == "none":
		return 0, 0, fmt.Errorf("%s: %s: %w", se.store, op, store.ErrNoNumber)
	case len(words) == 1 && words[0] == "gone":
		return 0, 0, fmt.Errorf("%s: %s: %w", se.store, op, errRemovedByOther)
	}
	if number, order, err = parseClaim(words); err != nil {
		return 0, 0, se.store.wrapErr(op, err)
	}
	return number, order, nil
}

// parseClaim parses the script's reply to a claim: the number, and the order of the claim.
func parseClaim(words []string) (number int, order uint64, err error) {
	if len(words) != 2 {
		return 0, 0, fmt.Errorf("unexpected script reply %q", words)
	}
	number, err = strconv.Atoi(words[0])
	order, err2 := strconv.ParseUint(words[1], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return 0, 0, fmt.Errorf("unexpected script reply %q: %w", words, err)
	}
	return number, order, nil
}
