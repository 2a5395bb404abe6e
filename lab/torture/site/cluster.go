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

// ErrMissing means that a cluster needs a program that is not installed. The error that matches it
// names the program.
var ErrMissing = errors.New("not installed")

// A kind is a kind of cluster.
type kind struct {
	name     string
	scheme   string // of its URL
	servers  int
	software software
}

// kinds are all kinds of clusters.
var kinds = []kind{
	{"etcd", "etcd", 1, etcd{}},
	{"etcd3", "etcd", 3, etcd{}},
	{"redis", "redis", 1, redis{}},
	{"redlock3", "redlock", 3, redis{}},
	{"redlock5", "redlock", 5, redis{}},
	{"zk", "zk", 1, zookeeper{}},
	{"zk3", "zk", 3, zookeeper{}},
}

// Kinds returns the kinds of clusters for [Start]: "etcd", "etcd3", "redis", "redlock3",
// "redlock5", "zk", "zk3". The digit is the number of servers if there is more than one.
func Kinds() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// Options configures [Start]. The zero value is ready for use.
type Options struct {
	// Proxies puts a proxy in front of each server, on the same node. [Cluster.URL] then has the
	// addresses of the proxies.
	Proxies bool
	// Clocks gives each Redis server a wall clock that can be set; see [Server.SetClock]. It needs
	// a C compiler.
	Clocks bool
	// Shipped runs ZooKeeper with the ticks that it ships with: two seconds, and sessions of at
	// least four. Otherwise all its times are an eighth of that.
	Shipped bool
}

// Cluster is one or more servers of one kind, each on its own node. It is safe for concurrent use.
type Cluster struct {
	kind    kind
	network *Network
	dir     string
	servers []*Server
	shipped bool
	crashed chan error
}

// Start starts a cluster of a kind, and waits until all of its servers are ready. ctx limits only
// the call. After an error nothing is left running. The error matches [ErrMissing] if a program is
// not installed.
func Start(ctx context.Context, network *Network, kindName string, opts Options) (*Cluster, error) {
	at := slices.IndexFunc(kinds, func(k kind) bool { return k.name == kindName })
	if at < 0 {
		return nil, fmt.Errorf("unknown kind of cluster %q: use one of %s", kindName, strings.Join(Kinds(), ", "))
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
		if err := c.createClocks(); err != nil {
			return err
		}
	}
	for _, s := range c.servers {
		if err := s.prepare(opts.Proxies); err != nil {
			return err
		}
	}
	// A server becomes ready only after a majority of them has started.
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

// createClocks gives each server its own clock.
func (c *Cluster) createClocks() error {
	shim, err := clockshim.Build(c.dir)
	if errors.Is(err, clockshim.ErrNoCompiler) {
		return fmt.Errorf("%w: cc, which is needed to set the clocks of the servers", ErrMissing)
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

// Kind returns the kind that was given to [Start].
func (c *Cluster) Kind() string { return c.kind.name }

// Network returns the network of the servers.
func (c *Cluster) Network() *Network { return c.network }

// Servers returns the servers, always in the same order.
func (c *Cluster) Servers() []*Server { return slices.Clone(c.servers) }

// URL returns the URL of the cluster for clients, for package storeurl.
func (c *Cluster) URL() string { return c.kind.scheme + "://" + strings.Join(c.Addrs(), ",") }

// Addrs returns the addresses for clients, as host:port, in the order of Servers. They are those of
// the proxies, if there are any.
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

// DirectAddrs returns the addresses of the servers themselves, as host:port, in the order of
// Servers. The observer uses them.
func (c *Cluster) DirectAddrs() []string {
	var addrs []string
	for _, s := range c.servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Crashed returns a channel that receives an error when a server has ended that was not killed and
// whose disk was not full: the server, its exit status, and the end of its output. Further errors
// are dropped until the first has been received. The channel is never closed.
func (c *Cluster) Crashed() <-chan error { return c.crashed }

// SaveLogs copies the output of the servers to dir, as s1.log, s2.log and so on. Close removes the
// originals.
func (c *Cluster) SaveLogs(dir string) error {
	var errs []error
	for _, s := range c.servers {
		text, err := os.ReadFile(s.logPath())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, s.name+".log"), text, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// HasLeader reports whether one of the servers leads the others. It is false for Redlock, whose
// servers do not know of each other.
func (c *Cluster) HasLeader() bool { return c.kind.scheme != "redlock" }

// Leader returns the leader; a single server is always the leader. While there is none it waits
// until ctx ends. It does not return a former leader that was paused or isolated and still believes
// that it leads.
func (c *Cluster) Leader(ctx context.Context) (*Server, error) {
	if !c.HasLeader() {
		return nil, fmt.Errorf("the servers of %s have no leader", c.kind.name)
	}
	// It polls because the servers do not notify outsiders of an election.
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

// leader asks every server once, and returns the server that claims to lead in the latest term that
// any of them reports, and that term. That term is certain to be the latest only if a majority
// replies, since a majority elected its leader. Without a majority it returns nil and zero.
func (c *Cluster) leader(ctx context.Context) (leader *Server, term uint64) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	replies := make([]leadership, len(c.servers))
	var answered atomic.Int64
	var asking sync.WaitGroup
	for i, s := range c.servers {
		asking.Go(func() {
			var err error
			replies[i], err = c.kind.software.leadership(ctx, s)
			if err == nil || replies[i].term > 0 { // it knows the term, even if no leader
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

// Term returns the latest term that a majority of the servers knows, which grows with every
// election. It is zero while no majority replies.
func (c *Cluster) Term(ctx context.Context) uint64 {
	_, term := c.leader(ctx)
	return term
}

// Versions returns the versions of the running programs, by name. It omits a program that does not
// reply before ctx ends.
func (c *Cluster) Versions(ctx context.Context) map[string]string {
	return c.kind.software.versions(ctx, c.servers[0])
}

// Close kills the servers and removes their nodes and data.
func (c *Cluster) Close() error {
	var errs []error
	for _, s := range c.servers {
		errs = append(errs, s.close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// software is the server program of a cluster.
type software interface {
	// port returns the port for clients.
	port() int
	// diskSize returns the size of the file system for the data, as mount understands it, or "" if
	// the server keeps nothing on disk.
	diskSize() string
	// configure writes the configuration to the server's directory.
	configure(s *Server) error
	// command returns the command that starts the server.
	command(s *Server) (path string, args []string, err error)
	// leadership asks a server whether it leads. It fails if the server is not ready.
	leadership(ctx context.Context, s *Server) (leadership, error)
	versions(ctx context.Context, s *Server) map[string]string
}

// A leadership is what a server reports about itself.
type leadership struct {
	leads bool
	term  uint64 // grows with every election; zero for Redis
}
