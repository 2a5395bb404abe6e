//go:build linux

package nemesis

import (
	"context"
	"errors"
	"time"

	"github.com/stilelock/stile/lab/torture/site"
)

// kindsWithLeader are the kinds of clusters whose servers elect a leader.
var kindsWithLeader = []string{"etcd3", "zk3"}

const noLeader = "its servers elect no leader"

// serverFaults returns the faults of a server's process, or of all its connections.
func serverFaults() []Fault {
	return []Fault{
		{
			Name:    "server-kill",
			Summary: "kill a server and restart it after a while",
			strike:  killServer((*striker).pickServer),
		},
		{
			Name:    "server-pause",
			Summary: "stop a server for just under, about or longer than the TTL",
			strike:  pauseServer((*striker).pickServer, (*striker).setDuration),
		},
		{
			Name:    "server-isolate",
			Summary: "cut a server off from all workers and servers",
			strike:  isolateServer((*striker).pickServer, "cut off from all workers and servers", (*site.Node).Cut),
		},
		{
			Name:    "leader-kill",
			Summary: "kill the leader and restart it after a while",
			kinds:   kindsWithLeader,
			reason:  noLeader,
			strike:  killServer((*striker).pickLeader),
		},
		{
			Name:    "leader-pause",
			Summary: "stop the leader for longer than the TTL; when it resumes it still believes that it leads",
			kinds:   kindsWithLeader,
			reason:  noLeader,
			strike:  pauseServer((*striker).pickLeader, (*striker).setDurationPastTTL),
		},
		{
			Name:    "leader-isolate",
			Summary: "cut the leader off from the other servers, and in half of the strikes from the workers too",
			kinds:   kindsWithLeader,
			reason:  noLeader,
			strike:  isolateLeader,
		},
		{
			Name:    "leader-mute",
			Summary: "lose everything that the leader sends; it still receives",
			kinds:   kindsWithLeader,
			reason:  noLeader,
			strike:  isolateServer((*striker).pickLeader, "cannot send", (*site.Node).Mute),
		},
		{
			Name:    "leader-deaf",
			Summary: "lose everything that is sent to the leader; it still sends",
			kinds:   kindsWithLeader,
			reason:  noLeader,
			strike:  isolateServer((*striker).pickLeader, "cannot receive", (*site.Node).Deafen),
		},
		{
			Name:    "follower-isolate",
			Summary: "cut a follower off from all workers and servers",
			kinds:   kindsWithLeader,
			reason:  noLeader,
			strike:  isolateServer((*striker).pickFollower, "cut off from all workers and servers", (*site.Node).Cut),
		},
	}
}

// A pickFunc picks the server that a fault affects.
type pickFunc func(*striker, context.Context) (*site.Server, error)

func killServer(pick pickFunc) func(context.Context, *striker) error {
	return func(ctx context.Context, st *striker) error {
		server, err := pick(st, ctx)
		if err != nil {
			return err
		}
		st.Duration = st.randomTTLs(0.1, 2)
		st.describe("killed, down")
		st.heal = server.Start
		return server.Kill()
	}
}

func pauseServer(pick pickFunc, setDuration func(*striker)) func(context.Context, *striker) error {
	return func(ctx context.Context, st *striker) error {
		server, err := pick(st, ctx)
		if err != nil {
			return err
		}
		setDuration(st)
		st.describe("stopped")
		st.heal = server.Resume
		return server.Pause()
	}
}

func isolateServer(pick pickFunc, what string, isolate func(*site.Node, ...*site.Node) error) func(context.Context, *striker) error {
	return func(ctx context.Context, st *striker) error {
		server, err := pick(st, ctx)
		if err != nil {
			return err
		}
		st.setDuration()
		// An election takes time, too.
		st.Duration += time.Second
		st.describe("%s", what)
		st.heal = server.Node().Heal
		return isolate(server.Node())
	}
}

// isolateLeader cuts the leader off: from all workers and servers, or from the other servers only.
func isolateLeader(ctx context.Context, st *striker) error {
	if st.random.IntN(2) == 0 {
		return isolateServer((*striker).pickLeader, "cut off from all workers and servers", (*site.Node).Cut)(ctx, st)
	}
	var servers []*site.Node
	for _, s := range st.world.Cluster.Servers() {
		servers = append(servers, s.Node())
	}
	// servers includes the leader. Its own connections do not pass the firewall.
	isolate := func(leader *site.Node, _ ...*site.Node) error { return leader.Cut(servers...) }
	return isolateServer((*striker).pickLeader, "cut off from the other servers", isolate)(ctx, st)
}

// restartEmpty restarts a server, or one or two of several, without its data. It needs no healing.
func restartEmpty(ctx context.Context, st *striker) error {
	servers, err := st.pickServers(ctx, 1+st.random.IntN(2))
	if err != nil {
		return err
	}
	st.What = "killed and restarted empty"
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Kill(), s.Start())
	}
	return errors.Join(errs...)
}
