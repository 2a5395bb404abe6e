// Package zkguard is a guard for data in the ZooKeeper ensemble that also keeps the locks.
//
// [Do] changes the data in a transaction, a multi. The same transaction checks that the hold's entry is
// still in the line. The ensemble runs transactions one after the other. So if a change is made, the
// lock had not passed on by then, whatever pauses, crashes and delays there were.
//
// For an exclusive hold the transaction also compares tokens. The fence, a node beside the data, has the
// largest token that was used, and the transaction raises it, or is refused if the hold's token is
// smaller. So stale holders are still refused if the locks were restored and the data was not.
//
// All changes must go through the guard, and be made in the same ensemble as the lock. If the lock is in
// another one, its entry is not found, and the change is refused.
package zkguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/line"
)

// Do runs ops in one transaction, if hold is still held and no larger token has been used at fence. ops
// are those of [zk.Conn.Multi].
//
// fence is the path of a node that belongs to the guard; all holders that change the same data use the same
// one. Do creates it with the given ACL, which must not be empty, below a node that must exist, and its
// data is the largest token. Without ops, Do only checks, and closes the data to earlier holders. Holders
// that hold at the same time, readers and those of a semaphore's slots, have different tokens: for them Do
// checks only that the entry is in the line, and does not use fence.
//
// On success all ops have run, while the hold's entry was in the line, and the responses are those of ops,
// in their order. Readers of one client share an entry: if hold is released during the call, the ops may
// run as long as another one of them reads.
//
// If the hold is over, the error is a [*guard.StaleError] and nothing has changed. If this process knows
// already that the hold is over, Do sends no request, and the error also matches the cause of the hold's
// context. If the lock is in a store whose entries have no keys (EntryKey of [guard.Hold]), or no hold can
// have the token, the error matches [guard.ErrBadToken]. If one of the ops is refused, nothing has changed,
// and the error matches its error. After any other error the ops may have run, all or none; Do does not
// repeat them. Do is safe for concurrent use.
//
// Do makes attempts of up to three requests, and begins none after ctx or the hold has ended. But an
// attempt that is under way does not end with them, because the requests of conn have no context. The user
// of conn must be allowed to read the hold's entry.
func Do(ctx context.Context, conn *zk.Conn, hold guard.Hold, fence string, acl []zk.ACL, ops ...any) ([]zk.MultiResponse, error) {
	token, entry := hold.Token(), hold.EntryKey()
	if err := guard.CheckToken(fence, token); err != nil {
		return nil, err
	}
	if entry == "" {
		return nil, fmt.Errorf("guard: %q: %d is %w of ZooKeeper, because the lock %q is in a store of another kind: "+
			"lock in the ensemble that has the data, or use an order guard", fence, token, guard.ErrBadToken, hold.Name())
	}
	// A path is never used twice: the names of entries have random parts.
	present := &zk.CheckVersionRequest{Path: entry, Version: -1}
	for {
		switch {
		case hold.Context().Err() != nil:
			return nil, errors.Join(&guard.StaleError{Resource: fence, Token: token}, context.Cause(hold.Context()))
		case ctx.Err() != nil:
			return nil, fmt.Errorf("guard: %q: token %d: %w", fence, token, ctx.Err())
		}
		checks := []any{present}
		if hold.Mode() == line.Exclusive {
			raise, err := raiseOp(conn, fence, acl, token)
			if err != nil {
				return nil, err
			}
			checks = append(checks, raise)
		}
		replies, err := conn.Multi(append(checks, ops...)...)
		if err == nil {
			return replies[len(checks):], nil
		}
		refused := slices.IndexFunc(replies, func(r zk.MultiResponse) bool { return r.Error != nil })
		switch {
		case refused == 0 && errors.Is(err, zk.ErrNoNode):
			return nil, &guard.StaleError{Resource: fence, Token: token}
		case refused == 1 && len(checks) == 2 && fenceChanged(checks[1], err):
			if _, err := conn.Sync(fence); err != nil { // so that the next reading shows the other change
				return nil, fmt.Errorf("guard: %q: token %d: sync: %w", fence, token, err)
			}
		default:
			return nil, fmt.Errorf("guard: %q: token %d: %w", fence, token, err)
		}
	}
}

// raiseOp returns the operation that remembers a token at the fence, if that does not change meanwhile.
func raiseOp(conn *zk.Conn, fence string, acl []zk.ACL, token uint64) (any, error) {
	data, stat, err := conn.Get(fence)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return &zk.CreateRequest{Path: fence, Data: value(token), Acl: acl}, nil
	case err != nil:
		return nil, fmt.Errorf("guard: %q: token %d: read the fence: %w", fence, token, err)
	}
	newest, err := strconv.ParseUint(string(data), 10, 63)
	switch {
	case err != nil || !bytes.Equal(data, value(newest)):
		return nil, fmt.Errorf("guard: %q: the data %.40q is not a guard's: if no stale holder can exist, delete the node", fence, data)
	case newest > token:
		return nil, &guard.StaleError{Resource: fence, Token: token, Newest: newest}
	}
	return &zk.SetDataRequest{Path: fence, Data: value(token), Version: stat.Version}, nil
}

// fenceChanged reports whether an operation on the fence was refused because the fence has changed since it
// was read.
func fenceChanged(op any, err error) bool {
	if _, creates := op.(*zk.CreateRequest); creates {
		return errors.Is(err, zk.ErrNodeExists)
	}
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode)
}

// value returns the data of a fence.
func value(token uint64) []byte { return fmt.Appendf(nil, "%020d", token) }
