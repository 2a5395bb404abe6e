package zkstore_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store/zkstore"
)

// A restrictedServer has every configuration that a test needs and that the shared server must not
// have. All these tests share it, because each server takes seconds of processor time to start.
type restrictedServer struct {
	*testservers.ZooKeeper
	dir         string // of the certificate and its key
	tlsAddress  string // where the server expects TLS
	certificate *x509.Certificate
}

func (s restrictedServer) Close() error { return errors.Join(s.ZooKeeper.Close(), os.RemoveAll(s.dir)) }

// The limits of the restricted server.
const (
	maxConnections   = 40 // from one address
	restrictedMinTTL = 3 * time.Second
)

// ann is a user of the restricted server, which refuses unauthenticated clients. Only she has
// permissions on its root node.
var ann = zkstore.Auth{Scheme: "digest", Credentials: "ann:secret"}

// optionsWith returns options that the restricted server accepts.
func optionsWith(auth zkstore.Auth) *zkstore.Options {
	return &zkstore.Options{Auth: []zkstore.Auth{auth}}
}

func restricted(t *testing.T) restrictedServer {
	t.Helper()
	return sharedRestricted.Get(t)
}

func newRestricted() (s restrictedServer, err error) {
	if s.dir, err = os.MkdirTemp("", "zkstore"); err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(s.dir)
		}
	}()
	if s.certificate, err = makeCertificate(s.dir); err != nil {
		return s, err
	}
	if s.tlsAddress, err = testservers.NewAddress(); err != nil {
		return s, err
	}
	host, port, err := net.SplitHostPort(s.tlsAddress)
	if err != nil {
		return s, err
	}
	s.ZooKeeper, err = testservers.NewZooKeeper(
		"minSessionTimeout=3000",
		"maxClientCnxns=40",
		"enforceQuota=true", "enforce.auth.enabled=true", "enforce.auth.schemes=digest",
		"secureClientPort="+port, "secureClientPortAddress="+host,
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location="+filepath.Join(s.dir, "both.pem"), "ssl.keyStore.type=PEM",
		"ssl.trustStore.location="+filepath.Join(s.dir, "cert.pem"), "ssl.trustStore.type=PEM",
		"ssl.clientAuth=none",
	)
	return s, err
}

// connect connects to the restricted server as ann.
func (s restrictedServer) connect(t *testing.T) *zk.Conn {
	t.Helper()
	conn := connect(t, s.Endpoint())
	if err := conn.AddAuth(ann.Scheme, []byte(ann.Credentials)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// makeCertificate writes a certificate for testservers.Host to cert.pem, and the certificate with
// its key to both.pem.
func makeCertificate(dir string) (*x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.ParseIP(testservers.Host())},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), cert...)
	for name, text := range map[string][]byte{"cert.pem": cert, "both.pem": both} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	return x509.ParseCertificate(der)
}
