package page

import (
	"fmt"
	"net"
	"slices"
	"testing"
)

// addFrom adds a connection of a network, and returns the one that gives way.
func addFrom(cs *connections, network string) (c, other *connection) {
	c = &connection{all: cs, network: network}
	return c, cs.add(c)
}

// full returns the connections of a page whose places are all taken, each by another network.
func full() (cs *connections, idle []*connection) {
	cs = &connections{maxProven: maxProven, maxUnproven: maxUnproven}
	for i := range maxUnproven {
		addFrom(cs, fmt.Sprintf("network %d", i))
	}
	return cs, slices.Clone(cs.unproven)
}

// Idle connections of many networks give way to a client that opens several, as browsers do.
func TestConnections_browser(t *testing.T) {
	t.Parallel()
	cs, idle := full()
	for i := range maxUnproven / shares {
		if _, other := addFrom(cs, "browser"); other != idle[i] {
			t.Fatalf("connection %d of the browser did not replace the oldest one", i+1)
		}
	}
}

// The connection that gives way has not been used for longest.
func TestConnections_used(t *testing.T) {
	t.Parallel()
	cs, idle := full()
	end := idle[0].begin()
	if _, other := addFrom(cs, "a"); other != idle[1] {
		t.Error("a connection with a request gave way, or not the one that is idle for longest")
	}
	idle[2].begin()()
	if _, other := addFrom(cs, "b"); other != idle[3] {
		t.Error("a connection that has had a request gave way, or not the one that is idle for longest")
	}
	end()
	for i, c := range idle[4:] {
		if _, other := addFrom(cs, fmt.Sprintf("c%d", i)); other != c {
			t.Fatal("not the connection that is idle for longest gave way")
		}
	}
}

// Clients that make requests and do not read the answers gain nothing by it.
func TestConnections_stalled(t *testing.T) {
	t.Parallel()
	cs, stalled := full()
	for _, c := range stalled {
		c.begin()
	}
	for i := range 6 {
		if _, other := addFrom(cs, "browser"); other != stalled[i] {
			t.Fatalf("connection %d of the browser did not replace the oldest one", i+1)
		}
	}
}

// Up to seven networks, however many connections they open, do not touch the first eight of another one.
func TestConnections_share(t *testing.T) {
	t.Parallel()
	cs := &connections{maxProven: maxProven, maxUnproven: maxUnproven}
	for range maxUnproven / shares {
		addFrom(cs, "browser")
	}
	for i := range 1000 {
		c, other := addFrom(cs, fmt.Sprintf("network %d", i%(shares-1)))
		c.begin()
		if other != nil && other.network == "browser" {
			t.Fatalf("connection %d of the others replaced one of the browser", i+1)
		}
	}
	for i := range 100 {
		if _, other := addFrom(cs, "browser"); i >= maxUnproven && other.network != "browser" {
			t.Fatal("a network with most connections replaced one of another network")
		}
	}
}

func TestNetworkOf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		a, b string
		same bool
	}{
		{"127.0.0.1:1", "127.9.9.9:2", true},
		{"127.0.0.1:1", "[::1]:1", true},
		{"127.0.0.1:1", "[::ffff:127.0.0.2]:1", true},
		{"192.0.2.1:1", "[::ffff:192.0.2.1]:2", true},
		{"192.0.2.1:1", "192.0.2.2:1", false},
		{"192.0.2.1:1", "127.0.0.1:1", false},
		{"[2001:db8::1]:1", "[2001:db8:0:ff::2]:1", true},
		{"[2001:db8::1]:1", "[2001:db8:0:100::1]:1", false},
		{"[fe80::1%lo]:1", "[fe80::2]:1", true},
	}
	for _, tt := range tests {
		if same := networkOf(tcpAddress(tt.a)) == networkOf(tcpAddress(tt.b)); same != tt.same {
			t.Errorf("%s and %s: got the same network %t, want %t", tt.a, tt.b, same, tt.same)
		}
	}
	if got := networkOf(&net.UnixAddr{Name: "@", Net: "unix"}); got != "" {
		t.Errorf("a client of the socket: got %q, want no network", got)
	}
}

// tcpAddress is an address that need not exist.
type tcpAddress string

func (a tcpAddress) Network() string { return "tcp" }
func (a tcpAddress) String() string  { return string(a) }
