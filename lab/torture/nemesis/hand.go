//go:build linux

package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/site"
)

// A hand is what strikes: it chooses the victims, and says what it does.
type hand struct {
	Strike
	world  *World
	random *rand.Rand
	places []string // that are taken
}

// errTaken means that other faults have hit all that could be hit, and are not healed.
var errTaken = errors.New("another fault is there")

// everywhere is the place of what hits all connections.
const everywhere = "all"

// patience is how long a fault of holders waits for one.
const patience = 200 * time.Millisecond

// holder chooses a worker that holds a lock or, if there is none for a moment, one that does not.
func (h *hand) holder(ctx context.Context) (Worker, error) {
	for end := time.Now().Add(patience); ; {
		worker := h.worker(func(w Worker) bool { return w.Holds() })
		if worker != nil {
			h.Role = "holder"
			return worker, nil
		}
		if time.Now().After(end) || !pause(ctx, time.Millisecond) {
			break
		}
	}
	if worker := h.worker(func(Worker) bool { return true }); worker != nil {
		return worker, nil
	}
	if len(h.world.Workers()) == 0 {
		return nil, errors.New("no worker lives")
	}
	return nil, fmt.Errorf("all workers: %w", errTaken)
}

// worker claims one of those that fit; nil if there is none.
func (h *hand) worker(fits func(Worker) bool) Worker {
	workers := h.world.Workers()
	for _, i := range h.random.Perm(len(workers)) {
		if fits(workers[i]) && h.take(workers[i].Node().Name(), workers[i].Name()) {
			return workers[i]
		}
	}
	return nil
}

// leader chooses the server that leads.
func (h *hand) leader(ctx context.Context) (*site.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	leader, err := h.world.Cluster.Leader(ctx)
	switch {
	case err != nil:
		return nil, err
	case !h.takeServer(leader):
		return nil, fmt.Errorf("the leader %s: %w", leader.Name(), errTaken)
	}
	h.Role = "leader"
	return leader, nil
}

// follower chooses a server that does not lead.
func (h *hand) follower(ctx context.Context) (*site.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	leader, err := h.world.Cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	servers := h.world.Cluster.Servers()
	for _, i := range h.random.Perm(len(servers)) {
		if servers[i] != leader && h.takeServer(servers[i]) {
			h.Role = "follower"
			return servers[i], nil
		}
	}
	return nil, fmt.Errorf("all followers: %w", errTaken)
}

// server chooses any server.
func (h *hand) server(ctx context.Context) (*site.Server, error) {
	some, err := h.servers(ctx, 1)
	if err != nil {
		return nil, err
	}
	return some[0], nil
}

// servers chooses n servers, or fewer if there are not as many.
func (h *hand) servers(ctx context.Context, n int) ([]*site.Server, error) {
	all := h.world.Cluster.Servers()
	var some []*site.Server
	for _, i := range h.random.Perm(len(all)) {
		if len(some) < n && h.takeServer(all[i]) {
			some = append(some, all[i])
		}
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("all servers: %w", errTaken)
	}
	if len(some) == 1 && len(all) > 1 && h.world.Cluster.HasLeader() {
		h.Role = h.role(ctx, some[0])
	}
	return some, nil
}

func (h *hand) role(ctx context.Context, s *site.Server) string {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if s.Leads(ctx) {
		return "leader"
	}
	return "follower"
}

func (h *hand) takeServer(s *site.Server) bool { return h.take(s.Node().Name(), s.Name()) }

// take takes the place of a victim, unless another fault has it: the two would heal each other.
func (h *hand) take(place, victim string) bool {
	if !h.world.take(place) {
		return false
	}
	h.places = append(h.places, place)
	if h.On != "" {
		h.On += ","
	}
	h.On += victim
	h.At = history.Now()
	return true
}

// lasts decides how long the fault is to last: a time just under the TTL, about it, or past it.
func (h *hand) lasts() {
	switch h.random.IntN(3) {
	case 0:
		h.For = h.ttls(0.6, 0.95)
	case 1:
		h.For = h.ttls(0.95, 1.1)
	default:
		h.lastsPast()
	}
}

// lastsPast makes the fault last longer than the TTL.
func (h *hand) lastsPast() { h.For = h.ttls(1.2, 2.5) }

// ttls returns a random time between so many times the TTL.
func (h *hand) ttls(from, to float64) time.Duration {
	d := time.Duration((from + h.random.Float64()*(to-from)) * float64(h.world.TTL))
	return d.Round(time.Millisecond)
}

// saying says what is done, for as long as it lasts.
func (h *hand) saying(format string, args ...any) {
	h.What = fmt.Sprintf(format, args...) + fmt.Sprintf(" for %v", h.For)
}
