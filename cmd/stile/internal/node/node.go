// Package node runs an etcd server inside this process: one node, for clients of this machine.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
)

// Config says where a server keeps its data and where it listens: at Listen or at Socket, one of them.
type Config struct {
	// Dir is the data directory. It is made if it is not there. A directory has one server at a time.
	Dir string
	// Patience is how long to wait for another server to let go of the data directory.
	Patience time.Duration
	// Listen is a host:port on the loopback interface. The JSON gateway is served there too. Port 0 picks a free one.
	Listen string
	// Socket is the absolute path of a unix socket. What is in its place is removed. Who may reach it is up to the
	// directory it is in.
	Socket string
	// Logger hears of what etcd dies of; of everything less it hears nothing.
	Logger *slog.Logger
}

// A Node is a running server. It must be closed.
type Node struct {
	url      string
	dir      string
	lock     *filelock.Lock
	log      *errorLog
	etcd     *embed.Etcd
	grpc     atomic.Pointer[grpc.Server]
	activity activity
	closing  sync.Once
}

// startup is how long a server may take to answer. It takes 100 ms, or a second or two with much data.
const startup = 30 * time.Second

// Start starts a server and returns when it answers. If it fails, or ctx ends first, nothing is left running.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	ecfg, err := etcdConfig(cfg)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(ctx, cfg)
	if err != nil {
		return nil, err
	}
	n := &Node{url: clientURL(ecfg), dir: cfg.Dir, lock: lock, log: newErrorLog(cfg.Logger)}
	n.activity.began = time.Now()
	ecfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(n.log.zap())
	ecfg.ServiceRegister = func(s *grpc.Server) { n.grpc.Store(s) }
	ecfg.GRPCAdditionalServerOptions = append(ecfg.GRPCAdditionalServerOptions, grpc.StatsHandler(&n.activity))

	if n.etcd, err = start(ecfg); err != nil {
		lock.Unlock()
		return nil, explain(cfg, err)
	}
	select {
	case <-n.etcd.Server.ReadyNotify():
		return n, nil
	case <-n.etcd.Server.StopNotify():
		err = errors.New("etcd stopped")
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(startup):
		err = fmt.Errorf("no answer for %v", startup)
	}
	n.Close()
	return nil, fmt.Errorf("start the server: %w", err)
}

// start is embed.StartEtcd for a program that wants an error where etcd panics: on data it cannot read.
func start(cfg *embed.Config) (e *embed.Etcd, err error) {
	if err := checkDatabase(cfg.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("etcd gave up: %v", p)
		}
	}()
	return embed.StartEtcd(cfg)
}

// checkDatabase opens and closes the database, if there is one: etcd does that in a goroutine of its own, where nobody
// can catch its panic, and waits for ever if a plain etcd has the database open.
func checkDatabase(dir string) error {
	path := filepath.Join(dir, "member", "snap", "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, bbolterrors.ErrTimeout):
		return errors.New("another program has its database open")
	case err != nil:
		return fmt.Errorf("its database: %w", err)
	}
	return db.Close()
}

// URL is where clients reach the server, in the form that Stile's --url takes.
func (n *Node) URL() string { return n.url }

// Dir is the data directory.
func (n *Node) Dir() string { return n.dir }

// Stopped is closed when the server has stopped, whether it was closed or failed.
func (n *Node) Stopped() <-chan struct{} { return n.etcd.Server.StopNotify() }

// Close stops the server within moments, however many clients are connected, and returns when its data is safe and
// its data directory free for another server. Clients see their connections end; what they hold stays, in the data
// directory, for at least its TTL after the next start. Closing again does nothing.
func (n *Node) Close() { n.closing.Do(n.close) }

func (n *Node) close() {
	n.log.mute() // from here on etcd complains about the very listeners we close
	// etcd's own Close first waits seven seconds for calls to end. Watches and keepalives never do: end them all now.
	if s := n.grpc.Load(); s != nil {
		s.Stop()
	}
	n.etcd.Close()
	n.lock.Unlock()
}

// etcdConfig is for a server whose whole cluster is itself. Nothing listens for peers.
func etcdConfig(cfg Config) (*embed.Config, error) {
	ecfg := embed.NewConfig()
	ecfg.Name = "stile"
	ecfg.Dir = filepath.Join(cfg.Dir, "etcd")
	ecfg.ListenPeerUrls = nil
	ecfg.InitialCluster = ecfg.InitialClusterFromName(ecfg.Name) // with a peer URL that is never used

	// Short ticks make for a start of 100 ms instead of a second, and a shortest TTL of one second.
	ecfg.TickMs, ecfg.ElectionMs = 10, 100

	// Locks leave nothing but history. What watches and tokens need of it is the last moments.
	ecfg.AutoCompactionMode, ecfg.AutoCompactionRetention = embed.CompactorModeRevision, "1000"

	var listen url.URL
	if cfg.Socket != "" {
		listen = url.URL{Scheme: "unix", Path: cfg.Socket}
		ecfg.EnableGRPCGateway = false
	} else {
		host, address, err := loopback(cfg.Listen)
		if err != nil {
			return nil, err
		}
		listen = url.URL{Scheme: "http", Host: address}
		// Web pages must not get at the gateway through a browser on this machine.
		ecfg.HostWhitelist = map[string]struct{}{"localhost": {}, "127.0.0.1": {}, "::1": {}, host: {}}
		ecfg.CORS = map[string]struct{}{listen.String(): {}}
	}
	ecfg.ListenClientUrls, ecfg.AdvertiseClientUrls = []url.URL{listen}, []url.URL{listen}
	return ecfg, nil
}

func clientURL(cfg *embed.Config) string {
	u := cfg.ListenClientUrls[0]
	if u.Scheme == "unix" {
		return "etcd+unix://" + u.EscapedPath()
	}
	return "etcd://" + u.Host
}

// loopback checks that address is a host:port on the loopback interface. It returns the host, and the address with a
// free port in place of port 0: etcd tells its clients the address it was given, so it has to be the real one.
func loopback(address string) (host, resolved string, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", "", fmt.Errorf("bad address %q to listen on: it must be host:port, like 127.0.0.1:2379", address)
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return "", "", fmt.Errorf("refusing to listen on %q: it is not a loopback address, and without TLS and passwords, "+
			"which this server does not have yet, everybody who can reach it could take and break locks; "+
			"use 127.0.0.1, [::1] or localhost", address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("bad address %q to listen on: the port must be a number up to 65535", address)
	} else if n == 0 {
		if port, err = freePort(host); err != nil {
			return "", "", fmt.Errorf("no free port on %s: %w", host, err)
		}
	}
	return host, net.JoinHostPort(host, port), nil
}

func freePort(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// lockDir makes the data directory and locks it. etcd has a lock of its own, but waits for it for ever.
func lockDir(ctx context.Context, cfg Config) (*filelock.Lock, error) {
	cannot := func(err error) error {
		return fmt.Errorf("cannot use the data directory %s: %w; name one that can be written to with --data", cfg.Dir, err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, cannot(err)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Patience)
	defer cancel()
	lock, err := filelock.Wait(ctx, filepath.Join(cfg.Dir, "lock"), filelock.Exclusive)
	switch {
	case errors.Is(err, filelock.ErrLocked):
		return nil, fmt.Errorf("the data directory %s is in use by another stile serve; "+
			"stop that one, or name another directory with --data", cfg.Dir)
	case err != nil:
		return nil, cannot(err)
	}
	return lock, nil
}

// explain says what to do about a failed start.
func explain(cfg Config, err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "listen" {
		if cfg.Socket != "" {
			return fmt.Errorf("cannot listen on the unix socket %s: %w", cfg.Socket, op.Err)
		}
		return fmt.Errorf("cannot listen on %s: %w; stop what uses it, or choose another address with --listen",
			cfg.Listen, op.Err)
	}
	return fmt.Errorf("cannot start on the data directory %s: %w; if the data is damaged, move the directory away: "+
		"locks are taken anew, but fencing tokens begin again", cfg.Dir, err)
}
