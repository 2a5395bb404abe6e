//go:build linux

package site

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

const (
	// ObserverIP is the address of this process in the network. No fault affects it: see
	// [Node.Cut].
	ObserverIP = "10.77.0.254"

	otherAddrs = "10.77.0.1-10.77.0.253" // all nodes
	bridge     = "stile0"
	// bridgeMAC is the hardware address of this process. Without a fixed one, a bridge takes the
	// address of one of its nodes, and changes it when others join. What servers send to the old
	// address is lost for ten seconds.
	bridgeMAC = "02:00:0a:4d:00:fe"
)

// Network is a network of nodes. This process belongs to it too, as [ObserverIP]. It is safe for
// concurrent use.
type Network struct {
	site *Site

	mu            sync.Mutex
	nodes         []*Node // including closed ones: addresses are not reused
	startRequests chan func()
	started       []*os.Process
	closed        bool
}

// Network creates the network. There can be only one at a time. Close it after use, unless the
// process ends then.
func (s *Site) Network() (*Network, error) {
	for _, args := range [][]string{
		{"link", "add", bridge, "address", bridgeMAC, "type", "bridge"},
		{"address", "add", ObserverIP + "/24", "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		if err := ip(args...); err != nil {
			return nil, err
		}
	}
	n := &Network{site: s, startRequests: make(chan func())}
	go n.runStarter()
	return n, nil
}

// runStarter starts all programs, in a goroutine of its own that keeps its thread. The kernel kills
// a child when the thread that started it ends, so that thread must live as long as the network.
func (n *Network) runStarter() {
	runtime.LockOSThread()
	for start := range n.startRequests {
		start()
	}
}

// Dir returns [Site.Dir].
func (n *Network) Dir() string { return n.site.dir }

// Start starts a command, in a node or not. The command ends with the network or with this process
// at the latest. The caller waits for it with cmd.Wait. Do not use cmd.Start for long-lived
// processes: see runStarter, [exec.Cmd] and [syscall.SysProcAttr.Pdeathsig].
func (n *Network) Start(cmd *exec.Cmd) error {
	killWithParent(cmd)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errors.New("the network is closed")
	}
	done := make(chan error)
	n.startRequests <- func() { done <- cmd.Start() }
	if err := <-done; err != nil {
		return err
	}
	n.started = append(n.started, cmd.Process)
	return nil
}

func killWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// Close ends all nodes and kills all processes that were started. Calls after the first do nothing.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	defer close(n.startRequests) // last, since the kernel may then kill all processes at once

	var errs []error
	for _, node := range n.nodes {
		errs = append(errs, node.Close())
	}
	for _, p := range n.started {
		if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, ip("link", "del", bridge))...)
}

// Node adds a node to the network. The name is for messages only. A network can have 253 nodes in
// its lifetime, including closed ones.
func (n *Network) Node(name string) (*Node, error) {
	n.mu.Lock()
	number := len(n.nodes) + 1
	node := &Node{name: name, ip: fmt.Sprintf("10.77.0.%d", number), network: n, deaf: map[string]bool{}, mute: map[string]bool{}}
	if number > 253 || n.closed {
		n.mu.Unlock()
		return nil, fmt.Errorf("no node %s: the network is full or closed", name)
	}
	n.nodes = append(n.nodes, node)
	n.mu.Unlock()
	if err := node.join(number); err != nil {
		return nil, errors.Join(fmt.Errorf("node %s: %w", name, err), node.Close())
	}
	return node, nil
}
