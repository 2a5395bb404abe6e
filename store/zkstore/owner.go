package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
)

// setOwner is [store.Extensions.SetOwner]. The name of the entry's node is used once, and a node is not made by setting its
// data, so nothing comes back that has gone. The request names the version of the data that it replaces: one that is carried
// out late, after another, does nothing. Those who wait behind are woken, as by any change of the node that they watch, and
// watch it again; for the entry's own watch see [session.unwatched].
func (e *entry) setOwner(ctx context.Context, owner store.Owner) error {
	se := e.session
	doing := "change the owner of the entry"
	data, err := json.Marshal(value{Stile: valueFormat, Mode: e.req.Mode, Owner: owner})
	if err != nil {
		return se.store.explain(doing, err)
	}
	if !e.line.stands(e.order) {
		return fmt.Errorf("%s: %s: %w: the entry had left already", se.store, doing, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	for {
		version := e.version.Load()
		st, err := attempt(bounded, se.client, func(int) (*zk.Stat, error) { return se.client.Set(e.path(), data, version) })
		written := err == nil
		if errors.Is(err, zk.ErrBadVersion) { // by a request of ours that was not answered, or somebody else's
			st, err = e.stat(bounded)
		}
		switch {
		case errors.Is(err, zk.ErrNoNode), err == nil && uint64(st.Czxid) != e.order:
			return fmt.Errorf("%s: %s: %w: somebody else has taken the entry out", se.store, doing, store.ErrGone)
		case err != nil:
			return se.explain(ctx, doing, err)
		}
		e.version.Store(st.Version)
		if written {
			return nil
		}
	}
}

// stat returns what the server knows of the entry's node.
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
