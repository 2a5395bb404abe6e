// Package tether ends the session of a process on this machine as soon as the process is dead,
// instead of when its TTL has passed.
//
// A client declares its session over a unix socket of its own beside the server's: the server's path
// with [Suffix]. There is a connection for each session, and two lines in it:
//
//	client: stile-tether 1 LEASE PID     the lease in hexadecimal, as etcdctl prints it
//	server: ok                           or: refused: REASON
//
// After that the connection is idle. The server ends the session if two things have happened: no
// process has the client's end of the connection open, and the process PID is dead. A client that
// closes its session, or wants to leave it to the TTL, sends any byte.
//
// Death must be certain, because the lock is free for others from then on:
//
//   - The process is known by a pidfd, not by its number, which another process may get. The kernel
//     reports a pidfd as readable when all threads of the process have ended, also if nobody has waited
//     for it.
//   - PID, which the client reads from its own namespace, must be the number of the process that made
//     the connection, as the kernel tells the server. So a declaration through a proxy or a socket
//     that was passed on is refused, and so is one from another pid namespace. The pidfd is opened by
//     that number while the client, if it lives, still has it. So it cannot be another process's pidfd
//     while the client lives.
//   - A process that has inherited the connection, or received it from another process, keeps it open.
//   - Processes of other users are refused.
//
// In all other cases the TTL ends the session, as without a declaration. Nobody is asked about
// processes that the dead process has started and that do not have the connection.
package tether

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Suffix is added to the path of the server's socket.
const Suffix = ".tether"

// Leases are the leases of the server's sessions. Both functions may be called concurrently.
type Leases struct {
	// Check returns an error if the lease cannot be ended by this package: because it does not exist, or
	// because clients need rights that a dead process cannot show.
	Check func(ctx context.Context, lease int64) error
	// Revoke ends the lease. An error means that it may end with its TTL only.
	Revoke func(ctx context.Context, lease int64) error
}

// maxDeclaration is the limit of a declaration's length in bytes.
const maxDeclaration = 64

// parse parses a declaration.
func parse(text string) (lease int64, pid int, err error) {
	fields := strings.Fields(text)
	if len(fields) != 4 || fields[0] != "stile-tether" {
		return 0, 0, fmt.Errorf("invalid declaration %q", text)
	}
	if fields[1] != "1" {
		return 0, 0, fmt.Errorf("unknown version %q", fields[1])
	}
	if lease, err = strconv.ParseInt(fields[2], 16, 64); err != nil {
		return 0, 0, fmt.Errorf("invalid lease %q", fields[2])
	}
	if pid, err = strconv.Atoi(fields[3]); err != nil || pid <= 0 {
		return 0, 0, fmt.Errorf("invalid process id %q", fields[3])
	}
	return lease, pid, nil
}
