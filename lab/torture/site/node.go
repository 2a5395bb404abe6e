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

// Node is one machine of a [Network], as far as the network is concerned: it has an address and a loopback of its own. It
// shares processors, clocks and files with all others. It is safe for concurrent use.
type Node struct {
	name    string
	ip      string
	network *Network
	anchor  *process // keeps the network namespace alive
	port    string   // its end of the cable at the bridge; empty if it has none

	mu         sync.Mutex
	deaf, mute map[string]bool // addresses, or ranges, that are not heard, and not spoken to
}

// rules are those of a node's firewall. What stays on the node is no fault's business.
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

// join makes the node's namespace and connects it.
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
	if err := feed(outside, "ip", "-batch", "-"); err != nil {
		return err
	}
	n.port = port
	inside := fmt.Sprintf("link set lo up\naddress add %s/24 dev eth0\nlink set eth0 up\n", n.ip)
	if err := n.feed(inside, "ip", "-batch", "-"); err != nil {
		return err
	}
	return n.feed(rules, "nft", "-f", "-")
}

// Name returns the node's name.
func (n *Node) Name() string { return n.name }

// IP returns the node's address, which no other node of the network has or will have.
func (n *Node) IP() string { return n.ip }

// Command returns a command that runs a program in the node, to be started with [Network.Start]. The process that it
// starts becomes the program, so signals sent to cmd.Process reach the program itself.
func (n *Node) Command(path string, args ...string) *exec.Cmd {
	program, err := exec.LookPath(path)
	if err != nil {
		return &exec.Cmd{Path: path, Err: err}
	}
	cmd := exec.Command("nsenter", append([]string{"--net=" + n.namespace(), "--", program}, args...)...)
	dieWithUs(cmd)
	return cmd
}

// Cut lets nothing pass any more between the node and the others, in neither direction. If none are given it is cut off
// from all nodes, but never from this process: the observer's connections stay, so that the truth is known.
//
// Nobody is told: what is sent is lost. What two calls cut is cut until [Node.Heal].
func (n *Node) Cut(others ...*Node) error { return n.fault(others, n.deaf, n.mute) }

// Deafen lets nothing from the others reach the node any more, as [Node.Cut] says. What it sends arrives.
func (n *Node) Deafen(others ...*Node) error { return n.fault(others, n.deaf) }

// Mute lets nothing of the node reach the others any more, as [Node.Cut] says. What they send arrives.
func (n *Node) Mute(others ...*Node) error { return n.fault(others, n.mute) }

// Heal undoes all that [Node.Cut], [Node.Deafen] and [Node.Mute] have done to this node. What they have done to others
// stays.
func (n *Node) Heal() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.deaf)
	clear(n.mute)
	return n.apply()
}

func (n *Node) fault(from []*Node, sets ...map[string]bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, set := range sets {
		if len(from) == 0 {
			set[others] = true
		}
		for _, other := range from {
			set[other.ip] = true
		}
	}
	return n.apply()
}

// apply makes the firewall do what is wanted, all at once.
func (n *Node) apply() error {
	var script strings.Builder
	for name, wanted := range map[string]map[string]bool{"deaf": n.deaf, "mute": n.mute} {
		fmt.Fprintf(&script, "flush set inet fault %s\n", name)
		addresses := slices.Sorted(maps.Keys(wanted))
		if wanted[others] {
			addresses = []string{others} // the others are among them
		}
		if len(addresses) > 0 {
			fmt.Fprintf(&script, "add element inet fault %s { %s }\n", name, strings.Join(addresses, ", "))
		}
	}
	return n.feed(script.String(), "nft", "-f", "-")
}

// Close ends the node and its part of the network. Programs that run there are not ended, but reach nobody any more. Close
// after Close does nothing.
func (n *Node) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	if n.port != "" {
		// The kernel would do it too, some time after the namespace has gone.
		errs = append(errs, ip("link", "del", n.port))
		n.port = ""
	}
	if n.anchor != nil {
		errs = append(errs, n.anchor.kill())
	}
	return errors.Join(errs...)
}

// feed is feed in the node.
func (n *Node) feed(input, program string, args ...string) error {
	return feed(input, "nsenter", append([]string{"--net=" + n.namespace(), "--", program}, args...)...)
}

func (n *Node) namespace() string { return fmt.Sprintf("/proc/%d/ns/net", n.anchor.pid()) }

// listen listens at a port of the node, for this process: faults of the node concern what arrives there.
func (n *Node) listen(port int) (listener net.Listener, err error) {
	insideErr := n.inside(func() {
		listener, err = net.Listen("tcp", fmt.Sprintf("%s:%d", n.ip, port))
	})
	return listener, errors.Join(insideErr, err)
}

// Dial connects from the node, for this process: faults of the node concern the connection.
func (n *Node) Dial(ctx context.Context, addr string) (conn net.Conn, err error) {
	insideErr := n.inside(func() { conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr) })
	return conn, errors.Join(insideErr, err)
}

// inside calls f on a thread that is in the node. Sockets that f makes belong there.
func (n *Node) inside(f func()) error {
	there, err := os.Open(n.namespace())
	if err != nil {
		return err
	}
	defer there.Close()
	done := make(chan error)
	go func() {
		// If the thread does not find back it ends with this goroutine.
		runtime.LockOSThread()
		// Not that of "self", which is the main thread's: that may be in a node just now, for another call of inside.
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		f()
		err = unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
