// Package observer reads stores directly, on a path without faults and without a lock library. It
// reports which entries appear in the lines and disappear, lists the data that remains at the end,
// and does what an administrator might do.
package observer

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/lab/torture/history"
)

// An Observer observes one store. It is safe for concurrent use.
type Observer interface {
	// Follow calls emit for each entry that appears or disappears, until ctx ends. Changes that
	// happen while no server replies are reported late or, if the store keeps no record of them,
	// not at all.
	Follow(ctx context.Context, emit func(history.Entry))

	// Remaining returns the keys in the store, by lock, that should not exist once no client uses
	// the store any more. Keys that belong to no lock are under "".
	Remaining(ctx context.Context) (map[string][]string, error)

	// Evict deletes the first entry in the line of lock or, with all, every entry, as a person with
	// the store's own tools might. On etcd and ZooKeeper this is one step of the store. If the line
	// is empty or changes meanwhile, Evict deletes nothing.
	Evict(ctx context.Context, lock string, all bool) (Eviction, error)

	// Length returns how many entries the line of lock has: holders and waiters. It is zero on Redlock,
	// which has no line.
	Length(ctx context.Context, lock string) (int, error)

	// Compact discards the store's history of past revisions, if the store keeps one.
	Compact(ctx context.Context) error

	// Close closes all connections.
	Close()
}

// Eviction is what [Observer.Evict] did.
type Eviction struct {
	// What describes the deletion. It is empty if nothing was deleted.
	What string
	// Took are the tokens of the deleted entries, in the order of their line. It is empty if the
	// store's data does not contain them. With an error, Took may be set without What: then it is
	// unknown whether the entries were deleted.
	Took []uint64
}

// Open connects to the servers of a store of one of the kinds "etcd", "redis", "redlock" and "zk".
// The names of all locks begin with prefix, which ends in a slash. token computes a hold's token
// from the order of its entry in the store's data.
func Open(kind string, addrs []string, prefix string, token func(order uint64) uint64) (Observer, error) {
	switch kind {
	case "etcd":
		return openEtcd(addrs, prefix, token)
	case "redis", "redlock":
		return openRedis(addrs, prefix, token), nil
	case "zk":
		return openZooKeeper(addrs, prefix, token)
	}
	return nil, fmt.Errorf("unknown kind of store %q", kind)
}
