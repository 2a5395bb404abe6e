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

// networkFaults are those that hit what is between all workers and all servers.
func networkFaults() []Fault {
	proxies := site.Options{Proxies: true}
	return []Fault{
		{
			Name:    "slow-net",
			Summary: "let everything between workers and servers take up to a TTL there and back",
			options: proxies,
			strike:  slowNetwork,
		},
		{
			Name:    "reset",
			Summary: "reset all connections of workers, half of the times when requests have arrived and replies have not",
			options: proxies,
			strike:  resetConnections,
		},
	}
}

func slowNetwork(_ context.Context, h *hand) error {
	proxies, err := h.proxies()
	if err != nil {
		return err
	}
	oneWay := h.ttls(0.02, 0.5)
	h.For = h.ttls(0.5, 3)
	h.saying("everything takes %v longer, each way,", oneWay)
	h.heal = func() error {
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

func resetConnections(_ context.Context, h *hand) error {
	proxies, err := h.proxies()
	if err != nil {
		return err
	}
	if h.random.IntN(2) == 0 {
		h.What = "all connections reset"
		for _, p := range proxies {
			p.Reset()
		}
		return nil
	}
	h.For = time.Duration(20+h.random.IntN(200)) * time.Millisecond
	h.What = "all connections reset, replies of the last " + h.For.String() + " lost"
	h.heal = func() error {
		for _, p := range proxies {
			p.Reset() // what was held goes with the connections
			p.Release()
		}
		return nil
	}
	for _, p := range proxies {
		p.Hold(tcpproxy.Down)
	}
	return nil
}

// proxies returns those of all servers. No two faults use them at once.
func (h *hand) proxies() ([]*tcpproxy.Proxy, error) {
	if !h.take(everywhere, everywhere) {
		return nil, fmt.Errorf("all connections: %w", errTaken)
	}
	var proxies []*tcpproxy.Proxy
	for _, s := range h.world.Cluster.Servers() {
		if s.Proxy() == nil {
			return nil, errors.New("the cluster was started without proxies")
		}
		proxies = append(proxies, s.Proxy())
	}
	return proxies, nil
}
