package storeurl

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/stilelock/stile/internal/patience"
	"github.com/stilelock/stile/store/etcdstore"
)

// Schemes of the etcd URLs.
const (
	schemeEtcd = "etcd"
	schemeTLS  = "etcds"
	schemeUnix = "etcd+unix"
)

func etcdSchemes() map[string]scheme {
	const port = "2379"
	return map[string]scheme{
		schemeEtcd: {port: port, parameters: (*target).credentials, set: (*target).setEtcd, open: openEtcd, needed: one},
		schemeTLS: {
			port: port, tls: true, set: (*target).setEtcd, open: openEtcd, needed: one,
			parameters: func(t *target) map[string]*string { return joined(t.credentials(), t.certificates()) },
		},
		schemeUnix: {
			set: (*target).setEtcdSocket, open: openEtcd,
			parameters: func(t *target) map[string]*string { return map[string]*string{"prefix": &t.prefix} },
		},
	}
}

func (t *target) setEtcdSocket(authority, path string) error {
	if err := t.setSocket(authority, path); err != nil {
		return err
	}
	return t.setFolder(t.prefix)
}

func (t *target) setEtcd(authority, path string) error {
	if err := t.setAuthority(authority); err != nil {
		return err
	}
	if err := t.checkCredentials(); err != nil {
		return err
	}
	if err := t.checkPair(); err != nil {
		return err
	}
	prefix, err := unescape(strings.TrimPrefix(path, "/"))
	if err != nil {
		return fmt.Errorf("prefix: %w", err)
	}
	return t.setFolder(prefix)
}

// setFolder sets a prefix and adds the slash that separates it from the lock's name.
func (t *target) setFolder(prefix string) error {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return t.setPrefix(prefix)
}

// openTimeout is how long Open may take. The server has four fifths of it to answer; the rest is
// for finding the reason if it does not. Tests increase it for busy machines.
var openTimeout = patience.Factor * 5 * time.Second

// openEtcd opens a store and checks that etcd answers.
func openEtcd(ctx context.Context, t target, logger *slog.Logger) (*Conn, error) {
	password, err := t.readPassword()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := t.tls()
	if err != nil {
		return nil, err
	}
	timeout := openTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	if t.scheme == schemeUnix {
		if err := checkSocket(ctx, t, timeout); err != nil {
			return nil, err
		}
	}
	cli, err := connect(ctx, t, password, tlsConfig, timeout*4/5)
	if err != nil {
		return nil, explain(ctx, t, tlsConfig, err, timeout/5)
	}
	opts := &etcdstore.Options{Prefix: t.prefix, Logger: logger, Pages: pages(tlsConfig)} //nolint:bodyclose // the store closes it
	if socket, ok := strings.CutPrefix(t.endpoints[0], unixPrefix); ok && t.tethered {
		opts.SessionOpened = tether{socket, cmp.Or(logger, slog.New(slog.DiscardHandler))}.declare
	}
	st, err := etcdstore.New(cli, opts)
	if err != nil {
		_ = cli.Close()
		return nil, err
	}
	return &Conn{Store: st, close: sync.OnceValue(cli.Close)}, nil
}

// pages returns a function that gets pages of members: see [etcdstore.Options.Pages]. Each page has a
// connection of its own, so that none stays open.
func pages(tlsConfig *tls.Config) func(ctx context.Context, endpoint, path string) (*http.Response, error) {
	return func(ctx context.Context, endpoint, path string) (*http.Response, error) {
		address := strings.TrimPrefix(strings.TrimPrefix(endpoint, "http://"), "https://")
		host, scheme := address, "http"
		if strings.HasPrefix(address, "unix:") {
			host = "localhost"
		} else if tlsConfig != nil {
			scheme = "https"
		}
		get, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+host+path, nil)
		if err != nil {
			return nil, err
		}
		transport := &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, address) },
			TLSClientConfig:   tlsConfig.Clone(), // nil without TLS
			DisableKeepAlives: true,
		}
		return transport.RoundTrip(get)
	}
}

// readPassword returns the password from wherever it is kept; empty if there is no user.
func (t target) readPassword() (string, error) {
	switch {
	case t.passwordFile != "":
		b, err := os.ReadFile(t.passwordFile)
		if err != nil {
			return "", fmt.Errorf("password_file: %w", err)
		}
		password := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
		if password == "" {
			return "", fmt.Errorf("password_file: empty file %s", t.passwordFile)
		}
		return password, nil
	case t.passwordEnv != "":
		password := os.Getenv(t.passwordEnv)
		if password == "" {
			return "", fmt.Errorf("password_env: environment variable %s is not set or empty", t.passwordEnv)
		}
		return password, nil
	default:
		return t.password, nil
	}
}

// tls returns the TLS configuration; nil for plain connections.
func (t target) tls() (*tls.Config, error) {
	if !schemes()[t.scheme].tls {
		return nil, nil
	}
	return t.tlsConfig()
}

// tlsConfig returns the TLS configuration with the certificates of the URL.
func (t target) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: no PEM certificate in %s", t.ca)
		}
	}
	if t.cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.cert, t.key)
			if err != nil {
				return nil, fmt.Errorf("cert and key: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		// Client certificates are often short-lived, so they are read again for each connection.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return config, nil
}

// checkSocket fails at once if the unix socket does not exist or nobody listens on it. The etcd
// client would retry until its timeout. Only a new server changes that, and the program that starts
// one can call Open again.
func checkSocket(ctx context.Context, t target, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dial(ctx, t.endpoints[0])
	if err != nil {
		return fmt.Errorf("etcd does not answer: %s: %w", t.endpoints[0], err)
	}
	return conn.Close()
}

// connect makes a client and waits, no longer than timeout, until the cluster has answered a
// request.
func connect(
	ctx context.Context, t target, password string, tlsConfig *tls.Config, timeout time.Duration,
) (_ *clientv3.Client, err error) {
	start := time.Now()
	// With a user, New sends a request before it returns, which only the context of the client's
	// whole life can cancel.
	clientCtx, cancelClient := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancelClient)
	defer func() {
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			cancelClient()
		}
	}()
	var options []grpc.DialOption
	if t.isLocal {
		// The local server ends when no client is connected. The default is to disconnect after half an
		// hour without a request.
		options = append(options, grpc.WithIdleTimeout(0))
	}
	cli, err := clientv3.New(clientv3.Config{
		Context:     clientCtx,
		Endpoints:   t.endpoints,
		Username:    t.user,
		Password:    password,
		TLS:         tlsConfig,
		DialTimeout: timeout,
		// Keepalives detect a silent member after 13 s. A connection without a request must not be
		// pinged (PermitWithoutStream): etcd ends it at the fourth ping, and gRPC then prints an error
		// and pings all connections half as often.
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
		DialOptions:          options,
	})
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(clientCtx, max(0, timeout-time.Since(start)))
	defer cancel()
	// No lock has this key, because a name contains no control characters. A refusal is an answer
	// too: the user may have rights for certain names only.
	_, err = cli.Get(asking, t.prefix+"\x00", clientv3.WithCountOnly())
	if err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
		_ = cli.Close()
		return nil, err
	}
	return cli, nil
}

// explain returns the error of a failed connection with what the user can do about it. It takes at
// most timeout to find the reason.
func explain(ctx context.Context, t target, tlsConfig *tls.Config, err error, timeout time.Duration) error {
	at := "etcd at " + strings.Join(t.endpoints, ", ")
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("gave up waiting for %s: %w", at, ctx.Err())
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("%s rejected user %q with this password: %w", at, t.user, err)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%s requires authentication: give a user and password, or a client certificate: %w", at, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reasons := make([]string, len(t.endpoints))
	var asking sync.WaitGroup
	for i, endpoint := range t.endpoints {
		asking.Go(func() { reasons[i] = fmt.Sprintf("%s: %v", endpoint, dialError(ctx, endpoint, tlsConfig)) })
	}
	asking.Wait()
	if errors.Is(err, context.DeadlineExceeded) { // of openTimeout; ctx.Err was checked above
		return fmt.Errorf("etcd does not answer: %s", strings.Join(reasons, "; "))
	}
	return fmt.Errorf("etcd does not answer: %s: %w", strings.Join(reasons, "; "), err)
}

var (
	errSilent = errors.New("connected, but no answer: the cluster may have no leader, or the URL should begin with etcds://")
	// errSilentTLS is the reason if the TLS handshake has succeeded.
	errSilentTLS = errors.New("connected, but no answer: the cluster may have no leader")
)

// dialError connects to an endpoint like the etcd client, which does not report why it cannot connect,
// and returns the reason. The error is never nil.
func dialError(ctx context.Context, endpoint string, tlsConfig *tls.Config) error {
	conn, err := dial(ctx, endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	if tlsConfig == nil {
		return errSilent
	}
	tlsConfig = tlsConfig.Clone()
	if tlsConfig.ServerName, _, err = net.SplitHostPort(endpoint); err != nil {
		return err
	}
	tlsConfig.NextProtos = []string{"h2"}
	secure := tls.Client(conn, tlsConfig)
	if err := secure.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	// Since TLS 1.3 a server refuses the client's certificate only after the handshake.
	deadline, _ := ctx.Deadline()
	_ = secure.SetReadDeadline(deadline)
	_, err = secure.Read(make([]byte, 1))
	if op, ok := errors.AsType[*net.OpError](err); ok && !op.Timeout() {
		return op.Err
	}
	return errSilentTLS
}

// unixPrefix begins the endpoints that are unix sockets.
const unixPrefix = "unix://"

// dial connects to an endpoint. Its error does not name the endpoint.
func dial(ctx context.Context, endpoint string) (net.Conn, error) {
	network, address := "tcp", endpoint
	if path, ok := strings.CutPrefix(endpoint, unixPrefix); ok {
		network, address = "unix", path
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return nil, op.Err
	}
	return conn, err
}
