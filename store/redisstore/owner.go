package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/stilelock/stile/store"
)

// setOwner is [store.Extensions.SetOwner]. The entry's id is never reused, so even a late request
// changes this entry or nothing. The changes are numbered, so a request that is carried out after a
// later one changes nothing.
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	se := e.session
	op := "change the owner of the entry"
	if e.over() {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	change := e.changes.Add(1)
	text, err := json.Marshal(payload{Change: change, Session: se.id, Owner: owner})
	if err != nil {
		return se.store.wrapErr(op, err)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	var found int64
	err = retry(bounded, func(ctx context.Context) (err error) {
		found, err = se.store.server.eval(ctx, e.line, "owner", e.id, strconv.FormatInt(change, 10), string(text)).number()
		return err
	})
	switch {
	case err != nil:
		return se.wrapErr(ctx, op, err)
	case found == 0:
		return fmt.Errorf("%s: %s: %w", se.store, op, errRemovedByOther)
	}
	return nil
}
