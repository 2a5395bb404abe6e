// Package tether ends the session of a process on this machine as soon as the process is dead,
// instead of when its TTL has passed.
//
// A client declares its session over a unix socket of its own beside the server's: the server's path
// with [Suffix]. There is a connection for each session, and two lines in it:
//
//	client: stile-tether 1 LEASE PID NAMESPACE BOOT
//	server: ok                                         or: refused: REASON
//
// The lease is in hexadecimal, as etcdctl prints it. NAMESPACE is the link /proc/self/ns/pid, and BOOT is
// /proc/sys/kernel/random/boot_id.
//
// After that the connection is idle. The server ends the session if two things have happened: no
// process has the client's end of the connection open, and the process PID is dead. A client that
// closes its session, gives a declaration up, or wants to leave the session to the TTL, sends any byte
// before it closes the connection.
//
// Death must be certain, because the lock is free for others from then on:
//
//   - The process is known by a pidfd, not by its number, which another process may get. The kernel
//     reports a pidfd as readable when all threads of the process have ended, also if nobody has waited
//     for it.
//   - PID, which the client reads from its own namespace, must be the number of the process that made
//     the connection, as the kernel tells the server. The pid namespace and the boot of the machine must be
//     the server's. So a declaration through a proxy, from another machine or container, or by a socket
//     that was passed on is refused.
//   - While the client lives, nobody else can have its number, so the pidfd is the client's. If the
//     client died before the pidfd was opened, the number may be another process's; then the session ends
//     with the TTL, or when that process dies too.
//   - A process that has inherited the connection, or received it from another process, keeps it open.
//     Only if one of them shuts down both directions, it gives the connection up for all.
//   - Processes of other users are refused.
//
// In all other cases the TTL ends the session, as without a declaration. Child processes that do not have
// the connection do not count: the session ends even if they live.
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
const maxDeclaration = 160

// A declaration is what a client says of itself.
type declaration struct {
	lease int64
	pid   int
	realm string // the pid namespace and the boot in which pid is a number
}

// parse parses a declaration.
func parse(text string) (d declaration, err error) {
	fields := strings.Fields(text)
	if len(fields) != 6 || fields[0] != "stile-tether" {
		return d, fmt.Errorf("invalid declaration %q", text)
	}
	if fields[1] != "1" {
		return d, fmt.Errorf("unknown version %q", fields[1])
	}
	if d.lease, err = strconv.ParseInt(fields[2], 16, 64); err != nil {
		return d, fmt.Errorf("invalid lease %q", fields[2])
	}
	if d.pid, err = strconv.Atoi(fields[3]); err != nil || d.pid <= 0 {
		return d, fmt.Errorf("invalid process id %q", fields[3])
	}
	d.realm = fields[4] + " " + fields[5]
	return d, nil
}
