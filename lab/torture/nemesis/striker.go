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

// A striker carries out one strike: it picks the victims and describes what it does. The pick methods
// claim the victims that they return.
type striker struct {
	Strike
	world  *World
	random *rand.Rand
	severe bool
	claims []string // keys of World.claimed
}

// errClaimed means that other faults, not yet healed, affect all possible victims.
var errClaimed = errors.New("another fault is active there")

// allConnections is the claim, and the name of the victim, of faults that affect all connections.
const allConnections = "all"

// holderTimeout is the time that a fault waits for a worker that holds a lock.
const holderTimeout = 200 * time.Millisecond

// pickHolder picks a worker that holds a lock. If none does within holderTimeout, it picks any.
func (st *striker) pickHolder(ctx context.Context) (Worker, error) {
	for end := time.Now().Add(holderTimeout); ; {
		worker := st.pickWorker(func(w Worker) bool { return w.Holds() })
		if worker != nil {
			st.Role = "holder"
			return worker, nil
		}
		if time.Now().After(end) || !sleep(ctx, time.Millisecond) {
			break
		}
	}
	if worker := st.pickWorker(func(Worker) bool { return true }); worker != nil {
		return worker, nil
	}
	if len(st.world.Workers()) == 0 {
		return nil, errors.New("no worker is running")
	}
	return nil, fmt.Errorf("all workers: %w", errClaimed)
}

// pickWorker claims a random worker that fits. It returns nil if there is none.
func (st *striker) pickWorker(fits func(Worker) bool) Worker {
	workers := st.world.Workers()
	for _, i := range st.random.Perm(len(workers)) {
		if fits(workers[i]) && st.claim(workers[i].Node().Name(), workers[i].Name()) {
			return workers[i]
		}
	}
	return nil
}

// pickLeader picks the leader.
func (st *striker) pickLeader(ctx context.Context) (*site.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	leader, err := st.world.Cluster.Leader(ctx)
	switch {
	case err != nil:
		return nil, err
	case !st.claimServer(leader):
		return nil, fmt.Errorf("the leader %s: %w", leader.Name(), errClaimed)
	}
	st.Role = "leader"
	return leader, nil
}

// pickFollower picks a random server other than the leader.
func (st *striker) pickFollower(ctx context.Context) (*site.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	leader, err := st.world.Cluster.Leader(ctx)
	if err != nil {
		return nil, err
	}
	servers := st.world.Cluster.Servers()
	for _, i := range st.random.Perm(len(servers)) {
		if servers[i] != leader && st.claimServer(servers[i]) {
			st.Role = "follower"
			return servers[i], nil
		}
	}
	return nil, fmt.Errorf("all followers: %w", errClaimed)
}

// pickServer picks a random server.
func (st *striker) pickServer(ctx context.Context) (*site.Server, error) {
	picked, err := st.pickServers(ctx, 1)
	if err != nil {
		return nil, err
	}
	return picked[0], nil
}

// pickServers picks n random servers, or fewer if fewer are available.
func (st *striker) pickServers(ctx context.Context, n int) ([]*site.Server, error) {
	all := st.world.Cluster.Servers()
	var picked []*site.Server
	for _, i := range st.random.Perm(len(all)) {
		if len(picked) < n && st.claimServer(all[i]) {
			picked = append(picked, all[i])
		}
	}
	if len(picked) == 0 {
		return nil, fmt.Errorf("all servers: %w", errClaimed)
	}
	if len(picked) == 1 && len(all) > 1 && st.world.Cluster.HasLeader() {
		st.Role = st.roleOf(ctx, picked[0])
	}
	return picked, nil
}

func (st *striker) roleOf(ctx context.Context, s *site.Server) string {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if s.Leads(ctx) {
		return "leader"
	}
	return "follower"
}

func (st *striker) claimServer(s *site.Server) bool { return st.claim(s.Node().Name(), s.Name()) }

// claim claims a victim, unless another fault has claimed it: healing one would heal the other.
func (st *striker) claim(key, victim string) bool {
	if !st.world.claim(key) {
		return false
	}
	st.claims = append(st.claims, key)
	if st.On != "" {
		st.On += ","
	}
	st.On += victim
	st.At = history.Now()
	return true
}

// setDuration sets the duration at random: just under the TTL, about the TTL, or longer. A severe
// strike is longer.
func (st *striker) setDuration() {
	switch n := st.random.IntN(3); {
	case st.severe:
		st.setDurationPastTTL()
	case n == 0:
		st.Duration = st.randomTTLs(0.6, 0.95)
	case n == 1:
		st.Duration = st.randomTTLs(0.95, 1.1)
	default:
		st.setDurationPastTTL()
	}
}

// setDurationPastTTL sets a random duration longer than the TTL.
func (st *striker) setDurationPastTTL() { st.Duration = st.randomTTLs(1.2, 2.5) }

// randomTTLs returns a random duration between from and to TTLs.
func (st *striker) randomTTLs(from, to float64) time.Duration {
	d := time.Duration((from + st.random.Float64()*(to-from)) * float64(st.world.TTL))
	return d.Round(time.Millisecond)
}

// describe sets What to the text, followed by the duration.
func (st *striker) describe(format string, args ...any) {
	st.What = fmt.Sprintf(format, args...) + fmt.Sprintf(" for %v", st.Duration)
}
