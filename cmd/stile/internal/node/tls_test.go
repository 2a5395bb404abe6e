package node_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"

	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
	"github.com/stilelock/stile/internal/testservers"
)

// startWith starts a server that is closed when the test ends. Its zero fields get the values of
// start. Its waits are long; see WithLongWaits.
func startWith(t *testing.T, cfg node.Config) *node.Node {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	if cfg.Listen == "" && cfg.Socket == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	n, err := node.Start(t.Context(), cfg.WithCheapPasswords().WithLongWaits(election))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// refused checks that a server does not start, and that the error contains all of want in one line.
func refused(t *testing.T, cfg node.Config, want ...string) {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	n, err := node.Start(t.Context(), cfg)
	if err == nil {
		n.Close()
		t.Fatal("started")
	}
	t.Log(err)
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %[2]v, want an error with %[1]q", part, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("got an error of more than one line: %v", err)
	}
}

// secureClient connects with TLS. A certificate in config may select a user.
func secureClient(t *testing.T, n *node.Node, config *tls.Config) *clientv3.Client {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{strings.Replace(n.URL(), "etcds", "https", 1)}, TLS: config, DialTimeout: long, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cli.Close() })
	return cli
}

// loopbackHosts are the hosts of the tests' servers, as named in their certificates.
var loopbackHosts = []string{"127.0.0.1", "localhost", testservers.Host()}

func TestTLS_clientsAndGateway(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	n := startWith(t, node.Config{TLS: node.TLS{Cert: own.Cert, Key: own.Key}})
	if !strings.HasPrefix(n.URL(), "etcds://127.0.0.1:") {
		t.Errorf("URL %s", n.URL())
	}
	if _, err := secureClient(t, n, ca.Client(nil)).Put(t.Context(), "k", "v"); err != nil {
		t.Error(err)
	}
	if status, body := get(t, n, ca.Client(nil), "/health"); status != http.StatusOK {
		t.Errorf("/health: %d %s", status, body)
	}
	if status, body := lockOverJSON(t, n, ca.Client(nil)); status != http.StatusOK {
		t.Errorf("/v3/lock/lock: %d %s", status, body)
	}
}

func TestClose_clientsConnectedOverTLS(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	n := startWith(t, node.Config{TLS: node.TLS{Cert: own.Cert, Key: own.Key}})
	cli := secureClient(t, n, ca.Client(nil))
	if _, err := concurrency.NewSession(cli); err != nil {
		t.Fatal(err)
	}
	<-cli.Watch(t.Context(), "demo", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	lockOverJSON(t, n, ca.Client(nil))
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		web := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.Client(nil)}}
		resp, err := web.Post(strings.Replace(n.URL(), "etcds", "https", 1)+"/v3/lock/lock", "application/json",
			strings.NewReader(`{"name":"ZGVtbw=="}`))
		if err == nil {
			resp.Body.Close()
		}
	}()
	for {
		keys, err := cli.Get(t.Context(), "demo/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		if keys.Count == 2 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	wantQuick(t, "closing", quick, n.Close)
	<-waiting
}

// gRPC's Stop also waits for calls that begin while it runs, and with TLS there may always be
// another one, because clients reconnect at once.
func TestClose_clientsReconnectingOverTLS(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	for range 5 {
		n := startWith(t, node.Config{TLS: node.TLS{Cert: own.Cert, Key: own.Key}})
		cli := secureClient(t, n, ca.Client(nil))
		ctx, cancel := context.WithCancel(t.Context())
		var clients, busy sync.WaitGroup
		for i := range 4 {
			busy.Add(1)
			clients.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					// On a stream of its own, which stays open.
					ownStream := metadata.AppendToOutgoingContext(ctx, "test", fmt.Sprint(i, n))
					select {
					case <-cli.Watch(ownStream, "demo", clientv3.WithCreatedNotify()):
					case <-time.After(100 * time.Millisecond):
					}
					if n == 10 {
						busy.Done()
					}
				}
			})
		}
		busy.Wait()
		wantQuick(t, "closing", long, n.Close) // a defect would block it forever
		cancel()
		clients.Wait()
	}
}

func TestTLS_requiresClientCertificate(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	ann := ca.Issue("ann", testcert.Spec{CommonName: "ann", Uses: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	n := startWith(t, node.Config{TLS: node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: ca.File}})

	if _, err := secureClient(t, n, ca.Client(&ann)).Put(t.Context(), "k", "v"); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	if status, body := lockOverJSON(t, n, ca.Client(&ann)); status != http.StatusOK {
		t.Errorf("with a certificate, /v3/lock/lock: %d %s", status, body)
	}
	if err := handshake(n, ca.Client(nil)); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: got %v, want it refused", err)
	}
	stranger := testcert.NewAuthority(t).Issue("ann", testcert.Spec{CommonName: "ann"})
	if err := handshake(n, ca.Client(&stranger)); err == nil {
		t.Error("with a certificate of another authority: got no error")
	}
}

// A server's certificate is often valid for servers only, and its name may be that of a user.
func TestGateway_doesNotUseServerCertificate(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{
		CommonName: "root", Hosts: loopbackHosts, Uses: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	both := ca.Issue("both", testcert.Spec{CommonName: "root", Hosts: loopbackHosts})
	host := ca.Issue("host", testcert.Spec{})
	n := startWith(t, node.Config{TLS: node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: ca.File}})
	if status, body := lockOverJSON(t, n, ca.Client(&host)); status != http.StatusOK {
		t.Errorf("/v3/lock/lock: %d %s", status, body)
	}

	n = startWith(t, node.Config{TLS: node.TLS{Cert: both.Cert, Key: both.Key, ClientCA: ca.File}, RootPassword: secret})
	root := ca.Issue("root", testcert.Spec{CommonName: "root"}) // not a user over HTTP either
	for _, client := range []testcert.Pair{host, root} {
		for _, accept := range []string{"", "*/*"} { // etcd recognizes its own gateway by this header
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				strings.Replace(n.URL(), "etcds", "https", 1)+"/v3/auth/user/list", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if accept != "" {
				req.Header.Set("Accept", accept)
			}
			web := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.Client(&client), DisableKeepAlives: true}}
			resp, err := web.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if status, body := answer(t, resp); status != http.StatusBadRequest || !strings.Contains(body, "user name is empty") {
				t.Errorf("/v3/auth/user/list without a user: got %d %s, want it refused", status, body)
			}
		}
	}
}

func TestTLS_renewedCertificate(t *testing.T) {
	t.Parallel()
	old, renewed := testcert.NewAuthority(t), testcert.NewAuthority(t)
	own := old.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	n := startWith(t, node.Config{TLS: node.TLS{Cert: own.Cert, Key: own.Key}})
	get(t, n, old.Client(nil), "/health")
	next := renewed.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	for from, to := range map[string]string{next.Cert: own.Cert, next.Key: own.Key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	get(t, n, renewed.Client(nil), "/health")
}

func TestStart_addressAndSocket(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	dir, err := os.MkdirTemp("", "node") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := startWith(t, node.Config{
		Dir: dir, Listen: "127.0.0.1:0", Socket: filepath.Join(dir, "s"), TLS: node.TLS{Cert: own.Cert, Key: own.Key},
	})
	if want := "etcd+unix://" + dir + "/s"; n.SocketURL() != want {
		t.Errorf("got socket URL %s, want %s", n.SocketURL(), want)
	}
	if _, err := client(t, n.SocketURL()).Put(t.Context(), "k", "v"); err != nil {
		t.Fatalf("on the socket: %v", err)
	}
	if got, err := secureClient(t, n, ca.Client(nil)).Get(t.Context(), "k"); err != nil || got.Count != 1 {
		t.Errorf("on TCP: got %v, %v; want the key that was put on the socket", got, err)
	}
	if status, body := lockOverJSON(t, n, ca.Client(nil)); status != http.StatusOK {
		t.Errorf("/v3/lock/lock: %d %s", status, body)
	}
	wantQuick(t, "closing", quick, n.Close)
}

func TestInsecure_listensBeyondLoopback(t *testing.T) {
	t.Parallel()
	// No machine has this address, so the server only tries to listen, and nobody can reach it.
	const nowhere = "192.0.2.1:2379"
	refused(t, node.Config{Listen: nowhere}, "refusing", nowhere, "--insecure")
	refused(t, node.Config{Listen: nowhere, Insecure: true}, "cannot listen on "+nowhere, "--listen")

	var log strings.Builder
	n, err := node.Start(t.Context(), node.Config{
		Dir: t.TempDir(), Listen: nowhere, Insecure: true, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err == nil {
		n.Close()
	}
	if !strings.Contains(log.String(), `level=WARN msg="--insecure`) || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("got log %q, want one warning about --insecure", &log)
	}
}

func TestTLS_notEnoughBeyondLoopback(t *testing.T) {
	t.Parallel()
	const nowhere = "192.0.2.1:2379"
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	alone := node.TLS{Cert: own.Cert, Key: own.Key}
	withCA := node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: ca.File}
	member := node.Cluster{Name: "a", Peers: map[string]string{"a": "http://127.0.0.1:2380"}}
	forBoth := []string{"refusing", nowhere, "--tls-client-ca", "--root-password-file", "--insecure"}
	refused(t, node.Config{Listen: nowhere, TLS: alone}, forBoth...)
	refused(t, node.Config{Listen: nowhere, TLS: alone, Cluster: member}, forBoth...)
	refused(t, node.Config{Listen: nowhere, RootPassword: secret}, append(forBoth, "without TLS", "--tls-cert")...)
	for name, cfg := range map[string]node.Config{
		"clients' certificates": {TLS: withCA},
		"users":                 {TLS: alone, RootPassword: secret},
		"both":                  {TLS: withCA, RootPassword: secret},
		"--insecure":            {TLS: alone, Insecure: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Listen = nowhere
			refused(t, cfg, "cannot listen on "+nowhere) // it tried to listen
		})
	}
}

// Whether users are required is recorded in the data, which only a running server can read.
func TestTLS_usersInDataBeyondLoopback(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	exposed := func(dir string) node.Config {
		return node.Config{
			Dir: dir, Listen: testservers.FreeAddress(t), TLS: node.TLS{Cert: own.Cert, Key: own.Key},
		}.Exposed()
	}

	open := t.TempDir()
	n := startWith(t, node.Config{Dir: open, Listen: "127.0.0.1:0", TLS: node.TLS{Cert: own.Cert, Key: own.Key}})
	if _, err := secureClient(t, n, ca.Client(nil)).Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	n.Close()
	cfg := exposed(open)
	// A client that connects before the server has checked that is refused.
	err := errors.New("not tried")
	cfg = cfg.WithStarted(func() {
		cli, clientErr := clientv3.New(clientv3.Config{
			Endpoints: []string{"https://" + cfg.Listen}, TLS: ca.Client(nil), DialTimeout: long, Logger: zap.NewNop(),
		})
		if clientErr != nil {
			t.Error(clientErr)
			return
		}
		defer cli.Close()
		for end := time.Now().Add(long); err != nil && !strings.Contains(err.Error(), "authentication is being set up") && time.Now().Before(end); {
			_, err = cli.Put(t.Context(), "k", "anonymous") // the server may not listen yet
		}
	})
	refused(t, cfg, "refusing", cfg.Listen, "--root-password-file")
	if err == nil || !strings.Contains(err.Error(), "authentication is being set up") {
		t.Errorf("an anonymous client during the start: got %v, want it refused", err)
	}

	closed := t.TempDir()
	startWith(t, node.Config{Dir: closed, RootPassword: secret}).Close()
	n = startWith(t, exposed(closed))
	if _, err := secureClient(t, n, ca.Client(nil)).Put(t.Context(), "k", "v"); !errors.Is(err, rpctypes.ErrUserEmpty) {
		t.Errorf("without a user: got %v, want %v", err, rpctypes.ErrUserEmpty)
	}
}

func TestInsecure_warnings(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("server", testcert.Spec{Hosts: loopbackHosts})
	alone := node.TLS{Cert: own.Cert, Key: own.Key}
	withCA := node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: ca.File}
	const beyond = "192.0.2.1:2379"
	insecure := func(cfg node.Config) node.Config {
		cfg.Insecure = true
		return cfg
	}
	members := node.Cluster{Name: "a", Peers: map[string]string{"a": "http://192.0.2.1:2380", "b": "http://192.0.2.2:2380"}}
	listening := node.Cluster{Name: "a", Peers: map[string]string{"a": "http://127.0.0.1:2380"}, Listen: "0.0.0.0:2380"}
	for name, c := range map[string]struct {
		cfg  node.Config
		want []string // one for each line
	}{
		"plain":              {insecure(node.Config{Listen: beyond}), []string{"without TLS"}},
		"plain, users":       {insecure(node.Config{Listen: beyond, RootPassword: secret}), []string{"without TLS"}},
		"TLS alone":          {insecure(node.Config{Listen: beyond, TLS: alone}), []string{"need no certificate"}},
		"TLS, users":         {insecure(node.Config{Listen: beyond, TLS: alone, RootPassword: secret}), nil},
		"TLS, certificates":  {insecure(node.Config{Listen: beyond, TLS: withCA}), nil},
		"loopback":           {insecure(node.Config{Listen: "127.0.0.1:2379"}), nil},
		"members":            {insecure(node.Config{Listen: "127.0.0.1:2379", Cluster: members}), []string{"192.0.2.1:2380"}},
		"members, listening": {insecure(node.Config{Socket: "/s", Cluster: listening}), []string{"0.0.0.0:2380"}},
		"everything":         {insecure(node.Config{Listen: beyond, Cluster: members}), []string{"without TLS", "192.0.2.1:2380"}},
		"not insecure":       {node.Config{Listen: beyond}, nil},
	} {
		var log strings.Builder
		c.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.cfg.WarnInsecure()
		if lines := strings.Count(log.String(), "\n"); lines != len(c.want) || lines != strings.Count(log.String(), "level=WARN msg=\"--insecure") {
			t.Errorf("%s: got %d log lines, want another number, or warnings only: %s", name, lines, &log)
		}
		for _, part := range c.want {
			if !strings.Contains(log.String(), part) {
				t.Errorf("%s: no warning with %q: %s", name, part, &log)
			}
		}
	}
}

func TestTLS_invalidFiles(t *testing.T) {
	t.Parallel()
	ca := testcert.NewAuthority(t)
	own := ca.Issue("own", testcert.Spec{Hosts: loopbackHosts})
	other := ca.Issue("other", testcert.Spec{Hosts: loopbackHosts})
	old := ca.Issue("old", testcert.Spec{NotAfter: time.Now().Add(-time.Minute)})
	early := ca.Issue("early", testcert.Spec{NotBefore: time.Now().Add(time.Hour), NotAfter: time.Now().Add(2 * time.Hour)})
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const missing = "/does/not/exist"
	for name, c := range map[string]struct {
		tls  node.TLS
		want []string
	}{
		"a certificate without a key": {node.TLS{Cert: own.Cert}, []string{"--tls-cert", "--tls-key", "given together"}},
		"no such certificate":         {node.TLS{Cert: missing, Key: own.Key}, []string{"--tls-cert", missing, "no such file"}},
		"no such key":                 {node.TLS{Cert: own.Cert, Key: missing}, []string{"--tls-key", missing, "no such file"}},
		"another key":                 {node.TLS{Cert: own.Cert, Key: other.Key}, []string{own.Cert, other.Key, "does not match"}},
		"no certificate in the file":  {node.TLS{Cert: empty, Key: own.Key}, []string{"--tls-cert", empty}},
		"expired":                     {node.TLS{Cert: old.Cert, Key: old.Key}, []string{old.Cert, "expired on", "renew"}},
		"not valid yet":               {node.TLS{Cert: early.Cert, Key: early.Key}, []string{early.Cert, "not valid before", "clock"}},
		"only an authority":           {node.TLS{ClientCA: ca.File}, []string{"--tls-client-ca needs", "--tls-cert"}},
		"no such authority": {
			node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: missing}, []string{"--tls-client-ca", missing, "no such file"},
		},
		"no authority in the file": {
			node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: empty}, []string{"--tls-client-ca", empty, "no certificate"},
		},
		"an expired authority": {
			node.TLS{Cert: own.Cert, Key: own.Key, ClientCA: old.Cert}, []string{"--tls-client-ca", old.Cert, "expired"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, node.Config{Listen: "127.0.0.1:0", TLS: c.tls}, c.want...)
		})
	}
	t.Run("no address that uses it", func(t *testing.T) {
		t.Parallel()
		refused(t, node.Config{Socket: filepath.Join(t.TempDir(), "s"), TLS: node.TLS{Cert: own.Cert, Key: own.Key}},
			"--tls-cert", "--listen")
	})
}

// handshake connects, and returns why the server refused the connection.
func handshake(n *node.Node, config *tls.Config) error {
	conn, err := tls.Dial("tcp", strings.TrimPrefix(n.URL(), "etcds://"), config)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Since TLS 1.3 the server refuses a certificate only now. Nothing is written: data that the
	// server has not read when it closes the connection discards its alert. A server that accepts
	// the certificate waits for a request.
	if err := conn.SetReadDeadline(time.Now().Add(long)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func get(t *testing.T, n *node.Node, config *tls.Config, path string) (status int, body string) {
	t.Helper()
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableKeepAlives: true}}
	for started := time.Now(); ; {
		resp, err := web.Get(strings.Replace(n.URL(), "etcds", "https", 1) + path)
		if err == nil {
			return answer(t, resp)
		}
		// net/http closes an HTTP/2 connection that is silent for two seconds, which happens on a
		// busy machine.
		if !errors.Is(err, io.EOF) || time.Since(started) > long {
			t.Fatal(err)
		}
	}
}

// lockOverJSON acquires the lock "demo" through the gateway.
func lockOverJSON(t *testing.T, n *node.Node, config *tls.Config) (status int, body string) {
	t.Helper()
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	resp, err := web.Post(strings.Replace(n.URL(), "etcds", "https", 1)+"/v3/lock/lock", "application/json",
		strings.NewReader(`{"name":"ZGVtbw=="}`))
	if err != nil {
		t.Fatal(err)
	}
	return answer(t, resp)
}

func answer(t *testing.T, resp *http.Response) (status int, body string) {
	t.Helper()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
