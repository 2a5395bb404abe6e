package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
)

// setOwner is [store.Extensions.SetOwner]. A node's name is used once, and setting its data does
// not create it, so the request cannot restore a deleted entry. The request names the version of
// the data that it replaces: if it is carried out after a later one, it does nothing. The waiters
// behind receive an event, as for any change of a node that they watch, and watch it again; for the
// entry's own watch see [session.unwatched].
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	se := e.session
	doing := "change the owner of the entry"
	data, err := json.Marshal(value{Stile: valueFormat, Mode: e.req.Mode, Owner: owner})
	if err != nil {
		return se.store.explain(doing, err)
	}
	if !e.line.stands(e.order) {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, doing, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	for {
		version := e.version.Load()
		st, err := attempt(bounded, se.client, func(int) (*zk.Stat, error) { return se.client.Set(e.path(), data, version) })
		written := err == nil
		if errors.Is(err, zk.ErrBadVersion) { // an unanswered request of this entry, or another client, has changed it
			st, err = e.stat(bounded)
		}
		switch {
		case errors.Is(err, zk.ErrNoNode), err == nil && uint64(st.Czxid) != e.order:
			return fmt.Errorf("%s: %s: %w: another client removed the entry", se.store, doing, store.ErrGone)
		case err != nil:
			return se.explain(ctx, doing, err)
		}
		e.version.Store(st.Version)
		if written {
			return nil
		}
	}
}

// stat returns the metadata of the entry's node.
func (e *entry) stat(ctx context.Context) (*zk.Stat, error) {
	client := e.session.client
	return attempt(ctx, client, func(int) (*zk.Stat, error) {
		there, st, err := client.Exists(e.path())
		if err == nil && !there {
			err = zk.ErrNoNode
		}
		return st, err
	})
}
