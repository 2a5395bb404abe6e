package redisstore

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/store"
)

// downgrade is [store.Extensions.Downgrade]. The entry's id, which ends in the requested mode, is never
// reused, so even a late request changes this entry or nothing.
func (e *entry) downgrade(ctx context.Context) error {
	se := e.session
	op := "make the entry shared"
	if e.over() {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	var found int64
	err := retry(bounded, func(ctx context.Context) (err error) {
		found, err = se.store.server.eval(ctx, e.line, "downgrade", e.id).number()
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
