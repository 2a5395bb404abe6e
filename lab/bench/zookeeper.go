package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/store/zkstore"
)

// The contenders on ZooKeeper besides Stile.
const (
	rawZK   = "raw create, delete"
	stockZK = "go-zookeeper's Lock"
)

// classPath has the jars of the Debian packages libzookeeper-java and libslf4j-java.
const classPath = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"

func measureZooKeeper(ctx context.Context, c config) (*report, error) {
	r := &report{About: []string{
		versions("github.com/go-zookeeper/zk"),
		fmt.Sprintf("ZooKeeper with default settings except the tick time; TTL %v for all", zkSessionTTL),
	}}
	for _, n := range []int{1, 3} {
		if err := measureEnsemble(ctx, c, n, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// measureEnsemble measures on an ensemble of n servers, and adds the results to the report.
func measureEnsemble(ctx context.Context, c config, n int, r *report) (err error) {
	s, err := newServer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	addrs, err := startEnsemble(s, n)
	if err != nil {
		return err
	}
	ctx, cancel := s.untilExit(ctx)
	defer cancel()
	// Clients connect to the followers, or to the only server.
	var followers []string
	for _, addr := range addrs {
		var mode string
		if err := await(ctx, func(ctx context.Context) (err error) { mode, err = serverMode(ctx, addr); return err }); err != nil {
			return err
		}
		if mode != "leader" {
			followers = append(followers, addr)
		}
	}
	name := "one server"
	if n > 1 {
		name = fmt.Sprintf("%d servers, clients of two followers", n)
	}
	onFollower := func(connect func(ctx context.Context, addr string) (client, error)) func(context.Context, int) (client, error) {
		return func(ctx context.Context, i int) (client, error) { return connect(ctx, followers[i%len(followers)]) }
	}
	base := setting{name: name, handOverDelay: func(int) time.Duration { return 10 * time.Millisecond }}
	if c.selects("mutex") {
		base := base
		base.contenders = []contender{
			{name: rawZK, connect: onFollower(connectRawZK)},
			{name: stockZK, connect: onFollower(connectStockZK)},
			{name: stileName, connect: onFollower(connectStileZK)},
		}
		b, err := measureSetting(ctx, c, base)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		created := compare(b.uncontended[stileName].handOvers.medians(), b.uncontended[rawZK].locksAfterPause.medians())
		r.Settings = append(r.Settings, b.report())
		r.Expected = append(r.Expected,
			expectation{b.name + ": pair, Stile / go-zookeeper's Lock", b.pairRatio(stockZK), 1, true},
			expectation{b.name + ": hand-over, Stile / raw create after the same pause", created, 1.3, true})
	}
	if c.selects("lockall") {
		sizes := setSizes
		if n > 1 {
			sizes = []int{10}
		}
		return measureSets(ctx, c, base, sizes, r, onFollower(connectStileZK), stockZK, onFollower(connectStockZK), 2)
	}
	return nil
}

// startEnsemble starts n servers and returns their client addresses.
func startEnsemble(s *server, n int) (addrs []string, err error) {
	all, err := freeAddresses(3 * n)
	if err != nil {
		return nil, err
	}
	var members []string
	for i := range n {
		members = append(members, fmt.Sprintf("server.%d=%s:%s:%s", i+1, host(all[i]), port(all[n+i]), port(all[2*n+i])))
	}
	if n == 1 {
		members = nil
	}
	for i := range n {
		data := filepath.Join(s.dir, fmt.Sprint(i+1))
		if err := os.Mkdir(data, 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(data, "myid"), fmt.Append(nil, i+1), 0o600); err != nil {
			return nil, err
		}
		lines := append([]string{
			"tickTime=500", "initLimit=80", "syncLimit=80", "dataDir=" + data,
			"clientPort=" + port(all[i]), "clientPortAddress=" + host(all[i]), "maxClientCnxns=0", "maxSessionTimeout=60000",
			"admin.enableServer=false", "4lw.commands.whitelist=srvr",
		}, members...)
		file := filepath.Join(data, "zoo.cfg")
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return nil, err
		}
		if err := s.start("java", "-Xmx256m", "-cp", classPath, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file); err != nil {
			return nil, err
		}
	}
	return all[:n], nil
}

// serverMode returns the mode that a server reports: standalone, leader or follower.
func serverMode(ctx context.Context, addr string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	// A server that is just starting may accept the connection and never answer.
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	_, mode, found := strings.Cut(string(answer), "Mode: ")
	if !found {
		return "", errors.New("the server is not serving yet")
	}
	mode, _, _ = strings.Cut(mode, "\n")
	return mode, nil
}

var openACL = zk.WorldACL(zk.PermAll)

// rawZKClient sends only the requests that every lock needs: it creates a node and deletes it.
type rawZKClient struct {
	conn    *zk.Conn
	created map[string]bool // the directories that exist, by lock name
}

func connectZK(server string, ttl time.Duration) (*zk.Conn, error) {
	conn, events, err := zk.Connect([]string{server}, ttl, zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	for ev := range events {
		if ev.State == zk.StateHasSession {
			break
		}
	}
	return conn, nil
}

func connectRawZK(_ context.Context, server string) (client, error) {
	conn, err := connectZK(server, zkSessionTTL)
	return &rawZKClient{conn, make(map[string]bool)}, err
}

func (c *rawZKClient) Close() { c.conn.Close() }

// Lock is a lower bound for locks and hand-overs. If the node exists, Lock waits until it is
// deleted; the returned function then does nothing, and any client can create the node next.
func (c *rawZKClient) Lock(ctx context.Context, name string) (func(context.Context) error, error) {
	if !c.created[name] {
		c.created[name] = true
		if _, err := c.conn.Create("/"+name, nil, zk.FlagPersistent, openACL); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return nil, err
		}
	}
	node := "/" + name + "/lock"
	_, err := c.conn.Create(node, nil, zk.FlagEphemeral, openACL)
	if err == nil {
		return func(context.Context) error { return c.conn.Delete(node, -1) }, nil
	}
	if !errors.Is(err, zk.ErrNodeExists) {
		return nil, err
	}
	if _, err := c.conn.Sync(node); err != nil { // this client's server may lag behind
		return nil, err
	}
	noRelease := func(context.Context) error { return nil }
	_, _, deleted, err := c.conn.GetW(node)
	if errors.Is(err, zk.ErrNoNode) { // deleted in the meantime
		return noRelease, nil
	}
	if err != nil {
		return nil, err
	}
	select {
	case <-deleted:
		return noRelease, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func connectStockZK(_ context.Context, server string) (client, error) {
	return stockZKClient(server, zkSessionTTL)
}

func stockZKClient(server string, ttl time.Duration) (client, error) {
	conn, err := connectZK(server, ttl)
	if err != nil {
		return nil, err
	}
	lock := func(_ context.Context, name string) (func(context.Context) error, error) {
		l := zk.NewLock(conn, "/"+name, openACL)
		return func(context.Context) error { return l.Unlock() }, l.Lock()
	}
	return funcClient{lock, conn.Close}, nil
}

func connectStileZK(_ context.Context, server string) (client, error) {
	st, err := zkstore.New([]string{server}, nil)
	if err != nil {
		return nil, err
	}
	return newStile(st, zkSessionTTL, func() { _ = st.Close() })
}
