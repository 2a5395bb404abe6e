package node_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
	"github.com/stilelock/stile/internal/testservers"
)

// threePeers returns the URLs of three new members.
func threePeers(t *testing.T, scheme string) map[string]string {
	t.Helper()
	peers := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		peers[name] = scheme + "://" + testservers.FreeAddress(t)
	}
	return peers
}

// member returns the configuration of a member. The caller may change it.
func member(t *testing.T, name string, peers map[string]string) node.Config {
	t.Helper()
	return node.Config{
		Dir: t.TempDir(), Listen: testservers.FreeAddress(t), Logger: slog.New(slog.DiscardHandler),
		Cluster: node.Cluster{Name: name, Peers: peers},
	}
}

// startCluster starts members concurrently, and returns them by name when all of them answer.
func startCluster(t *testing.T, members ...node.Config) map[string]*node.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var (
		starting sync.WaitGroup
		mu       sync.Mutex
	)
	nodes := map[string]*node.Node{}
	for _, cfg := range members {
		starting.Go(func() {
			n, err := node.Start(ctx, cfg.WithCheapPasswords())
			if err != nil {
				t.Errorf("%s: %v", cfg.Cluster.Name, err)
				return
			}
			t.Cleanup(n.Close)
			mu.Lock()
			defer mu.Unlock()
			nodes[cfg.Cluster.Name] = n
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return nodes
}

// insist repeats f until it succeeds: members refuse requests during an election, which a very busy
// machine causes. An earlier attempt may have had its effect in spite of its error.
func insist(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Helper()
	started := time.Now()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), long/4)
		err := f(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Since(started) > long {
			t.Fatalf("%s: still failing after %v: %v", what, time.Since(started), err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// put writes the key "k".
func put(t *testing.T, cli *clientv3.Client) {
	t.Helper()
	insist(t, "put a key", func(ctx context.Context) error { return second(cli.Put(ctx, "k", "v")) })
}

// wantKey checks that the key "k" exists.
func wantKey(t *testing.T, where string, cli *clientv3.Client) {
	t.Helper()
	insist(t, "get a key "+where, func(ctx context.Context) error {
		got, err := cli.Get(ctx, "k")
		if err == nil && got.Count != 1 {
			t.Errorf("%s: %d keys, want 1", where, got.Count)
		}
		return err
	})
}

func TestCluster_tlsAndUsers(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	peers := threePeers(t, "https")
	var members []node.Config
	for name := range peers {
		own := ca.Issue(name, testcert.Spec{Hosts: loopbackHosts})
		cfg := member(t, name, peers)
		cfg.TLS = node.TLS{Cert: own.Cert, Key: own.Key, PeerCA: ca.File}
		cfg.RootPassword = secret // all members try to set it
		members = append(members, cfg)
	}
	var slow []node.Config
	for _, cfg := range members {
		slow = append(slow, cfg.WithLongWaits(electionOfThree))
	}
	nodes := startCluster(t, slow...)
	var endpoints []string
	for _, n := range nodes {
		endpoints = append(endpoints, strings.Replace(n.URL(), "etcds", "https", 1))
	}
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: ca.Client(nil), Username: "root", Password: secret, DialTimeout: long, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	put(t, cli)

	for name, n := range nodes {
		wantQuick(t, "closing "+name, quickOfThree, n.Close)
	}
	startCluster(t, members...)
	wantKey(t, "after a restart", cli)
}

// A member that returned under its old ID without its data would break promises that the data
// recorded.
func TestCluster_rejoinAfterDataLoss(t *testing.T) {
	t.Parallel()
	peers := threePeers(t, "http")
	var members []node.Config
	var endpoints []string
	for _, name := range []string{"a", "b", "c"} {
		cfg := member(t, name, peers)
		members, endpoints = append(members, cfg.WithLongWaits(electionOfThree/4)), append(endpoints, cfg.Listen)
	}
	nodes := startCluster(t, members...)
	cli, err := clientv3.New(clientv3.Config{Endpoints: endpoints[:2], DialTimeout: long, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	put(t, cli)
	nodes["c"].Close()

	lost := members[2]
	lost.Dir = t.TempDir()
	refused(t, lost, lost.Dir, "member c has lost its data", "--data", "etcdctl member")

	insist(t, "remove the member", func(ctx context.Context) error {
		list, err := cli.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Members {
			if m.Name == "c" {
				return second(cli.MemberRemove(ctx, m.ID))
			}
		}
		return nil // removed by an earlier attempt whose reply was lost
	})
	// etcd requires that all others have been healthy for a few seconds.
	insist(t, "add the member", func(ctx context.Context) error {
		err := second(cli.MemberAdd(ctx, []string{peers["c"]}))
		if errors.Is(err, rpctypes.ErrPeerURLExist) {
			return nil
		}
		return err
	})
	n := startCluster(t, lost)["c"]
	wantKey(t, "at the member that has rejoined", client(t, n.URL()))
	n.Close()
	startCluster(t, lost) // it restarts like any other member
}

// The same authority may sign the certificates of clients.
func TestCluster_refusesClientCertificate(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	peers := threePeers(t, "https")
	own := ca.Issue("a", testcert.Spec{Hosts: loopbackHosts})
	ann := ca.Issue("ann", testcert.Spec{CommonName: "ann", Hosts: []string{"ann.example"}})
	cfg := member(t, "a", peers)
	cfg.TLS = node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: ca.File}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := node.Start(ctx, cfg.WithLongWaits(election)) // it never gets a majority
		ended <- err
	}()
	ask := func(own testcert.Pair) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.Client(&own), DisableKeepAlives: true}}
		resp, err := client.Get(peers["a"] + "/members")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	deadline := time.After(time.Minute)
	for err := ask(own); err != nil; err = ask(own) {
		select {
		case err := <-ended:
			t.Fatalf("the queried member ended: %v", err)
		case <-deadline:
			t.Fatalf("a member's own certificate, for a minute: %v", err)
		case <-time.After(10 * time.Millisecond): // it may not serve yet
		}
	}
	if err := ask(ann); err == nil {
		t.Error("a client's certificate: got a reply from the address for members, want it refused")
	} else if _, refused := errors.AsType[*tls.AlertError](err); !refused && !strings.Contains(err.Error(), "tls:") {
		t.Errorf("a client's certificate: got %v, want a TLS error", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestCluster_logsMissingMembersAndStops(t *testing.T) {
	t.Parallel()
	peers := threePeers(t, "http")
	cfg := member(t, "b", peers)
	log, logIn := newLog()
	cfg.Logger = slog.New(slog.NewTextHandler(logIn, nil))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := node.Start(ctx, cfg.WithLongWaits(election))
		ended <- err
	}()
	if line := <-log; !strings.Contains(line, "waiting for the other members: a, c") {
		t.Errorf("got log line %q, want the missing members", line)
	}
	cancel()
	wantQuick(t, "canceling the start", quick, func() {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	startWith(t, node.Config{Dir: t.TempDir(), Listen: cfg.Listen}) // the address is free again
}

func TestCluster_differentPeers(t *testing.T) {
	t.Parallel()
	peers := threePeers(t, "http")
	others := maps.Clone(peers)
	others["c"] = "http://" + testservers.FreeAddress(t)
	ctx, cancel := context.WithTimeout(t.Context(), long)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	logs := map[string]<-chan string{}
	for name, peers := range map[string]map[string]string{"a": peers, "b": others} {
		cfg := member(t, name, peers)
		log, logIn := newLog()
		cfg.Logger, logs[name] = slog.New(slog.NewTextHandler(logIn, nil)), log
		waiting.Go(func() {
			n, err := node.Start(ctx, cfg)
			if err == nil {
				n.Close()
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v, want it to wait for a majority until it is canceled", name, err)
			}
		})
	}
	for name, other := range map[string]string{"a": "b", "b": "a"} {
		for line := ""; !strings.Contains(line, "these members belong to another cluster or have different --peers: "+other); {
			select {
			case line = <-logs[name]: // the other may not have started yet when the first is logged
				t.Logf("%s logs %s", name, line)
			case <-ctx.Done():
				t.Fatalf("%s does not log that %s is not a member", name, other)
			}
		}
	}
}

// logLines is a writer that sends each line to a channel.
type logLines chan string

func newLog() (lines <-chan string, w logLines) {
	w = make(logLines, 100)
	return w, w
}

func (l logLines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func TestCluster_dataDirectoryBelongsToOneMember(t *testing.T) {
	t.Parallel()
	peers := threePeers(t, "http")
	a := member(t, "a", map[string]string{"a": peers["a"]}) // a cluster of one has a leader at once
	n := startWith(t, a)
	if _, err := client(t, n.URL()).Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	n.Close()

	alone := node.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"}
	startWith(t, alone).Close()

	with := func(cfg node.Config, dir string) node.Config {
		cfg.Dir = dir
		return cfg
	}
	refused(t, with(member(t, "b", peers), a.Dir), a.Dir, "belongs to member a of a="+peers["a"], "--name", "--peers", "--data")
	refused(t, with(member(t, "a", peers), a.Dir), a.Dir, "belongs to member a")
	refused(t, with(alone, a.Dir), a.Dir, "belongs to member a")
	refused(t, with(member(t, "a", peers), alone.Dir), alone.Dir, "belongs to a server that is alone")

	if got, err := client(t, startWith(t, a).URL()).Get(t.Context(), "k"); err != nil || got.Count != 1 {
		t.Errorf("the member itself, afterwards: got %v, %v; want one key", got, err)
	}
}

func TestCluster_failedStartDoesNotClaimDirectory(t *testing.T) {
	t.Parallel()
	peers := threePeers(t, "http")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := member(t, "a", peers)
	cfg.Listen = taken.Addr().String()
	refused(t, cfg, "in use")
	startWith(t, node.Config{Dir: cfg.Dir})
}

func TestCluster_invalidConfig(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("own", testcert.Spec{Hosts: loopbackHosts})
	client := ca.Issue("client", testcert.Spec{Hosts: loopbackHosts, Uses: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	elsewhere := ca.Issue("elsewhere", testcert.Spec{Hosts: []string{"db.example"}})
	stranger := testcert.NewAuthority(t)
	files := func(p testcert.Pair, peerCA string) node.TLS {
		return node.TLS{Cert: p.Cert, Key: p.Key, PeerCA: peerCA}
	}
	plain := map[string]string{"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:2"}
	secure := map[string]string{"a": "https://127.0.0.1:1", "b": "https://127.0.0.1:2"}
	but := func(peers map[string]string, name, url string) map[string]string {
		peers = maps.Clone(peers)
		peers[name] = url
		return peers
	}
	for name, c := range map[string]struct {
		cluster node.Cluster
		tls     node.TLS
		want    []string
	}{
		"no members":          {node.Cluster{Name: "a"}, node.TLS{}, []string{"--name", "--peers must name every member"}},
		"only an address":     {node.Cluster{Listen: "127.0.0.1:1"}, node.TLS{}, []string{"--peer-listen", "--peers"}},
		"no name":             {node.Cluster{Peers: plain}, node.TLS{}, []string{"a, b", "--name"}},
		"a name of no member": {node.Cluster{Name: "d", Peers: plain}, node.TLS{}, []string{"--name d", "a, b"}},
		"no scheme": {
			node.Cluster{Name: "a", Peers: but(plain, "b", "127.0.0.1:2")}, node.TLS{}, []string{"b=127.0.0.1:2", "http://HOST:PORT"},
		},
		"no port": {node.Cluster{Name: "a", Peers: but(plain, "b", "http://127.0.0.1")}, node.TLS{}, []string{"HOST:PORT"}},
		"a path":  {node.Cluster{Name: "a", Peers: but(plain, "b", "http://127.0.0.1:2/x")}, node.TLS{}, []string{"HOST:PORT"}},
		"one address twice": {
			node.Cluster{Name: "a", Peers: but(plain, "b", "http://127.0.0.1:1")}, node.TLS{}, []string{"a and b", "127.0.0.1:1"},
		},
		"both schemes": {
			node.Cluster{Name: "a", Peers: but(plain, "b", "https://127.0.0.1:2")}, node.TLS{}, []string{"https", "must all begin"},
		},
		"beyond loopback": {
			node.Cluster{Name: "a", Peers: but(plain, "b", "http://192.0.2.1:2")},
			node.TLS{},
			[]string{"refusing", "192.0.2.1:2", "could become a member", "--insecure"},
		},
		"listening beyond loopback": {
			node.Cluster{Name: "a", Peers: plain, Listen: "192.0.2.1:2"}, node.TLS{}, []string{"refusing", "192.0.2.1:2", "--insecure"},
		},
		"a host name": {
			node.Cluster{Name: "a", Peers: but(secure, "a", "https://db.example:1")},
			files(elsewhere, ca.File),
			[]string{"host name", "--peer-listen", "0.0.0.0:1"},
		},
		"https without certificates": {node.Cluster{Name: "a", Peers: secure}, node.TLS{}, []string{"https", "--tls-cert", "--tls-peer-ca"}},
		"https without an authority": {node.Cluster{Name: "a", Peers: secure}, files(own, ""), []string{"--tls-peer-ca"}},
		"another authority": {
			node.Cluster{Name: "a", Peers: secure}, files(own, stranger.File), []string{"would not accept", own.Cert, stranger.File},
		},
		"a certificate for another host": {
			node.Cluster{Name: "a", Peers: secure}, files(elsewhere, ca.File), []string{"would not accept", "127.0.0.1"},
		},
		"a certificate for servers only": {
			node.Cluster{Name: "a", Peers: secure}, files(client, ca.File), []string{"would not accept", "as a client"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, node.Config{Listen: "127.0.0.1:0", Cluster: c.cluster, TLS: c.tls}, c.want...)
		})
	}
}
