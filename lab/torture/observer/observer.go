// Package observer looks into stores from outside the faults: directly, with no lock library between. It tells what truly
// comes to the lines and goes from them, what is left at the end, and does what an administrator might do.
package observer

import (
	"context"
	"fmt"

	"github.com/stilelock/stile/lab/torture/history"
)

// An Observer looks into one store. It is safe for concurrent use.
type Observer interface {
	// Follow tells of entries that come and go, until ctx ends. What happens while no server answers is told late or, where
	// the store keeps no record of it, not at all.
	Follow(ctx context.Context, saw func(history.Entry))

	// Remaining returns what is in the store, lock by lock, that should not be there when nobody has anything to do with it any
	// more. What belongs to no lock is under "".
	Remaining(ctx context.Context) (map[string][]string, error)

	// Evict deletes the entry that is first in the line behind lock, or all that are there, as somebody might who has the store's
	// own tools. On etcd and ZooKeeper that is one step of the store. If the line is empty, or changes meanwhile, nothing is done.
	Evict(ctx context.Context, lock string, all bool) (Eviction, error)

	// Compact makes the store forget what was before, where there is such a thing.
	Compact(ctx context.Context) error

	// Close ends all connections.
	Close()
}

// Eviction is what [Observer.Evict] did.
type Eviction struct {
	// What says it in words. It is empty if nothing was done.
	What string
	// Took are the tokens of the deleted entries, in the order of their line; empty if the store's data do not tell them. They
	// are also set if it is not known whether the entries were deleted, with the error.
	Took []uint64
}

// Open connects to the servers of a store of one of the kinds "etcd", "redis", "redlock" and "zk". All locks begin with
// prefix, which ends in a slash. token makes a hold's token of the order of its entry in the store's data.
func Open(kind string, addrs []string, prefix string, token func(order uint64) uint64) (Observer, error) {
	switch kind {
	case "etcd":
		return openEtcd(addrs, prefix, token)
	case "redis", "redlock":
		return openRedis(addrs, prefix, token), nil
	case "zk":
		return openZooKeeper(addrs, prefix, token)
	}
	return nil, fmt.Errorf("nobody knows how to look into a store of the kind %q", kind)
}
