package zkstore_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

func TestOverTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certificate := makeCertificate(t, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	secure := l.Addr().String()
	_ = l.Close() // and the server takes it
	_, port, _ := net.SplitHostPort(secure)
	plain := testservers.StartZooKeeper(t,
		"secureClientPort="+port,
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location="+filepath.Join(dir, "both.pem"), "ssl.keyStore.type=PEM",
		"ssl.trustStore.location="+filepath.Join(dir, "cert.pem"), "ssl.trustStore.type=PEM",
		"ssl.clientAuth=none",
	)

	trusted := x509.NewCertPool()
	trusted.AddCert(certificate)
	st := newStore(t, &zkstore.Options{TLS: &tls.Config{RootCAs: trusted}}, secure)
	name := newName(t)
	p := enqueue(t, openSession(t, st), name, line.Exclusive)
	p.await(t, store.Admitted)
	if l, err := newStore(t, nil, plain.Endpoint()).Line(t.Context(), name); err != nil || len(l.Entries) != 1 {
		t.Errorf("without TLS, at the other port, the line is %+v, %v", l, err)
	}
	p.withdraw(t)

	for _, tt := range []struct {
		what    string
		opts    *zkstore.Options
		address string
		want    string
	}{
		{"a server that nobody trusts", &zkstore.Options{TLS: &tls.Config{}}, secure, "unknown authority"},
		{"TLS where there is none", &zkstore.Options{TLS: &tls.Config{RootCAs: trusted}}, plain.Endpoint(), "TLS handshake"},
		{"no TLS where it is needed", nil, secure, plain.Endpoint()[:9]},
	} {
		await(t, fmt.Sprintf("an error for %s that says %q", tt.what, tt.want), func() bool {
			ctx, cancel := until(t, 2*time.Second)
			defer cancel()
			_, err := newStore(t, tt.opts, tt.address).Open(ctx, store.SessionOptions{TTL: 12 * time.Second}) // a sixth for an attempt
			return err != nil && strings.Contains(err.Error(), tt.want)
		})
	}
}

// makeCertificate writes a certificate for 127.0.0.1 to cert.pem, and it and its key to both.pem.
func makeCertificate(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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
