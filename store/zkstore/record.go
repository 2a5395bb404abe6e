package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store"
)

// recordNode is the node, in the directory of a line, with the record of the name. It is the directory of
// no name, because no name is written like that.
const recordNode = string(escape) + "record" + otherSuffix

// recordState orders the writes of one entry.
type recordState struct {
	calls atomic.Int64
	// request is held by the requests of one attempt. They may continue after their caller has given up.
	request sync.Mutex
}

// setRecord is [store.Extensions.SetRecord]. The node is not ephemeral. The transaction that writes it
// checks the entry's node, and names the version that it replaces.
func (e *entry) setRecord(ctx context.Context, value []byte) error {
	se := e.session
	op := "write the record"
	if err := se.life.Err(); err != nil {
		return err
	}
	if !e.line.stands(e.order) {
		return fmt.Errorf("%s: %s: %w: the entry was already withdrawn or is gone", se.store, op, store.ErrGone)
	}
	bounded, cancel := se.life.Within(ctx)
	defer cancel()
	var data []byte
	call := e.records.calls.Add(1)
	if len(value) > 0 {
		// The writer makes the data different from that of every other call.
		data = fmt.Appendf(nil, "%s.%d %s", e.node.name, call, value)
	}
	var unanswered atomic.Bool
	there, err := attempt(bounded, se.client, func(int) (bool, error) { return e.tryRecord(bounded, data, &unanswered) })
	switch {
	case err != nil:
		return se.wrapErr(ctx, op, err)
	case !there && unanswered.Load():
		return fmt.Errorf("%s: %s: an earlier request was not answered, and now there is no entry: %w", se.store, op, store.ErrNotKnown)
	case !there:
		return e.line.evictedErr()
	}
	return nil
}

// errRecordChanged is the outcome of an attempt that another write came before. The next one reads again.
var errRecordChanged = errors.New("the record was changed by another client at the same time")

// tryRecord makes one attempt to write the data; nil removes the node. It reports whether the entry was
// there, and sets unanswered if it does not know whether the data was written. If it is called by a goroutine
// whose caller has given up, it sends nothing. So no request of an earlier call is sent after one of a
// later call, and the servers keep the order of the requests of one connection. After a loss of the
// connection the first read finds what the requests before it have done, or prevents them: see
// [entry.recover].
func (e *entry) tryRecord(ctx context.Context, data []byte, unanswered *atomic.Bool) (there bool, err error) {
	e.records.request.Lock()
	defer e.records.request.Unlock()
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	client, path := e.session.client, join(e.line.dir, recordNode)
	last, version, err := e.readRecord(path)
	switch {
	case err != nil:
		return false, err
	case data != nil && string(last) == string(data):
		return true, nil // by an attempt that was not answered
	}
	ops := []any{&zk.CheckVersionRequest{Path: e.path(), Version: -1}}
	switch {
	case data == nil && version >= 0:
		ops = append(ops, &zk.DeleteRequest{Path: path, Version: version})
	case data == nil:
	case version < 0:
		ops = append(ops, &zk.CreateRequest{Path: path, Data: data, Acl: e.session.store.acl, Flags: zk.FlagPersistent})
	default:
		ops = append(ops, &zk.SetDataRequest{Path: path, Data: data, Version: version})
	}
	replies, err := client.Multi(ops...)
	refusedAt := slices.IndexFunc(replies, func(r zk.MultiResponse) bool { return r.Error != nil })
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, zk.ErrNoNode) && refusedAt == 0:
		return false, nil
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNodeExists), errors.Is(err, zk.ErrBadVersion):
		return false, errRecordChanged
	case !refused(err):
		unanswered.Store(true)
	}
	return false, err
}

// readRecord reads the node of the record from a server that has all that was written before. The version
// is -1 if there is no node.
func (e *entry) readRecord(path string) (data []byte, version int32, err error) {
	se := e.session
	connection := se.connection.Load()
	if _, err := se.client.Sync(path); err != nil {
		return nil, 0, err
	}
	data, stat, err := se.client.Get(path)
	switch {
	case se.connection.Load() != connection:
		return nil, 0, errMoved
	case errors.Is(err, zk.ErrNoNode):
		return nil, -1, nil
	case err != nil:
		return nil, 0, err
	}
	return data, stat.Version, nil
}

// record is [store.Capabilities.Record]. It makes a transaction before it reads: a sync would be answered by a
// leader that all others have left, too.
func (s *Store) record(ctx context.Context, name string) ([]byte, error) {
	path := join(s.paths.dir(name), recordNode)
	var value string
	err := s.withReader(ctx, "read the record", func(ctx context.Context, c *client) error {
		data, err := attempt(ctx, c, func(int) ([]byte, error) {
			if err := c.commitEmpty(); err != nil {
				return nil, err
			}
			data, _, err := c.Get(path)
			if errors.Is(err, zk.ErrNoNode) {
				return nil, nil
			}
			return data, err
		})
		_, value, _ = strings.Cut(string(data), " ")
		return err
	})
	if err != nil {
		return nil, err
	}
	return []byte(value), nil
}
