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
// entry's own watch see [session.watchFired].
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	se := e.session
	op := "change the owner of the entry"
	data, err := json.Marshal(value{Stile: valueFormat, Mode: e.req.Mode, Owner: owner})
	if err != nil {
		return se.store.wrapErr(op, err)
	}
	if !e.line.stands(e.order) {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	for {
		version := e.version.Load()
		st, err := attempt(bounded, se.client, func(int) (*zk.Stat, error) { return se.client.Set(e.path(), data, version) })
		written := err == nil
		// An unanswered request of this entry, or another client, may have changed the data.
		if errors.Is(err, zk.ErrBadVersion) {
			st, err = e.stat(bounded)
		}
		switch {
		case errors.Is(err, zk.ErrNoNode), err == nil && uint64(st.Czxid) != e.order:
			return fmt.Errorf("%s: %s: %w: another client removed the entry", se.store, op, store.ErrGone)
		case err != nil:
			return se.wrapErr(ctx, op, err)
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
