package testservers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that systems give to outgoing connections (from 32768 on Linux, 49152
// elsewhere). A server that is down for a while, to be restarted at the same address, would otherwise lose its port
// to the first client that connects anywhere.
const (
	firstPort = 11000
	lastPort  = 32000
)

// freePort returns a loopback address that nobody listened on a moment ago.
func freePort() (string, error) {
	var err error
	for range 50 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort)))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", fmt.Errorf("no free port between %d and %d: %w", firstPort, lastPort, err)
}
