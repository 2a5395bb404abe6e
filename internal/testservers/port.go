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

// Ports are below the ephemeral range of the system, which starts at 32768 on Linux and 49152
// elsewhere. Otherwise an outgoing connection could take the port of a server that is to be
// restarted at the same address.
const (
	firstPort = 11000
	lastPort  = 32000
)

// claimPort is the port on which a process listens for its whole life, to claim its loopback
// address.
const claimPort = 10999

// FreeAddress returns an unused loopback address, as host:port. No other call and no other test
// process returns the same. All addresses of a process have the host that [Host] returns.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	addr, err := NewAddress()
	must(tb, err)
	return addr
}

// NewAddress is [FreeAddress] for use without a test.
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

// Host returns the loopback address of this process's servers. On systems where all of 127.0.0.0/8
// is local, such as Linux, each test process has its own address, so their ports cannot conflict.
// Elsewhere it is 127.0.0.1.
func Host() string { return claimedHost().ip }

// A host is a loopback address and the offset of its first port.
type host struct {
	ip    string
	begin uint32
	claim net.Listener // never closed; the reference prevents the garbage collector from closing it
}

// claimedHost claims an address by listening on its claimPort. The system allows only one listener
// for an address and releases it when the process ends.
var (
	claimedHost = sync.OnceValue(func() host {
		for range 50 {
			// 127.0.0.0/16 is excluded, because users and services use addresses there.
			ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(256), 1+rand.N(254))
			l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(claimPort)))
			if err == nil {
				return host{ip: ip, claim: l}
			}
		}
		// All processes share one address. A random start makes conflicts rare.
		return host{ip: "127.0.0.1", begin: rand.Uint32N(lastPort - firstPort)}
	})
	taken atomic.Uint32 // number of ports used so far; none is used twice
)
