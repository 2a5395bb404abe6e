package redisstore

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/stilelock/stile/store"
)

// setOwner is [store.Extensions.SetOwner]. The entry's id is used once, so whenever the request is carried out it finds this
// entry or none.
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	se := e.session
	doing := "change the owner of the entry"
	if e.over() {
		return fmt.Errorf("%s: %s: %w: the entry had left already", se.store, doing, store.ErrGone)
	}
	text, err := json.Marshal(payload{Session: se.id, Owner: owner})
	if err != nil {
		return se.store.explain(doing, err)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	var found int64
	err = attempt(bounded, func(ctx context.Context) (err error) {
		found, err = se.store.server.eval(ctx, e.line, "owner", e.id, string(text)).number()
		return err
	})
	switch {
	case err != nil:
		return se.explain(ctx, doing, err)
	case found == 0:
		return fmt.Errorf("%s: %s: %w", se.store, doing, errTaken)
	}
	return nil
}
