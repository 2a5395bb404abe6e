package testservers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
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

// taken counts the ports that this process has taken, which begin where chance decides: it takes none twice, although those
// who have been given one may not listen on it yet, and rarely one of another process.
var (
	begin = rand.Uint32N(lastPort - firstPort)
	taken atomic.Uint32
)

// FreeAddress returns a loopback address that nobody listens on, and that no other call in this process returns.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	addr, err := freePort()
	if err != nil {
		tb.Fatal(err)
	}
	return addr
}

func freePort() (string, error) {
	var err error
	for range 50 {
		port := firstPort + (begin+taken.Add(1))%(lastPort-firstPort)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("no free port between %d and %d: %w", firstPort, lastPort, err)
}
