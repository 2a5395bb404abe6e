package storeurl

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/store/etcdstore"
)

// Schemes of etcd's URLs.
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

// setFolder sets a prefix that sets keys apart as in a folder.
func (t *target) setFolder(prefix string) error {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return t.setPrefix(prefix)
}

// patience is how long opening may take: most of it for the server to answer, the rest to find out why it has not. Tests
// have more of it, for machines that are busy.
var patience = 5 * time.Second

// openEtcd connects to etcd and makes sure that it answers.
func openEtcd(ctx context.Context, t target, logger *slog.Logger) (*Conn, error) {
	password, err := t.readPassword()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := t.tls()
	if err != nil {
		return nil, err
	}
	most := patience
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline))
	}
	if t.scheme == schemeUnix {
		if err := checkSocket(ctx, t, most); err != nil {
			return nil, err
		}
	}
	cli, err := connect(ctx, t, password, tlsConfig, most*4/5)
	if err != nil {
		return nil, explain(ctx, t, tlsConfig, err, most/5)
	}
	st, err := etcdstore.New(cli, &etcdstore.Options{Prefix: t.prefix, Logger: logger})
	if err != nil {
		_ = cli.Close()
		return nil, err
	}
	return &Conn{Store: st, close: sync.OnceValue(cli.Close)}, nil
}

// readPassword returns the password, wherever it is; empty if there is no user.
func (t target) readPassword() (string, error) {
	switch {
	case t.passwordFile != "":
		b, err := os.ReadFile(t.passwordFile)
		if err != nil {
			return "", fmt.Errorf("password_file: %w", err)
		}
		password := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
		if password == "" {
			return "", fmt.Errorf("password_file: %s is empty", t.passwordFile)
		}
		return password, nil
	case t.passwordEnv != "":
		password := os.Getenv(t.passwordEnv)
		if password == "" {
			return "", fmt.Errorf("password_env: the environment variable %s is not set, or empty", t.passwordEnv)
		}
		return password, nil
	default:
		return t.password, nil
	}
}

// tls returns the configuration for TLS, nil if connections are to be plain.
func (t target) tls() (*tls.Config, error) {
	if !schemes()[t.scheme].tls {
		return nil, nil
	}
	return t.tlsConfig()
}

// tlsConfig returns the configuration for TLS that the certificates make.
func (t target) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca: there is no PEM certificate in %s", t.ca)
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
		// Client certificates are often short-lived: each connection takes the one of the day.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return config, nil
}

// checkSocket fails at once where the etcd client would try again until its time is over: at a unix socket that is not
// there, or that nobody listens on. Nobody but a new server changes that, and whoever starts one can ask again.
func checkSocket(ctx context.Context, t target, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	conn, err := dial(ctx, t.endpoints[0])
	if err != nil {
		return fmt.Errorf("etcd does not answer: %s: %w", t.endpoints[0], err)
	}
	return conn.Close()
}

// connect makes a client and waits, no longer than most, until the cluster has answered a request.
func connect(
	ctx context.Context, t target, password string, tlsConfig *tls.Config, most time.Duration,
) (_ *clientv3.Client, err error) {
	start := time.Now()
	// Making a client with a user asks the server at once, and can be stopped only by the context of its whole life.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	atEnd := context.AfterFunc(ctx, end)
	defer func() {
		if !atEnd() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			end()
		}
	}()
	cli, err := clientv3.New(clientv3.Config{
		Context:     life,
		Endpoints:   t.endpoints,
		Username:    t.user,
		Password:    password,
		TLS:         tlsConfig,
		DialTimeout: most,
		// A member that has fallen silent is given up after 13 s, even while nothing is asked of it.
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		PermitWithoutStream:  true,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(life, max(0, most-time.Since(start)))
	defer cancel()
	// No lock has this key: a name contains no control characters. The user may be allowed some names only; to be
	// refused this one is an answer too.
	_, err = cli.Get(asking, t.prefix+"\x00", clientv3.WithCountOnly())
	if err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
		_ = cli.Close()
		return nil, err
	}
	return cli, nil
}

// explain says what it means that connecting failed with err, to somebody who can do something about it. It takes
// at most as long as given to look for the reason.
func explain(ctx context.Context, t target, tlsConfig *tls.Config, err error, most time.Duration) error {
	at := "etcd at " + strings.Join(t.endpoints, ", ")
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("gave up waiting for %s: %w", at, ctx.Err())
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("%s does not accept the user %q with this password: %w", at, t.user, err)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%s requires authentication: give a user and password, or a client certificate: %w", at, err)
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	reasons := make([]string, len(t.endpoints))
	var asking sync.WaitGroup
	for i, endpoint := range t.endpoints {
		asking.Go(func() { reasons[i] = fmt.Sprintf("%s: %v", endpoint, reach(ctx, endpoint, tlsConfig)) })
	}
	asking.Wait()
	if errors.Is(err, context.DeadlineExceeded) { // ours, not the caller's
		return fmt.Errorf("etcd does not answer: %s", strings.Join(reasons, "; "))
	}
	return fmt.Errorf("etcd does not answer: %s: %w", strings.Join(reasons, "; "), err)
}

var (
	errSilent = errors.New("connected, but no answer: the cluster may have no leader, or the URL should begin with etcds://")
	// errSilentTLS is for a server that has completed the handshake.
	errSilentTLS = errors.New("connected, but no answer: the cluster may have no leader")
)

// reach connects to an endpoint as the etcd client would, because that does not tell why it cannot, and returns the
// reason: always an error.
func reach(ctx context.Context, endpoint string, tlsConfig *tls.Config) error {
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
	// Since TLS 1.3 a server says only afterwards that it does not like our certificate.
	deadline, _ := ctx.Deadline()
	_ = secure.SetReadDeadline(deadline)
	_, err = secure.Read(make([]byte, 1))
	if op, ok := errors.AsType[*net.OpError](err); ok && !op.Timeout() {
		return op.Err
	}
	return errSilentTLS
}

// dial connects to an endpoint. Its error does not name the endpoint.
func dial(ctx context.Context, endpoint string) (net.Conn, error) {
	network, address := "tcp", endpoint
	if path, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		network, address = "unix", path
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return nil, op.Err
	}
	return conn, err
}
