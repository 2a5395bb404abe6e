//go:build linux

package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile/internal/clockshim"
)

// ErrMissing means that a program is not installed which a cluster needs. The error that matches it names the program.
var ErrMissing = errors.New("not installed")

// A kind is a sort of cluster.
type kind struct {
	name    string
	scheme  string // of its URL
	servers int
	runs    software
}

// kinds are all that there are.
var kinds = []kind{
	{"etcd", "etcd", 1, etcd{}},
	{"etcd3", "etcd", 3, etcd{}},
	{"redis", "redis", 1, redis{}},
	{"redlock3", "redlock", 3, redis{}},
	{"redlock5", "redlock", 5, redis{}},
	{"zk", "zk", 1, zookeeper{}},
	{"zk3", "zk", 3, zookeeper{}},
}

// Kinds returns the kinds of clusters that [Start] knows: "etcd", "etcd3", "redis", "redlock3", "redlock5", "zk", "zk3". The
// figure is the number of servers.
func Kinds() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// Options configures [Start]. The zero value is ready for use.
type Options struct {
	// Proxies puts a proxy before each server, on the same node: [Cluster.URL] leads there.
	Proxies bool
	// Clocks lets the wall clocks of Redis servers be set: see [Server.SetClock]. It needs a C compiler.
	Clocks bool
	// Shipped runs ZooKeeper with the times that it is shipped with: a tick of two seconds, and sessions of four and more.
	// Otherwise all is eight times as fast.
	Shipped bool
}

// Cluster is one or more servers of one kind, each on a node of its own. It is safe for concurrent use.
type Cluster struct {
	kind    kind
	network *Network
	dir     string
	servers []*Server
	shipped bool
	crashed chan error
}

// Start starts a cluster of a kind and waits until all of its servers serve. ctx bounds only the call. If it fails nothing is
// left running; the error matches [ErrMissing] if a program is not installed.
func Start(ctx context.Context, network *Network, kindName string, opts Options) (*Cluster, error) {
	at := slices.IndexFunc(kinds, func(k kind) bool { return k.name == kindName })
	if at < 0 {
		return nil, fmt.Errorf("there is no cluster of the kind %q; there are %s", kindName, strings.Join(Kinds(), ", "))
	}
	dir, err := os.MkdirTemp(network.Dir(), kindName+"-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{kind: kinds[at], network: network, dir: dir, shipped: opts.Shipped, crashed: make(chan error, 1)}
	if err := c.start(ctx, opts); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", kindName, err), c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, opts Options) error {
	for i := range c.kind.servers {
		s, err := c.newServer(i + 1)
		if err != nil {
			return err
		}
		c.servers = append(c.servers, s)
	}
	if opts.Clocks {
		if err := c.wind(); err != nil {
			return err
		}
	}
	for _, s := range c.servers {
		if err := s.prepare(opts.Proxies); err != nil {
			return err
		}
	}
	// They need each other to become ready.
	for _, s := range c.servers {
		if err := s.Start(); err != nil {
			return err
		}
	}
	for _, s := range c.servers {
		if err := s.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wind gives each server a clock of its own.
func (c *Cluster) wind() error {
	shim, err := clockshim.Build(c.dir)
	if errors.Is(err, clockshim.ErrNoCompiler) {
		return fmt.Errorf("%w: cc, to set the clocks of the servers", ErrMissing)
	}
	if err != nil {
		return err
	}
	for _, s := range c.servers {
		if s.clock, err = shim.Clock(s.name); err != nil {
			return err
		}
	}
	return nil
}

// Kind returns the kind, as given to [Start].
func (c *Cluster) Kind() string { return c.kind.name }

// Network returns the network that the servers are in.
func (c *Cluster) Network() *Network { return c.network }

// Servers returns the servers, always in the same order.
func (c *Cluster) Servers() []*Server { return slices.Clone(c.servers) }

// URL returns the URL of the cluster for clients, as package storeurl understands it.
func (c *Cluster) URL() string { return c.kind.scheme + "://" + strings.Join(c.Addrs(), ",") }

// Addrs returns the addresses for clients, as host:port, in the order of Servers: those of the proxies if there are any.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, s := range c.servers {
		addr := s.Addr()
		if s.proxy != nil {
			addr = s.proxy.Addr()
		}
		addrs = append(addrs, addr)
	}
	return addrs
}

// DirectAddrs returns the servers' own addresses, as host:port, in the order of Servers. They are for the observer.
func (c *Cluster) DirectAddrs() []string {
	var addrs []string
	for _, s := range c.servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Crashed returns the channel that is told of the first server that has ended though nobody has killed it and its disk was
// not full: which one, how it ended, and the last of what it said. It is never closed.
func (c *Cluster) Crashed() <-chan error { return c.crashed }

// SaveLogs copies what the servers have said to dir: s1.log, s2.log and so on. Close removes the originals.
func (c *Cluster) SaveLogs(dir string) error {
	var errs []error
	for _, s := range c.servers {
		text, err := os.ReadFile(s.log())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, s.name+".log"), text, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// HasLeader reports whether one of the servers leads the others. Those of Redlock know nothing of each other.
func (c *Cluster) HasLeader() bool { return c.kind.scheme != "redlock" }

// Leader returns the server that leads; the only one leads always. While there is none it waits until ctx ends. A server
// that was paused or isolated while it led, and has not heard of its successor, is not mistaken for one.
func (c *Cluster) Leader(ctx context.Context) (*Server, error) {
	if !c.HasLeader() {
		return nil, fmt.Errorf("the servers of %s have no leader", c.kind.name)
	}
	// Polling, because the servers tell nobody outside of an election.
	for {
		if leader, _ := c.leader(ctx); leader != nil {
			return leader, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s has no leader: %w", c.kind.name, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// leader asks every server once, and returns the one that says that it leads in the latest term that any of them knows of, and
// that term. Only if most of them answer is that certainly the latest: most have elected its leader.
func (c *Cluster) leader(ctx context.Context) (leader *Server, term uint64) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	replies := make([]standing, len(c.servers))
	var answered atomic.Int64
	var asking sync.WaitGroup
	for i, s := range c.servers {
		asking.Go(func() {
			var err error
			replies[i], err = c.kind.runs.standing(ctx, s)
			if err == nil || replies[i].term > 0 { // it knows no leader, but the term
				answered.Add(1)
			}
		})
	}
	asking.Wait()
	if int(answered.Load()) <= len(c.servers)/2 {
		return nil, 0
	}
	for i, r := range replies {
		if r.term > term {
			leader, term = nil, r.term
		}
		if r.leads && r.term == term {
			leader = c.servers[i]
		}
	}
	return leader, term
}

// Term returns the latest term of those that most servers know of, which counts the elections; zero while most do not answer.
func (c *Cluster) Term(ctx context.Context) uint64 {
	_, term := c.leader(ctx)
	return term
}

// Versions returns the versions of the programs that run, by name. What does not answer before ctx ends is left out.
func (c *Cluster) Versions(ctx context.Context) map[string]string {
	return c.kind.runs.versions(ctx, c.servers[0])
}

// Close kills the servers and removes their nodes and data.
func (c *Cluster) Close() error {
	var errs []error
	for _, s := range c.servers {
		errs = append(errs, s.close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// A software is what the servers of a cluster run.
type software interface {
	// port is where it listens for clients.
	port() int
	// room is the size of the file system for its data, as mount understands it; empty if it has none on disk.
	room() string
	// configure writes what it needs to know into the server's directory.
	configure(s *Server) error
	// command returns what starts it.
	command(s *Server) (path string, args []string, err error)
	// standing asks a server for its place among the others. It fails if it does not serve.
	standing(ctx context.Context, s *Server) (standing, error)
	versions(ctx context.Context, s *Server) map[string]string
}

// A standing is what a server says of itself.
type standing struct {
	leads bool
	term  uint64 // counts the elections; those of redis have none
}
