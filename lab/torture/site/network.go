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
	// ObserverIP is the address of this process in the network. It is outside of all faults: see [Node.Cut].
	ObserverIP = "10.77.0.254"

	others = "10.77.0.1-10.77.0.253" // everybody else
	bridge = "stile0"
	// ours is the hardware address of this process. Without one of its own a bridge takes that of a node, another one when others
	// join, and what servers send to the one before is lost for ten seconds.
	ours = "02:00:0a:4d:00:fe"
)

// Network is a network of nodes, to which this process belongs too, as [ObserverIP]. It is safe for concurrent use.
type Network struct {
	site *Site

	mu      sync.Mutex
	nodes   []*Node // all that there ever were: their addresses are not used again
	starts  chan func()
	started []*os.Process
	closed  bool
}

// Network makes the network. There is at most one at a time. Close it when it is not needed any more, unless the process
// ends then.
func (s *Site) Network() (*Network, error) {
	for _, args := range [][]string{
		{"link", "add", bridge, "address", ours, "type", "bridge"},
		{"address", "add", ObserverIP + "/24", "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		if err := ip(args...); err != nil {
			return nil, err
		}
	}
	n := &Network{site: s, starts: make(chan func())}
	go n.parent()
	return n, nil
}

// parent starts all programs. The kernel kills them with the thread that has started them, so that must be one that lives as
// long as the network does: the goroutine never gives it back.
func (n *Network) parent() {
	runtime.LockOSThread()
	for start := range n.starts {
		start()
	}
}

// Dir is [Site.Dir].
func (n *Network) Dir() string { return n.site.dir }

// Start starts a command, in a node or not. It ends with the network, or with this process, if not before. The caller
// waits for it with cmd.Wait. Do not use cmd.Start for what is to live long: see [exec.Cmd] and
// [syscall.SysProcAttr.Pdeathsig].
func (n *Network) Start(cmd *exec.Cmd) error {
	dieWithUs(cmd)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errors.New("the network is closed")
	}
	done := make(chan error)
	n.starts <- func() { done <- cmd.Start() }
	if err := <-done; err != nil {
		return err
	}
	n.started = append(n.started, cmd.Process)
	return nil
}

func dieWithUs(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// Close ends all nodes and kills everything that was started. Close after Close does nothing.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	defer close(n.starts) // the kernel may kill everything then; before, it is to be done in order

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

// Node adds a node to the network. name is for messages only. There is room for 253 nodes in the life of a network.
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
