package testservers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// Ports are taken from below the range that systems give to outgoing connections (from 32768 on Linux, 49152
// elsewhere). A server that is down for a while, to be restarted at the same address, would otherwise lose its port
// to the first client that connects anywhere.
const (
	firstPort = 11000
	lastPort  = 32000
)

// claimPort is what a process listens on for as long as it lives, to show that the loopback address is its own.
const claimPort = 10999

// FreeAddress returns a loopback address, as host:port, that no other call returns and that no other process of our
// tests uses. Its host is the same for all calls in a process: see [Host].
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	addr, err := NewAddress()
	must(tb, err)
	return addr
}

// NewAddress is [FreeAddress] without a test.
func NewAddress() (string, error) {
	h := claimedHost()
	var err error
	for range 50 {
		port := firstPort + (h.begin+taken.Add(1))%(lastPort-firstPort)
		addr := net.JoinHostPort(h.ip, strconv.Itoa(int(port)))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("no free port on %s between %d and %d: %w", h.ip, firstPort, lastPort, err)
}

// Host returns the loopback address on which this process's servers listen. Where every address in 127.0.0.0/8 is the
// machine's own, as on Linux, no other test process has the same, so no two of them can want the same port. Elsewhere it
// is 127.0.0.1.
func Host() string { return claimedHost().ip }

// A host is a loopback address, and the port after which its next free port is looked for.
type host struct {
	ip    string
	begin uint32
	claim net.Listener // never closed, and kept here from the garbage collector, which would close it
}

// claimedHost claims an address by listening on its claimPort: the system gives a listening address to one process
// only, and takes it back when the process ends, however it ends.
var (
	claimedHost = sync.OnceValue(func() host {
		for range 50 {
			// Not 127.0.0.0/16, where people and services have theirs.
			ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(256), 1+rand.N(254))
			l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(claimPort)))
			if err == nil {
				return host{ip: ip, claim: l}
			}
		}
		// Processes share the one address: each begins where chance decides, and rarely meets another.
		return host{ip: "127.0.0.1", begin: rand.Uint32N(lastPort - firstPort)}
	})
	taken atomic.Uint32 // how many ports this process has taken: it takes none twice
)
