//go:build linux

package site

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Node is a machine of a [Network], as far as the network is concerned: it has its own address and
// loopback. It shares CPUs, clocks and files with all others. It is safe for concurrent use.
type Node struct {
	name    string
	ip      string
	network *Network
	anchor  *process // a process that keeps the network namespace alive
	port    string   // the bridge's end of its cable; empty if it is not connected

	mu         sync.Mutex
	deaf, mute map[string]bool // addresses, or ranges, from which and to which packets are dropped
}

// rules are the rules of a node's firewall. Faults do not affect connections within the node.
const rules = `
table inet fault {
	set deaf { type ipv4_addr; flags interval; }
	set mute { type ipv4_addr; flags interval; }
	chain in {
		type filter hook input priority 0;
		iif lo accept
		ip saddr @deaf drop
	}
	chain out {
		type filter hook output priority 0;
		oif lo accept
		ip daddr @mute drop
	}
}
`

// join creates the node's namespace and connects it to the network.
func (n *Node) join(number int) error {
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	var err error
	if n.anchor, err = n.network.launch(cmd); err != nil {
		return err
	}
	port := fmt.Sprintf("port%d", number)
	outside := fmt.Sprintf("link add %s type veth peer name eth0 netns %d\nlink set %s master %s up\n",
		port, n.anchor.pid(), port, bridge)
	if err := runWithInput(outside, "ip", "-batch", "-"); err != nil {
		return err
	}
	n.port = port
	inside := fmt.Sprintf("link set lo up\naddress add %s/24 dev eth0\nlink set eth0 up\n", n.ip)
	if err := n.runWithInput(inside, "ip", "-batch", "-"); err != nil {
		return err
	}
	return n.runWithInput(rules, "nft", "-f", "-")
}

// Name returns the node's name.
func (n *Node) Name() string { return n.name }

// IP returns the node's address. No other node of the network ever has it.
func (n *Node) IP() string { return n.ip }

// Command returns a command that runs a program in the node; start it with [Network.Start]. Its
// process executes the program, so signals sent to cmd.Process reach the program itself.
func (n *Node) Command(path string, args ...string) *exec.Cmd {
	program, err := exec.LookPath(path)
	if err != nil {
		return &exec.Cmd{Path: path, Err: err}
	}
	cmd := exec.Command("nsenter", append([]string{"--net=" + n.namespace(), "--", program}, args...)...)
	killWithParent(cmd)
	return cmd
}

// Cut cuts the node off from the others, in both directions, or from all nodes if none are given.
// It never cuts it off from this process: the connections of the observer remain, so that the
// history shows the true state of the store.
//
// Packets are dropped without a notification. The effects of several calls add up until
// [Node.Heal].
func (n *Node) Cut(others ...*Node) error { return n.drop(others, n.deaf, n.mute) }

// Deafen drops all packets from the others to the node, as [Node.Cut] does. The packets that it
// sends arrive.
func (n *Node) Deafen(others ...*Node) error { return n.drop(others, n.deaf) }

// Mute drops all packets from the node to the others, as [Node.Cut] does. The packets that they
// send arrive.
func (n *Node) Mute(others ...*Node) error { return n.drop(others, n.mute) }

// Heal undoes all calls of [Node.Cut], [Node.Deafen] and [Node.Mute] on this node. Those on other
// nodes remain in effect.
func (n *Node) Heal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.deaf)
	clear(n.mute)
	return n.apply()
}

func (n *Node) drop(peers []*Node, sets ...map[string]bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, set := range sets {
		if len(peers) == 0 {
			set[otherAddrs] = true
		}
		for _, other := range peers {
			set[other.ip] = true
		}
	}
	return n.apply()
}

// apply updates the firewall to deaf and mute, atomically.
func (n *Node) apply() error {
	var script strings.Builder
	for name, addrs := range map[string]map[string]bool{"deaf": n.deaf, "mute": n.mute} {
		fmt.Fprintf(&script, "flush set inet fault %s\n", name)
		addresses := slices.Sorted(maps.Keys(addrs))
		if addrs[otherAddrs] {
			addresses = []string{otherAddrs} // it includes the others
		}
		if len(addresses) > 0 {
			fmt.Fprintf(&script, "add element inet fault %s { %s }\n", name, strings.Join(addresses, ", "))
		}
	}
	return n.runWithInput(script.String(), "nft", "-f", "-")
}

// Close ends the node and its part of the network. Programs that run there are not ended, but have
// no connections any more. Calls after the first do nothing.
func (n *Node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	if n.port != "" {
		// The kernel would do that too, some time after the end of the namespace.
		errs = append(errs, ip("link", "del", n.port))
		n.port = ""
	}
	if n.anchor != nil {
		errs = append(errs, n.anchor.kill())
	}
	return errors.Join(errs...)
}

// runWithInput runs a program in the node; see the function runWithInput.
func (n *Node) runWithInput(input, program string, args ...string) error {
	return runWithInput(input, "nsenter", append([]string{"--net=" + n.namespace(), "--", program}, args...)...)
}

func (n *Node) namespace() string { return fmt.Sprintf("/proc/%d/ns/net", n.anchor.pid()) }

// listen listens on a port of the node, for this process. Faults of the node affect the
// connections.
func (n *Node) listen(port int) (listener net.Listener, err error) {
	insideErr := n.inNamespace(func() {
		listener, err = net.Listen("tcp", fmt.Sprintf("%s:%d", n.ip, port))
	})
	return listener, errors.Join(insideErr, err)
}

// Dial connects from the node, for this process. Faults of the node affect the connection.
func (n *Node) Dial(ctx context.Context, addr string) (conn net.Conn, err error) {
	insideErr := n.inNamespace(func() { conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr) })
	return conn, errors.Join(insideErr, err)
}

// inNamespace calls f on a thread in the node's network namespace. Sockets that f creates belong
// there.
func (n *Node) inNamespace(f func()) error {
	namespace, err := os.Open(n.namespace())
	if err != nil {
		return err
	}
	defer namespace.Close()
	done := make(chan error)
	go func() {
		// If the thread cannot return to its own namespace, it ends with this goroutine.
		runtime.LockOSThread()
		// Not /proc/self, which is the main thread: another call of inNamespace may have moved it
		// to a node.
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer own.Close()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		f()
		err = unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
