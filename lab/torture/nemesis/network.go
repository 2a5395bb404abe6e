//go:build linux

package nemesis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stilelock/stile/internal/tcpproxy"
	"github.com/stilelock/stile/lab/torture/site"
)

// networkFaults returns the faults of the connections between all workers and all servers.
func networkFaults() []Fault {
	proxies := site.Options{Proxies: true}
	return []Fault{
		{
			Name:    "slow-net",
			Summary: "delay everything between workers and servers by up to a TTL for the round trip",
			options: proxies,
			strike:  slowNetwork,
		},
		{
			Name:    "reset",
			Summary: "reset all connections of workers; in half of the strikes, requests arrive but replies are lost",
			options: proxies,
			strike:  resetConnections,
		},
	}
}

func slowNetwork(_ context.Context, st *striker) error {
	proxies, err := st.proxies()
	if err != nil {
		return err
	}
	oneWay := st.randomTTLs(0.02, 0.5)
	st.Duration = st.randomTTLs(0.5, 3)
	st.describe("everything takes %v longer, each way,", oneWay)
	st.heal = func() error {
		for _, p := range proxies {
			p.Delay(0)
		}
		return nil
	}
	for _, p := range proxies {
		p.Delay(oneWay)
	}
	return nil
}

func resetConnections(_ context.Context, st *striker) error {
	proxies, err := st.proxies()
	if err != nil {
		return err
	}
	if st.random.IntN(2) == 0 {
		st.What = "all connections reset"
		for _, p := range proxies {
			p.Reset()
		}
		return nil
	}
	st.Duration = time.Duration(20+st.random.IntN(200)) * time.Millisecond
	st.What = "all connections reset, replies of the last " + st.Duration.String() + " lost"
	st.heal = func() error {
		for _, p := range proxies {
			p.Reset() // discards the held replies
			p.Release()
		}
		return nil
	}
	for _, p := range proxies {
		p.Hold(tcpproxy.Down)
	}
	return nil
}

// proxies returns the proxies of all servers. Only one fault at a time uses them.
func (st *striker) proxies() ([]*tcpproxy.Proxy, error) {
	if !st.claim(allConnections, allConnections) {
		return nil, fmt.Errorf("all connections: %w", errClaimed)
	}
	var proxies []*tcpproxy.Proxy
	for _, s := range st.world.Cluster.Servers() {
		if s.Proxy() == nil {
			return nil, errors.New("the cluster was started without proxies")
		}
		proxies = append(proxies, s.Proxy())
	}
	return proxies, nil
}
