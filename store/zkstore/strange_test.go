package zkstore_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
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

// A strangeServer is configured in all the ways that tests need and that the server for the others must not be. It is one
// for all of them, because each server takes seconds of the processor to start.
type strangeServer struct {
	*testservers.ZooKeeper
	secure      string // the address where it speaks TLS
	certificate *x509.Certificate
}

// What is strange about it.
const (
	strangeConnections = 40 // it accepts no more from one address
	strangeTTL         = 3 * time.Second
)

// ann is somebody: this server answers nobody who is nobody. Only she may do anything at its top.
var ann = zkstore.Auth{Scheme: "digest", Credentials: "ann:secret"}

// known are the options of a store that the strange server answers.
func known(auth zkstore.Auth) *zkstore.Options { return &zkstore.Options{Auth: []zkstore.Auth{auth}} }

func strange(t *testing.T) strangeServer {
	t.Helper()
	needZooKeeper(t)
	shared.onceStrange.Do(func() {
		dir, err := os.MkdirTemp("", "zkstore")
		if err != nil {
			shared.Fatal(err)
		}
		shared.Cleanup(func() { _ = os.RemoveAll(dir) })
		s := &shared.strange
		s.certificate = makeCertificate(&shared, dir)
		s.secure = testservers.FreeAddress(&shared)
		host, port, err := net.SplitHostPort(s.secure)
		if err != nil {
			shared.Fatal(err)
		}
		s.ZooKeeper = testservers.StartZooKeeper(&shared, largestTTL,
			"minSessionTimeout=3000",
			"maxClientCnxns=40",
			"enforceQuota=true", "enforce.auth.enabled=true", "enforce.auth.schemes=digest",
			"secureClientPort="+port, "secureClientPortAddress="+host,
			"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
			"ssl.keyStore.location="+filepath.Join(dir, "both.pem"), "ssl.keyStore.type=PEM",
			"ssl.trustStore.location="+filepath.Join(dir, "cert.pem"), "ssl.trustStore.type=PEM",
			"ssl.clientAuth=none",
		)
	})
	if shared.strange.ZooKeeper == nil {
		t.Fatal("the server did not start")
	}
	return shared.strange
}

// connectTo connects to the strange server as ann.
func (s strangeServer) connect(t *testing.T) *zk.Conn {
	t.Helper()
	conn := connect(t, s.Endpoint())
	if err := conn.AddAuth(ann.Scheme, []byte(ann.Credentials)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// makeCertificate writes a certificate for the host of this process's servers to cert.pem, and it and its key to both.pem.
func makeCertificate(t testing.TB, dir string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.ParseIP(testservers.Host())},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), cert...)
	for name, text := range map[string][]byte{"cert.pem": cert, "both.pem": both} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}
