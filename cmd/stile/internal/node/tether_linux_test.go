package node_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/node"
)

// declare declares a lease for this process and returns the server's reply. The declaration ends with the
// call.
func declare(t *testing.T, socket string, lease int64) string {
	t.Helper()
	conn, err := net.Dial("unix", socket+".tether")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "stile-tether 1 %x %d %s %s\n", lease, os.Getpid(), namespace, strings.TrimSpace(string(boot)))
	reply, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// socketPath returns a path that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func TestTethers_checksLease(t *testing.T) {
	t.Parallel()
	socket := socketPath(t)
	n := startWith(t, node.Config{Socket: socket})
	lease, err := client(t, n.URL()).Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if reply := declare(t, socket, int64(lease.ID)); reply != "ok\n" {
		t.Errorf("got reply %q, want ok", reply)
	}
	if reply := declare(t, socket, int64(lease.ID)+1); !strings.Contains(reply, "not found") {
		t.Errorf("another lease: got reply %q, want a refusal", reply)
	}
}

// A process that is dead cannot show the rights of its user, so nobody can have leases of other users ended.
func TestTethers_withUsers(t *testing.T) {
	t.Parallel()
	socket := socketPath(t)
	n := startWith(t, node.Config{Socket: socket, Listen: "127.0.0.1:0", RootPassword: secret})
	root := userClient(t, n, "root", secret)
	lease, err := root.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if reply := declare(t, socket, int64(lease.ID)); !strings.Contains(reply, "requires users") {
		t.Errorf("got reply %q, want a refusal", reply)
	}
	// Users may be required after a declaration.
	if err := n.RevokeTethered(t.Context(), int64(lease.ID)); err == nil {
		t.Errorf("got %v for a declared lease, want an error", err)
	}
	if left, err := root.TimeToLive(t.Context(), lease.ID); err != nil || left.TTL <= 0 {
		t.Errorf("the lease has %+v left, %v", left, err)
	}
}
