// Package node runs an etcd server inside this process: alone, or as a member of a cluster.
package node

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/cmd/stile/internal/tether"
	"github.com/stilelock/stile/internal/filelock"
)

// Config configures a server. It listens at Listen, at Socket, or at both.
type Config struct {
	// Dir is the data directory. It is created if it does not exist. One server at a time can use
	// it, and it belongs to one member of one cluster permanently.
	Dir string
	// MoveDir is the advice in errors on how to use another data directory; empty means the flag
	// --data.
	MoveDir string
	// LockTimeout is how long to wait for another server to release the data directory.
	LockTimeout time.Duration
	// Listen is the host:port for clients and the JSON gateway; empty for none. The host is an IP
	// address or localhost. Port 0 selects a free port.
	Listen string
	// Socket is the absolute path of a unix socket for clients; empty for none. An existing file at
	// the path is removed. Access depends on its directory and the umask. On Linux there is another
	// socket beside it, with the suffix of package tether.
	Socket string
	// TLS names the certificates for Listen and for the cluster's members. The zero value means
	// plain connections.
	TLS TLS
	// Insecure allows unprotected connections beyond the loopback interface: plain ones of clients
	// and members, and those of clients with TLS where neither certificates nor users are required.
	Insecure bool
	// Health is the host:port that serves /health, /livez, /readyz and /metrics in plain HTTP;
	// empty for none. Port 0 selects a free port.
	Health string
	// Cluster describes the cluster and this member. The zero value means that the server is alone.
	Cluster Cluster
	// RootPassword, if not empty, becomes the password of the user root, and authentication is
	// enabled, unless it is enabled already. Clients are refused until that is done.
	RootPassword string
	// Logger receives what a start waits for, once it takes longer than a second; warnings about
	// the configuration; then failed logins, refused requests of web pages, and leader changes.
	Logger *slog.Logger

	// bcryptCost is etcd's cost of hashing a password; zero means etcd's default.
	bcryptCost uint

	// For tests; all may be zero. exposed makes every address count as beyond the loopback
	// interface, pickPort replaces freePort, tune changes etcd's configuration, and started is
	// called with the server before it is ready.
	exposed  bool
	pickPort func(host string) (port string, err error)
	tune     func(*embed.Config)
	started  func(*etcdserver.EtcdServer)
}

// A Node is a running server. It must be closed.
type Node struct {
	cfg      Config
	url      string
	lock     *filelock.Lock
	failure  *failure
	health   *health
	gate     gate
	web      web
	logins   logins
	leaders  *throttle
	peers    *peerClient // nil if the server is alone
	tethers  *tether.Server
	etcd     *embed.Etcd
	activity activity
	closing  sync.Once
	ending   atomic.Bool
	stopped  chan struct{}

	calls []grpc.ServerOption // for every gRPC server

	mu   sync.Mutex
	grpc []*grpc.Server // one for each address that clients connect to, and one for each call of Client
}

// startTimeout limits the start of a server that is alone. It usually takes 100 ms, or a second or
// two with much data, and ten times that on a very busy machine.
const startTimeout = 2 * time.Minute

// Start starts a server and returns when it answers requests. A member of a cluster answers once
// there is a leader; Start waits for that until ctx ends. If Start fails, nothing is left running,
// except when etcd itself failed fatally because of its data or its disk: then the process should
// exit.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	ecfg, err := cfg.etcd()
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(ctx, cfg)
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, url: clientURL(ecfg), lock: lock,
		failure: newFailure(), stopped: make(chan struct{}),
		web:     web{refused: &throttle{logger: cfg.Logger, level: slog.LevelWarn, text: "web page refused"}},
		logins:  logins{failed: &throttle{logger: cfg.Logger, level: slog.LevelWarn, text: "login failed"}},
		leaders: &throttle{logger: cfg.Logger, level: slog.LevelInfo, text: "leader elected"},
	}
	n.activity.started = time.Now()
	n.tethers = tether.New(n.leases(), cfg.Logger)
	if err := n.start(ctx, ecfg); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// start does the steps that can fail. If it fails, Close undoes those that are done.
func (n *Node) start(ctx context.Context, ecfg *embed.Config) (err error) {
	if err := n.cfg.claim(); err != nil {
		return err
	}
	if n.cfg.Cluster.Name != "" {
		if n.peers, err = newPeerClient(n.cfg.Cluster, ecfg); err != nil {
			return err
		}
		if err := n.cfg.rejoin(ctx, n.peers, ecfg); err != nil {
			return err
		}
	}
	if n.health, err = listenHealth(n.cfg.Health); err != nil {
		return err
	}
	ecfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(n.failure.zap())
	ecfg.ServiceRegister = func(s *grpc.Server) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.grpc = append(n.grpc, s)
	}
	n.calls = append(n.gate.options(), n.logins.option())
	ecfg.GRPCAdditionalServerOptions = append(slices.Clone(n.calls), grpc.StatsHandler(&n.activity))
	withGateway := n.cfg.Listen != ""
	ecfg.EnableGRPCGateway, ecfg.UserHandlers = false, n.web.handlers(withGateway)
	if n.cfg.wantsUsers() {
		n.gate.shut.Store(&settingUp)
	}
	n.cfg.warnInsecure()
	err = n.startEtcd(ecfg)
	for tries := 0; tries < 20 && n.cfg.lostPort(err); tries++ {
		if err := n.cfg.setAddresses(ecfg); err != nil {
			return err
		}
		n.url = clientURL(ecfg)
		err = n.startEtcd(ecfg)
	}
	if err != nil {
		return n.explain(err)
	}
	if n.cfg.started != nil {
		n.cfg.started(n.etcd.Server)
	}
	n.logins.etcd.Store(n.etcd.Server)
	if err := n.web.open(n.etcd.Server, n.failure.zap(), withGateway, n.calls); err != nil {
		return err
	}
	n.health.serve(n.etcd.Server, &n.web, n.failure.zap())
	go n.awaitEnd()
	if n.peers != nil {
		go n.logLeaders()
	}
	if err := n.awaitReady(ctx); err != nil {
		return err
	}
	if n.cfg.wantsUsers() {
		if err := n.requireUsers(ctx); err != nil {
			return err
		}
	}
	if n.cfg.Socket != "" {
		n.listenForTethers(n.cfg.Socket)
	}
	return nil
}

// setSegmentSize makes etcd preallocate 8 MB instead of 64 MB for each segment of its log, two of
// them from the start: locks write little.
var setSegmentSize = sync.OnceFunc(func() { wal.SegmentSizeBytes = 8 << 20 })

// startEtcd is embed.StartEtcd, but returns an error where etcd panics or exits: when it cannot
// read its data or write to its disk.
func (n *Node) startEtcd(cfg *embed.Config) error {
	applied, err := checkDatabase(cfg.Dir)
	if err != nil {
		return err
	}
	if n.peers == nil && applied == 0 && isUninitialized(cfg.Dir) {
		if err := os.RemoveAll(filepath.Join(cfg.Dir, "member")); err != nil {
			return err
		}
	}
	setSegmentSize()
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				n.failure.report(fmt.Errorf("etcd panicked: %v", p))
			}
		}()
		etcd, err := embed.StartEtcd(cfg)
		started <- result{etcd, err}
	}()
	select {
	case r := <-started:
		n.etcd = r.etcd // nil with an error
		return r.err
	case <-n.failure.done:
		return n.failure.err
	}
}

// checkDatabase opens and closes the database if there is one. etcd opens it in a goroutine of its
// own, where nobody can recover from its panic, and waits without a limit if another etcd has the
// database open. checkDatabase returns the index of the last log entry applied to the database;
// zero if there is none.
func checkDatabase(dir string) (applied uint64, err error) {
	path := filepath.Join(dir, "member", "snap", "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, nil
	case errors.Is(err, bbolterrors.ErrTimeout):
		return 0, errors.New("its database is in use by another program")
	case err != nil:
		return 0, fmt.Errorf("its database: %w", err)
	}
	err = db.View(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if index := meta.Get(schema.MetaConsistentIndexKeyName); len(index) == 8 {
				applied = binary.BigEndian.Uint64(index)
			}
		}
		return nil
	})
	return applied, errors.Join(err, db.Close())
}

// isUninitialized reports whether a server was killed after it had created its log and before it
// had written its members to it. It had acknowledged nothing in these milliseconds. etcd 3.7.3,
// started on such a log, waits for a leader forever.
func isUninitialized(dir string) bool {
	log, err := wal.OpenForRead(zap.NewNop(), filepath.Join(dir, "member", "wal"), &walpb.Snapshot{})
	if err != nil {
		return false
	}
	defer log.Close()
	_, state, entries, err := log.ReadAll()
	return err == nil && len(entries) == 0 && state.GetTerm() == 0 && state.GetCommit() == 0
}

// awaitReady waits until the server answers. After a second it logs what it is waiting for, and
// then every ten seconds.
func (n *Node) awaitReady(ctx context.Context) error {
	var deadline <-chan time.Time
	if n.peers == nil {
		deadline = time.After(startTimeout)
	}
	report := time.NewTimer(time.Second)
	defer report.Stop()
	for {
		select {
		case <-n.etcd.Server.ReadyNotify():
			return nil
		case <-n.stopped:
			return n.explain(n.Err())
		case <-ctx.Done():
			return fmt.Errorf("start the server: %w", ctx.Err())
		case <-deadline:
			return fmt.Errorf("start the server: no answer within %v", startTimeout)
		case <-report.C:
			text, reasons := "server still starting", []any{"data", n.Dir()}
			if n.peers != nil {
				text, reasons = n.peers.waiting(ctx, n.etcd.Server.Cluster().ID().String())
			}
			n.cfg.Logger.Info(text, reasons...)
			report.Reset(10 * time.Second)
		}
	}
}

// awaitEnd closes stopped when the server has stopped for any reason.
func (n *Node) awaitEnd() {
	defer close(n.stopped)
	cause := errors.New("etcd stopped by itself; this member may have been removed from the cluster")
	select {
	case <-n.failure.done:
		return
	case <-n.etcd.Server.StopNotify():
	case err := <-n.etcd.Err():
		cause = fmt.Errorf("etcd cannot accept connections any more: %w", cmp.Or(err, errors.New("listener closed")))
	}
	if !n.ending.Load() {
		n.failure.report(cause)
		return
	}
	select {
	case <-n.failure.done:
	case <-n.etcd.Server.StopNotify():
	}
}

// logLeaders logs each election of a leader until the server has stopped.
func (n *Node) logLeaders() {
	etcd := n.etcd.Server
	for term := uint64(0); ; {
		elected := etcd.LeaderChangedNotify()
		if leader := etcd.Cluster().Member(etcd.Leader()); leader != nil && etcd.Term() != term {
			term = etcd.Term()
			n.leaders.log("leader", leader.Name, "term", term)
		}
		select {
		case <-elected:
		case <-n.stopped:
			return
		}
	}
}

// URL returns the client URL in the form of Stile's --url: that of Listen or, if that is empty, of
// the socket. If Listen is an unspecified address, the URL has this member's host in Cluster.Peers,
// or the machine's host name.
func (n *Node) URL() string { return n.url }

// SocketURL returns the URL of the socket in the form of Stile's --url; empty if there is no
// socket.
func (n *Node) SocketURL() string {
	if n.cfg.Socket == "" {
		return ""
	}
	return socketURL(n.cfg.Socket)
}

// HealthURL returns the URL of the address Health; empty if there is none.
func (n *Node) HealthURL() string { return n.health.url() }

// Dir returns the data directory.
func (n *Node) Dir() string { return n.cfg.Dir }

// Stopped returns a channel that is closed when the server has stopped, by Close or by a failure.
func (n *Node) Stopped() <-chan struct{} { return n.stopped }

// Err returns the failure that stopped the server; nil if there was none before Close.
func (n *Node) Err() error {
	select {
	case <-n.failure.done:
		return n.failure.err
	default:
		return nil
	}
}

// Close stops the server, without waiting for clients, and returns when its data is on disk and its
// data directory is free for another server. A leader first hands over to another member. Clients'
// connections end; their locks stay in the data directory, for at least the TTL after the next
// start. Closing again does nothing. A server that has failed cannot be shut down cleanly; it ends
// with the process.
func (n *Node) Close() { n.closing.Do(n.close) }

func (n *Node) close() {
	n.ending.Store(true)
	n.health.close()
	for _, t := range []*throttle{n.web.refused, n.logins.failed, n.leaders} {
		t.close()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.stopEtcd()
	}()
	select {
	case <-ended:
		if n.etcd != nil {
			<-n.stopped // closed by awaitEnd
		}
	case <-n.failure.done: // etcd may hang now; it writes nothing more
	}
	n.lock.Unlock()
}

// handoverTimeout limits the transfer of leadership before a leader stops, and closeTimeout the
// closing of connections between members.
const (
	handoverTimeout = time.Second
	closeTimeout    = 200 * time.Millisecond
)

func (n *Node) stopEtcd() {
	n.tethers.Close()
	if n.etcd == nil {
		return
	}
	// etcd's Close does this too, but it waits up to seven seconds for each: for a successor that
	// hangs, and for calls to end, which watches and keepalives never do.
	transferred := make(chan struct{})
	go func() {
		defer close(transferred)
		_ = n.etcd.Server.TryTransferLeadershipOnShutdown() // if it fails, the others elect a leader
	}()
	select {
	case <-transferred:
	case <-time.After(handoverTimeout):
	}
	n.mu.Lock()
	serving := n.grpc
	n.mu.Unlock()
	// With TLS, gRPC's calls come through an HTTP server that goes on accepting them. Stop also
	// waits for calls that begin while it waits, but cancels only those that began before it: a
	// stream among the others would block it forever. The gate refuses such calls.
	n.gate.shut.Store(&stopping)
	n.web.close()
	for _, s := range serving {
		s.Stop()
	}
	n.etcd.Server.HardStop() // Close would wait until the server is ready
	// The data is on disk and released now. The addresses have to be free, too, for the next start.
	// Close waits up to another second for connections of other members.
	n.closeListeners()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		n.etcd.Close()
	}()
	var timeout <-chan time.Time
	if n.peers != nil {
		timeout = time.After(closeTimeout)
	}
	select {
	case <-closed:
	case <-timeout:
	}
}

// closeListeners closes the TCP listeners. It leaves those on unix sockets to etcd: closing one
// removes the socket's file, and etcd closes it again, when the file may be another server's.
func (n *Node) closeListeners() {
	listeners := slices.Clone(n.etcd.Clients)
	for _, p := range n.etcd.Peers {
		listeners = append(listeners, p.Listener)
	}
	for _, l := range listeners {
		if l.Addr().Network() == "tcp" {
			_ = l.Close()
		}
	}
}

// lockDir creates the data directory and locks it. etcd has a lock of its own, but waits for it
// without a limit.
func lockDir(ctx context.Context, cfg Config) (*filelock.Lock, error) {
	wrapErr := func(err error) error {
		return fmt.Errorf("cannot use the data directory %s: %w; %s", cfg.Dir, err, cfg.moveDir())
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, wrapErr(err)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.LockTimeout)
	defer cancel()
	lock, err := filelock.Wait(ctx, filepath.Join(cfg.Dir, "lock"), filelock.Exclusive)
	switch {
	case errors.Is(err, filelock.ErrLocked):
		return nil, fmt.Errorf("the data directory %s is in use by another stile serve; "+
			"stop that one, or %s", cfg.Dir, cfg.moveDir())
	case err != nil:
		return nil, wrapErr(err)
	}
	return lock, nil
}

func (c Config) moveDir() string { return cmp.Or(c.MoveDir, "name another directory with --data") }

// explain adds advice to the error of a failed start.
func (n *Node) explain(err error) error {
	if listenErr := n.cfg.explainListen(err); listenErr != nil {
		return listenErr
	}
	switch dir := n.cfg.Dir; {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return fmt.Errorf("cannot write to the data directory %s: %w; it needs about 150 MB: free some space, "+
			"or %s", dir, err, n.cfg.moveDir())
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("cannot write to the data directory %s: %w; this user must be able to write to it and everything in it, "+
			"or %s", dir, err, n.cfg.moveDir())
	case n.cfg.isKnownToOthers(err):
		return n.cfg.lostData()
	default:
		return fmt.Errorf("cannot start on the data directory %s: %w; if the data is damaged, move the directory away: "+
			"all locks become free, and fencing tokens start again from the beginning", dir, err)
	}
}
