//go:build linux

package nemesis

import (
	"context"
	"errors"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/site"
)

// storeFaults returns the faults of the store's data and clocks.
func storeFaults() []Fault {
	redisKinds, reason := []string{"redis", "redlock3", "redlock5"}, "it needs Redis"
	return []Fault{
		{
			Name:    history.Evict,
			Summary: "delete a holder's entry in the store, or its whole line, as an administrator might",
			strike:  evict,
		},
		{
			Name:    "compact",
			Summary: "compact the history of etcd",
			kinds:   []string{"etcd", "etcd3"},
			reason:  "it needs etcd",
			strike:  compact,
		},
		{
			Name:    "restart-empty",
			Summary: "restart a Redis server, or one or two of Redlock's, without its data",
			kinds:   redisKinds,
			reason:  reason,
			strike:  restartEmpty,
		},
		{
			Name:     "clock-jump",
			Summary:  "set the wall clock of a Redis server, or of one or two of Redlock's, forward or back by up to three TTLs",
			kinds:    redisKinds,
			reason:   reason,
			programs: []string{"cc"},
			options:  site.Options{Clocks: true},
			strike:   jumpClock,
		},
	}
}

func evict(ctx context.Context, st *striker) error {
	evicted, err := st.world.Evict(ctx, st.random.IntN(2) == 0 || st.severe)
	st.Role, st.On, st.Lock, st.What, st.Took = "holder", evicted.On, evicted.Lock, evicted.What, evicted.Took
	if err == nil && st.What == "" {
		return errors.New("no worker held a lock at this moment")
	}
	return err
}

func compact(ctx context.Context, st *striker) error {
	st.On, st.What = allConnections, "compacted"
	return st.world.Compact(ctx)
}

func jumpClock(ctx context.Context, st *striker) error {
	servers, err := st.pickServers(ctx, 1+st.random.IntN(2))
	if err != nil {
		return err
	}
	offset := st.randomTTLs(0.5, 3)
	direction := "ahead"
	if st.random.IntN(2) == 0 {
		direction = "behind"
	}
	st.Duration = st.randomTTLs(0.5, 2)
	st.describe("%v %s", offset, direction)
	if direction == "behind" {
		offset = -offset
	}
	st.heal = func() error { return setClocks(context.Background(), servers, 0) }
	return setClocks(ctx, servers, offset)
}

// setClocks sets the clocks of servers, and waits until they use the new time, which takes only a
// moment unless the machine is busy.
func setClocks(ctx context.Context, servers []*site.Server, offset time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.SetClock(ctx, offset))
	}
	return errors.Join(errs...)
}
