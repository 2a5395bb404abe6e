//go:build linux

package nemesis

import (
	"context"
	"errors"
	"time"

	"github.com/stilelock/stile/lab/torture/site"
)

// ensembles are the kinds of clusters whose servers elect a leader.
var ensembles = []string{"etcd3", "zk3"}

const notElected = "no server leads others there"

// serverFaults are those that hit a server's process, or all of its network.
func serverFaults() []Fault {
	return []Fault{
		{
			Name:    "server-kill",
			Summary: "kill a server and start it again some time later",
			strike:  killServer((*hand).server),
		},
		{
			Name:    "server-pause",
			Summary: "stop a server, for just under, about or past the TTL",
			strike:  pauseServer((*hand).server, (*hand).lasts),
		},
		{
			Name:    "server-isolate",
			Summary: "cut a server off from everybody",
			strike:  isolateServer((*hand).server, "cut off from everybody", (*site.Node).Cut),
		},
		{
			Name:    "leader-kill",
			Summary: "kill the leader and start it again some time later",
			kinds:   ensembles,
			why:     notElected,
			strike:  killServer((*hand).leader),
		},
		{
			Name:    "leader-pause",
			Summary: "stop the leader past the TTL, then let it believe that it leads still",
			kinds:   ensembles,
			why:     notElected,
			strike:  pauseServer((*hand).leader, (*hand).lastsPast),
		},
		{
			Name:    "leader-isolate",
			Summary: "cut the leader off from the other servers, and half of the times from the workers too",
			kinds:   ensembles,
			why:     notElected,
			strike:  isolateLeader,
		},
		{
			Name:    "leader-mute",
			Summary: "lose all that the leader sends; it hears everybody",
			kinds:   ensembles,
			why:     notElected,
			strike:  isolateServer((*hand).leader, "says nothing", (*site.Node).Mute),
		},
		{
			Name:    "leader-deaf",
			Summary: "lose all that is sent to the leader; everybody hears it",
			kinds:   ensembles,
			why:     notElected,
			strike:  isolateServer((*hand).leader, "hears nothing", (*site.Node).Deafen),
		},
		{
			Name:    "follower-isolate",
			Summary: "cut a follower off from everybody",
			kinds:   ensembles,
			why:     notElected,
			strike:  isolateServer((*hand).follower, "cut off from everybody", (*site.Node).Cut),
		},
	}
}

// A choice chooses the server that is to be hit.
type choice func(*hand, context.Context) (*site.Server, error)

func killServer(choose choice) func(context.Context, *hand) error {
	return func(ctx context.Context, h *hand) error {
		server, err := choose(h, ctx)
		if err != nil {
			return err
		}
		h.For = h.ttls(0.1, 2)
		h.saying("killed, down")
		h.heal = server.Start
		return server.Kill()
	}
}

func pauseServer(choose choice, last func(*hand)) func(context.Context, *hand) error {
	return func(ctx context.Context, h *hand) error {
		server, err := choose(h, ctx)
		if err != nil {
			return err
		}
		last(h)
		h.saying("stopped")
		h.heal = server.Resume
		return server.Pause()
	}
}

func isolateServer(choose choice, what string, isolate func(*site.Node, ...*site.Node) error) func(context.Context, *hand) error {
	return func(ctx context.Context, h *hand) error {
		server, err := choose(h, ctx)
		if err != nil {
			return err
		}
		h.lasts()
		// An election takes its time, too.
		h.For += time.Second
		h.saying("%s", what)
		h.heal = server.Node().Heal
		return isolate(server.Node())
	}
}

// isolateLeader leaves the workers a leader that leads nobody, or takes it from them.
func isolateLeader(ctx context.Context, h *hand) error {
	if h.random.IntN(2) == 0 {
		return isolateServer((*hand).leader, "cut off from everybody", (*site.Node).Cut)(ctx, h)
	}
	var servers []*site.Node
	for _, s := range h.world.Cluster.Servers() {
		servers = append(servers, s.Node())
	}
	cut := func(leader *site.Node, _ ...*site.Node) error { return leader.Cut(servers...) } // from itself nothing can cut it
	return isolateServer((*hand).leader, "cut off from the other servers", cut)(ctx, h)
}

// restartEmpty makes a server, or one or two of several, forget everything in no time.
func restartEmpty(ctx context.Context, h *hand) error {
	servers, err := h.servers(ctx, 1+h.random.IntN(2))
	if err != nil {
		return err
	}
	h.What = "killed and started again, empty"
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Kill(), s.Start())
	}
	return errors.Join(errs...)
}
