package redisstore_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/redisstore"
)

// clusterStore returns a store on a cluster.
func clusterStore(t *testing.T, nodes []*testservers.Redis) *redisstore.Store {
	t.Helper()
	var addrs []string
	for _, node := range nodes {
		addrs = append(addrs, node.Addr())
	}
	return newStore(t, connectWith(t, redisstore.ClientOptions(addrs...)), nil)
}

// channels returns the channels that are subscribed to at the nodes of a cluster.
func channels(t *testing.T, nodes []*testservers.Redis) (all []string) {
	t.Helper()
	for _, node := range nodes {
		some, err := node.Do("PUBSUB", "SHARDCHANNELS").AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	return all
}

// The Redis client never unsubscribes from what others may listen to on the same connection. So there must be an end to what
// a process subscribes to, however many locks it ever waits for.
func TestWaitingForManyLocksOfOneSlotTakesOneSubscription(t *testing.T) {
	t.Parallel()
	nodes := testservers.StartRedisCluster(t, 3)
	holder, waiter := open(t, clusterStore(t, nodes), lasting), open(t, clusterStore(t, nodes), lasting)
	for i := range 6 {
		name := fmt.Sprintf("{tag}%d", i)
		first := hold(t, holder, name)
		second := join(t, waiter, name, line.Exclusive)
		eventually(t, "who waits listens", func() bool { return len(channels(t, nodes)) > 0 })
		first.leave(t)
		second.await(t, store.Admitted)
		second.leave(t)
	}
	if all := channels(t, nodes); len(all) != 1 {
		t.Errorf("for locks of one slot there are the subscriptions %q", all)
	}
}

// Those who wait for locks of one slot share what they hear; nobody asks here.
func TestLocksOfOneSlotAreHandedOverByMessages(t *testing.T) {
	t.Parallel()
	nodes := testservers.StartRedisCluster(t, 3)
	st := clusterStore(t, nodes)
	st.DisablePolling()
	holder, waiter := open(t, clusterStore(t, nodes), lasting), open(t, st, lasting)
	var first, second []*seat
	for i := range 5 {
		name := fmt.Sprintf("{tag}%d", i)
		first = append(first, hold(t, holder, name))
		second = append(second, join(t, waiter, name, line.Exclusive))
	}
	for i, s := range second {
		eventually(t, "who waits listens", func() bool { return len(channels(t, nodes)) == 1 })
		first[i].leave(t)
		s.await(t, store.Admitted)
		s.leave(t)
	}
}

// A slot goes to another node, which ends the subscriptions to its channels.
func TestWhoWaitsListensWhereTheSlotHasGone(t *testing.T) {
	t.Parallel()
	nodes := testservers.StartRedisCluster(t, 3)
	st := clusterStore(t, nodes)
	st.DisablePolling()
	holder, waiter := open(t, clusterStore(t, nodes), lasting), open(t, st, lasting)
	name := newName(t)
	first, second := hold(t, holder, name), join(t, waiter, name, line.Exclusive)
	before := listened(t, nodes)
	first.leave(t)
	second.await(t, store.Admitted)
	second.leave(t)

	slot := strconv.Itoa(int(redisstore.Slot(name)))
	to := nodes[(slices.Index(before, 1)+1)%len(nodes)]
	id, err := to.Do("CLUSTER", "MYID").ToString()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range redisstore.Keys("", name) {
		nodes[slices.Index(before, 1)].Do("DEL", key)
	}
	for _, node := range nodes {
		node.Do("CLUSTER", "SETSLOT", slot, "NODE", id)
	}
	eventually(t, "it listens there", func() bool { return listened(t, []*testservers.Redis{to})[0] == 1 })
	first, second = hold(t, holder, name), join(t, waiter, name, line.Exclusive)
	first.leave(t)
	second.await(t, store.Admitted)
}

// listened waits until one of the nodes has a subscription, and returns how many each has.
func listened(t *testing.T, nodes []*testservers.Redis) (counts []int) {
	t.Helper()
	eventually(t, "who waits listens", func() bool {
		counts = nil
		for i := range nodes {
			counts = append(counts, len(channels(t, nodes[i:i+1])))
		}
		return slices.Contains(counts, 1)
	})
	return counts
}
