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

	"github.com/stilelock/stile/cmd/stile/internal/filelock"
)

// Config says where a server keeps its data and where it listens: at Listen, at Socket, or at both.
type Config struct {
	// Dir is the data directory. It is made if it is not there. A directory has one server at a time, and belongs to
	// one member of one cluster for good.
	Dir string
	// MoveDir is what errors tell to do to have the data elsewhere; empty for a server that has the flag --data.
	MoveDir string
	// Patience is how long to wait for another server to let go of the data directory.
	Patience time.Duration
	// Listen is the host:port for clients, and for the JSON gateway; empty for none. The host is an IP address or
	// localhost. Port 0 picks a free one.
	Listen string
	// Socket is the absolute path of a unix socket for clients; empty for none. What is in its place is removed. Who
	// may reach it is up to the directory it is in, and to the umask.
	Socket string
	// TLS has the certificates for Listen and for the cluster's members. Without, connections are plain.
	TLS TLS
	// Insecure allows connections beyond the loopback interface from whoever can reach it: plain ones, of clients and
	// members, and of clients with TLS where neither certificates nor users are required.
	Insecure bool
	// Health is the host:port where /health, /livez, /readyz and /metrics are served in plain HTTP; empty for none. Port
	// 0 picks a free one.
	Health string
	// Cluster says which member of which cluster this server is. Without, it is alone.
	Cluster Cluster
	// RootPassword, if there is one, becomes the password of the user root, and authentication is enabled, unless it is
	// already. Until that is done clients are refused.
	RootPassword string
	// Logger gets what a start waits for, if it takes longer than a second, what an operator should know about the
	// configuration, and then failed logins, requests of web pages, and a cluster's leaders.
	Logger *slog.Logger

	// bcryptCost is what it costs to guess passwords; zero means etcd's default.
	bcryptCost uint

	// These are for tests, and may be zero: exposed makes every address count as one beyond loopback; pickPort is used in
	// place of freePort; tune changes what etcd is given, and begun is called with the server before it is ready.
	exposed  bool
	pickPort func(host string) (port string, err error)
	tune     func(*embed.Config)
	begun    func(*etcdserver.EtcdServer)
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
	others   *others // nil if it is alone
	etcd     *embed.Etcd
	activity activity
	closing  sync.Once
	ending   atomic.Bool
	stopped  chan struct{}

	mu   sync.Mutex
	grpc []*grpc.Server // one for each address that clients connect to
}

// startup is how long a server that is alone may take to answer. It takes 100 ms, or a second or two with much data; on a
// machine that is very busy, tenfold.
const startup = 2 * time.Minute

// Start starts a server and returns when it answers. A member of a cluster answers once there is a leader; for that it
// waits, as long as ctx lasts. If Start fails, or ctx ends first, nothing is left running, unless etcd itself gave up on
// its data or its disk: then the process should end.
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
		web:     web{refused: &throttle{logger: cfg.Logger, level: slog.LevelWarn, text: "refused a web page"}},
		logins:  logins{failed: &throttle{logger: cfg.Logger, level: slog.LevelWarn, text: "login failed"}},
		leaders: &throttle{logger: cfg.Logger, level: slog.LevelInfo, text: "leader elected"},
	}
	n.activity.began = time.Now()
	if err := n.start(ctx, ecfg); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// start does what can fail, step by step. What it has begun when it fails is ended by Close.
func (n *Node) start(ctx context.Context, ecfg *embed.Config) (err error) {
	if err := n.cfg.claim(); err != nil {
		return err
	}
	if n.cfg.Cluster.Name != "" {
		if n.others, err = newOthers(n.cfg.Cluster, ecfg); err != nil {
			return err
		}
		if err := n.cfg.rejoin(ctx, n.others, ecfg); err != nil {
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
	calls := append(n.gate.options(), n.logins.option())
	ecfg.GRPCAdditionalServerOptions = append(calls, grpc.StatsHandler(&n.activity))
	withGateway := n.cfg.Listen != ""
	ecfg.EnableGRPCGateway, ecfg.UserHandlers = false, n.web.handlers(withGateway)
	if n.cfg.wantsUsers() {
		n.gate.shut.Store(&settingUp)
	}
	n.cfg.warnInsecure()
	err = n.startEtcd(ecfg)
	for tries := 0; tries < 20 && n.cfg.lost(err); tries++ {
		if err := n.cfg.place(ecfg); err != nil {
			return err
		}
		n.url = clientURL(ecfg)
		err = n.startEtcd(ecfg)
	}
	if err != nil {
		return n.explain(err)
	}
	if n.cfg.begun != nil {
		n.cfg.begun(n.etcd.Server)
	}
	n.logins.etcd.Store(n.etcd.Server)
	if err := n.web.open(n.etcd.Server, n.failure.zap(), withGateway, calls); err != nil {
		return err
	}
	n.health.serve(n.etcd.Server, &n.web, n.failure.zap())
	go n.awaitEnd()
	if n.others != nil {
		go n.logLeaders()
	}
	if err := n.awaitReady(ctx); err != nil {
		return err
	}
	if !n.cfg.wantsUsers() {
		return nil
	}
	return n.requireUsers(ctx)
}

// smallLogs makes etcd set aside 8 MB for each piece of its log, of which there are two from the start, instead of 64 MB:
// locks write little.
var smallLogs = sync.OnceFunc(func() { wal.SegmentSizeBytes = 8 << 20 })

// startEtcd is embed.StartEtcd for a program that wants an error where etcd gives up: on data it cannot read, or a disk
// it cannot write to.
func (n *Node) startEtcd(cfg *embed.Config) error {
	applied, err := checkDatabase(cfg.Dir)
	if err != nil {
		return err
	}
	if n.others == nil && applied == 0 && neverBegan(cfg.Dir) {
		if err := os.RemoveAll(filepath.Join(cfg.Dir, "member")); err != nil {
			return err
		}
	}
	smallLogs()
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				n.failure.report(fmt.Errorf("etcd gave up: %v", p))
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

// checkDatabase opens and closes the database, if there is one: etcd does that in a goroutine of its own, where nobody
// can catch its panic, and waits for ever if a plain etcd has the database open. It returns up to where the log was carried
// out; zero if nothing was.
func checkDatabase(dir string) (applied uint64, err error) {
	path := filepath.Join(dir, "member", "snap", "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, nil
	case errors.Is(err, bbolterrors.ErrTimeout):
		return 0, errors.New("another program has its database open")
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

// neverBegan reports whether a server was killed after it had made its log, and before it had written into it who its
// members are. That is a matter of milliseconds, in which nobody was promised anything. Started on it, etcd 3.7.3 waits
// for a leader for ever.
func neverBegan(dir string) bool {
	log, err := wal.OpenForRead(zap.NewNop(), filepath.Join(dir, "member", "wal"), &walpb.Snapshot{})
	if err != nil {
		return false
	}
	defer log.Close()
	_, state, entries, err := log.ReadAll()
	return err == nil && len(entries) == 0 && state.GetTerm() == 0 && state.GetCommit() == 0
}

// awaitReady waits until the server answers. After a second it begins to tell what it waits for.
func (n *Node) awaitReady(ctx context.Context) error {
	var deadline <-chan time.Time
	if n.others == nil {
		deadline = time.After(startup)
	}
	tell := time.NewTimer(time.Second)
	defer tell.Stop()
	for {
		select {
		case <-n.etcd.Server.ReadyNotify():
			return nil
		case <-n.stopped:
			return n.explain(n.Err())
		case <-ctx.Done():
			return fmt.Errorf("start the server: %w", ctx.Err())
		case <-deadline:
			return fmt.Errorf("start the server: no answer for %v", startup)
		case <-tell.C:
			text, reasons := "still starting", []any{"data", n.Dir()}
			if n.others != nil {
				text, reasons = n.others.waiting(ctx, n.etcd.Server.Cluster().ID().String())
			}
			n.cfg.Logger.Info(text, reasons...)
			tell.Reset(10 * time.Second)
		}
	}
}

// awaitEnd closes stopped when the server has ended, for whatever reason.
func (n *Node) awaitEnd() {
	defer close(n.stopped)
	why := errors.New("etcd has stopped by itself; has this member been removed from the cluster?")
	select {
	case <-n.failure.done:
		return
	case <-n.etcd.Server.StopNotify():
	case err := <-n.etcd.Err():
		why = fmt.Errorf("it cannot listen any more: %w", cmp.Or(err, errors.New("a listener has ended")))
	}
	if !n.ending.Load() {
		n.failure.report(why)
		return
	}
	select {
	case <-n.failure.done:
	case <-n.etcd.Server.StopNotify():
	}
}

// logLeaders logs each election that brings a leader, until the server has stopped.
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

// URL is where clients reach the server, in the form that Stile's --url takes: at Listen or, if there is none, at the
// socket. If it listens on every address it is the host's name, in a cluster as the other members know it.
func (n *Node) URL() string { return n.url }

// SocketURL is where clients reach the server on its socket, in the form that Stile's --url takes; empty if it has none.
func (n *Node) SocketURL() string {
	if n.cfg.Socket == "" {
		return ""
	}
	return socketURL(n.cfg.Socket)
}

// HealthURL is where /health and the others are; empty if they are not served apart.
func (n *Node) HealthURL() string { return n.health.url() }

// Dir is the data directory.
func (n *Node) Dir() string { return n.cfg.Dir }

// Stopped is closed when the server has stopped, whether it was closed or failed.
func (n *Node) Stopped() <-chan struct{} { return n.stopped }

// Err is why the server has failed; nil if it has not, or was closed before.
func (n *Node) Err() error {
	select {
	case <-n.failure.done:
		return n.failure.err
	default:
		return nil
	}
}

// Close stops the server within moments, however many clients are connected, and returns when its data is safe and
// its data directory free for another server. A leader hands over to another member first. Clients see their connections
// end; what they hold stays, in the data directory, for at least its TTL after the next start. Closing again does
// nothing. A server that has failed cannot be stopped in order; it ends with the process.
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
			<-n.stopped // awaitEnd sees it too, a moment later
		}
	case <-n.failure.done: // it may hang now; nothing more is written
	}
	n.lock.Unlock()
}

// handover is how long a leader may take to make another member the leader before it stops, and farewell how long
// closing the connections between members.
const (
	handover = time.Second
	farewell = 200 * time.Millisecond
)

func (n *Node) stopEtcd() {
	if n.etcd == nil {
		return
	}
	// etcd's Close does these things too, but would wait seven seconds for each: for a successor that hangs, and for calls
	// to end, which watches and keepalives never do.
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		_ = n.etcd.Server.TryTransferLeadershipOnShutdown() // without it the others elect one
	}()
	select {
	case <-moved:
	case <-time.After(handover):
	}
	n.mu.Lock()
	serving := n.grpc
	n.mu.Unlock()
	// With TLS gRPC's calls come through an HTTP server, which goes on. Stop waits for those too that begin while it waits,
	// and ends only those that had begun before: for ever, if one of the others is a stream.
	n.gate.shut.Store(&stopping)
	n.web.close()
	for _, s := range serving {
		s.Stop()
	}
	n.etcd.Server.HardStop() // if it is not ready yet, its Close would wait for that
	// The data is safe and free now. So must the addresses be, for the next start. What is left then waits another second for
	// what other members have open.
	n.stopListening()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		n.etcd.Close()
	}()
	var patience <-chan time.Time
	if n.others != nil {
		patience = time.After(farewell)
	}
	select {
	case <-closed:
	case <-patience:
	}
}

// stopListening closes what listens on TCP. What listens on a unix socket removes its file when it is closed, and again when
// etcd closes it: that may be another server's by then.
func (n *Node) stopListening() {
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

// lockDir makes the data directory and locks it. etcd has a lock of its own, but waits for it for ever.
func lockDir(ctx context.Context, cfg Config) (*filelock.Lock, error) {
	cannot := func(err error) error {
		return fmt.Errorf("cannot use the data directory %s: %w; %s", cfg.Dir, err, cfg.moveDir())
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
			"stop that one, or %s", cfg.Dir, cfg.moveDir())
	case err != nil:
		return nil, cannot(err)
	}
	return lock, nil
}

func (c Config) moveDir() string { return cmp.Or(c.MoveDir, "name another directory with --data") }

// explain says what to do about a failed start.
func (n *Node) explain(err error) error {
	if cannot := n.cfg.explainListen(err); cannot != nil {
		return cannot
	}
	switch dir := n.cfg.Dir; {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return fmt.Errorf("cannot write to the data directory %s: %w; it needs some 150 MB: make room, "+
			"or %s", dir, err, n.cfg.moveDir())
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("cannot write to the data directory %s: %w; it and all in it must be writable for this user, "+
			"or %s", dir, err, n.cfg.moveDir())
	case n.cfg.isKnownToOthers(err):
		return n.cfg.lostData()
	default:
		return fmt.Errorf("cannot start on the data directory %s: %w; if the data is damaged, move the directory away: "+
			"locks are taken anew, but fencing tokens begin again", dir, err)
	}
}
