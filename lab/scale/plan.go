//go:build linux

package main

import (
	"context"
	"slices"
	"time"
)

// The values of -store.
const (
	etcdStore   = "etcd"
	redisStore  = "redis"
	zkStore     = "zk"
	memoryStore = "memory"
)

var stores = []string{etcdStore, redisStore, zkStore, memoryStore}

// allValues is the value of -store and -measure that selects everything.
const allValues = "all"

// stileName is the contender that every store has.
const stileName = "stile"

// peers are the locks that Stile is compared with.
var peers = map[string]string{etcdStore: "concurrency.Mutex", zkStore: "go-zookeeper's Lock"}

// A measurement is one of the values of -measure.
type measurement struct {
	name    string
	heading string
	measure func(context.Context, config, row) (row, error)
	// sizes returns the numbers that are measured on a store; none if the store is not measured.
	sizes func(store string) []int
	// compared is the largest number at which the peers are measured too; zero if they are not.
	compared int
	table    func(rows) string
}

// measures returns all measurements, in order.
func measures() []measurement {
	return []measurement{
		{
			name: "waiters", heading: "Waiters for one name", measure: measureWaiters, compared: 2000, table: waitersTable,
			sizes: func(string) []int { return []int{1, 10, 100, 1000, 2000} },
		},
		{
			name: "held", heading: "Locks that one client holds", measure: measureHeld, compared: 20_000, table: heldTable,
			sizes: func(store string) []int {
				numbers := []int{1, 10, 100, 1000, 20_000}
				if store == etcdStore || store == redisStore {
					numbers = append(numbers, 100_000)
				}
				return numbers
			},
		},
		{
			name: "leader", heading: "A change of the leader while one client holds locks", measure: measureLeader, table: leaderTable,
			sizes: func(store string) []int {
				switch store {
				case etcdStore, redisStore:
					return []int{20_000, 100_000}
				case zkStore:
					return []int{20_000}
				}
				return nil
			},
		},
		{
			name: "names", heading: "Names in the store", measure: measureNames, table: namesTable,
			sizes: func(store string) []int {
				numbers := []int{1, 10, 100, 1000, 20_000}
				if store == etcdStore || store == redisStore {
					numbers = append(numbers, 100_000)
				}
				return numbers
			},
		},
		{
			name: "sessions", heading: "Sessions with one waiter each", measure: measureSessions, compared: 1000, table: sessionsTable,
			sizes: func(store string) []int {
				if store != etcdStore {
					return nil
				}
				return []int{1, 10, 100, 1000, 10_000}
			},
		},
	}
}

func namesOfMeasures() (names []string) {
	for _, m := range measures() {
		names = append(names, m.name)
	}
	return names
}

// plan returns the keys of the rows to measure, in order.
func plan(c config) (keys []row) {
	for _, m := range measures() {
		for _, store := range stores {
			if c.measure != allValues && c.measure != m.name || c.store != allValues && c.store != store {
				continue
			}
			sizes := m.sizes(store)
			if len(sizes) > 0 && len(c.numbers) > 0 {
				sizes = c.numbers
			}
			for _, n := range sizes {
				key := row{Measure: m.name, Store: store, Contender: stileName, N: n, Revision: revision()}
				keys = append(keys, key)
				if peer := peers[store]; peer != "" && n <= m.compared {
					key.Contender = peer
					keys = append(keys, key)
				}
			}
		}
	}
	return slices.Clip(keys)
}

// ttl is that of sessions whose renewals are not measured, long enough for a busy machine.
const ttl = time.Minute
