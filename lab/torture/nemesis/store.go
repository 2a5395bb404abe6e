//go:build linux

package nemesis

import (
	"context"
	"errors"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/site"
)

// storeFaults are those that change what the store knows, or what time it believes it is.
func storeFaults() []Fault {
	redises, why := []string{"redis", "redlock3", "redlock5"}, "it is about Redis"
	return []Fault{
		{
			Name:    history.Evict,
			Summary: "delete a holder's entry in the store, as an administrator might, or all of its line",
			strike:  evict,
		},
		{
			Name:    "compact",
			Summary: "make etcd forget its past",
			kinds:   []string{"etcd", "etcd3"},
			why:     "it is about etcd",
			strike:  compact,
		},
		{
			Name:    "restart-empty",
			Summary: "make a Redis, or one or two of Redlock, forget everything",
			kinds:   redises,
			why:     why,
			strike:  restartEmpty,
		},
		{
			Name:     "clock-jump",
			Summary:  "set the wall clock of a Redis, or of one or two of Redlock, forward or back by up to three TTLs",
			kinds:    redises,
			why:      why,
			programs: []string{"cc"},
			options:  site.Options{Clocks: true},
			strike:   jump,
		},
	}
}

func evict(ctx context.Context, h *hand) error {
	evicted, err := h.world.Evict(ctx, h.random.IntN(2) == 0)
	h.Role, h.On, h.Lock, h.What, h.Took = "holder", evicted.On, evicted.Lock, evicted.What, evicted.Took
	if err == nil && h.What == "" {
		return errors.New("nobody held a lock at this moment")
	}
	return err
}

func compact(ctx context.Context, h *hand) error {
	h.On, h.What = everywhere, "compacted"
	return h.world.Compact(ctx)
}

func jump(ctx context.Context, h *hand) error {
	servers, err := h.servers(ctx, 1+h.random.IntN(2))
	if err != nil {
		return err
	}
	ahead := h.ttls(0.5, 3)
	direction := "ahead"
	if h.random.IntN(2) == 0 {
		direction = "behind"
	}
	h.For = h.ttls(0.5, 2)
	h.saying("%v %s", ahead, direction)
	if direction == "behind" {
		ahead = -ahead
	}
	h.heal = func() error { return setClocks(context.Background(), servers, 0) }
	return setClocks(ctx, servers, ahead)
}

// setClocks sets the clocks of servers, and waits until they have seen it, which takes a moment unless the machine is busy.
func setClocks(ctx context.Context, servers []*site.Server, ahead time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.SetClock(ctx, ahead))
	}
	return errors.Join(errs...)
}
