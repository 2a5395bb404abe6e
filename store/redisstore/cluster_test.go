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

func clusterStore(t *testing.T, nodes []*testservers.Redis) *redisstore.Store {
	t.Helper()
	var addrs []string
	for _, node := range nodes {
		addrs = append(addrs, node.Addr())
	}
	return newStore(t, connectWith(t, redisstore.ClientOptions(addrs...)), nil)
}

// channels returns the channels with subscriptions at the nodes of a cluster.
func channels(t *testing.T, nodes []*testservers.Redis) (all []string) {
	t.Helper()
	for _, node := range nodes {
		chunk, err := node.Do("PUBSUB", "SHARDCHANNELS").AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, chunk...)
	}
	return all
}

// The Redis client never unsubscribes on a connection that it shares. The number of subscriptions
// must therefore be bounded, however many locks a process waits for over time.
func TestCluster_oneSubscriptionPerSlot(t *testing.T) {
	t.Parallel()
	nodes := testservers.StartRedisCluster(t, 3)
	holder, waiter := open(t, clusterStore(t, nodes), longTTL), open(t, clusterStore(t, nodes), longTTL)
	for i := range 6 {
		name := fmt.Sprintf("{tag}%d", i)
		first := hold(t, holder, name)
		second := join(t, waiter, name, line.Exclusive)
		eventually(t, "the waiter has subscribed", func() bool { return len(channels(t, nodes)) > 0 })
		first.leave(t)
		second.await(t, store.Admitted)
		second.leave(t)
	}
	if all := channels(t, nodes); len(all) != 1 {
		t.Errorf("got subscriptions %q, want one", all)
	}
}

// Waiters for locks of one slot share a channel. They do not poll here.
func TestCluster_handoverByMessages(t *testing.T) {
	t.Parallel()
	nodes := testservers.StartRedisCluster(t, 3)
	st := clusterStore(t, nodes)
	st.DisablePolling()
	holder, waiter := open(t, clusterStore(t, nodes), longTTL), open(t, st, longTTL)
	var first, second []*testEntry
	for i := range 5 {
		name := fmt.Sprintf("{tag}%d", i)
		first = append(first, hold(t, holder, name))
		second = append(second, join(t, waiter, name, line.Exclusive))
	}
	for i, s := range second {
		eventually(t, "the waiter has subscribed", func() bool { return len(channels(t, nodes)) == 1 })
		first[i].leave(t)
		s.await(t, store.Admitted)
		s.leave(t)
	}
}

// A slot moves to another node, which ends the subscriptions to its channels.
func TestCluster_subscriptionFollowsSlot(t *testing.T) {
	t.Parallel()
	nodes := testservers.StartRedisCluster(t, 3)
	st := clusterStore(t, nodes)
	st.DisablePolling()
	holder, waiter := open(t, clusterStore(t, nodes), longTTL), open(t, st, longTTL)
	name := newName(t)
	first, second := hold(t, holder, name), join(t, waiter, name, line.Exclusive)
	before := subscriptionCounts(t, nodes)
	first.leave(t)
	second.await(t, store.Admitted)
	second.leave(t)

	from := slices.Index(before, 1)
	to := (from + 1) % len(nodes)
	moveSlot(t, redisstore.Slot(name), nodes[from], nodes[to])
	eventually(t, "it has subscribed at the new node", func() bool { return len(channels(t, nodes[to:to+1])) == 1 })
	first, second = hold(t, holder, name), join(t, waiter, name, line.Exclusive)
	first.leave(t)
	second.await(t, store.Admitted)
}

// moveSlot gives a slot to another node. The keys are not moved; the former node deletes them. The new
// node takes a new epoch only if it was importing the slot. Without one, a late announcement by the
// former node could take the slot away from it again. Then each of the two would redirect clients to the
// other for ever. See https://redis.io/docs/latest/commands/cluster-setslot/.
func moveSlot(t *testing.T, slot uint16, from, to *testservers.Redis) {
	t.Helper()
	setSlot := func(what string, node *testservers.Redis) {
		t.Helper()
		id, err := node.Do("CLUSTER", "MYID").ToString()
		if err == nil {
			_, err = to.Do("CLUSTER", "SETSLOT", strconv.Itoa(int(slot)), what, id).ToString()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	setSlot("IMPORTING", from)
	setSlot("NODE", to)
}

// subscriptionCounts waits until one of the nodes has a subscription, and returns the number at
// each node.
func subscriptionCounts(t *testing.T, nodes []*testservers.Redis) (counts []int) {
	t.Helper()
	eventually(t, "the waiter has subscribed", func() bool {
		counts = nil
		for i := range nodes {
			counts = append(counts, len(channels(t, nodes[i:i+1])))
		}
		return slices.Contains(counts, 1)
	})
	return counts
}
