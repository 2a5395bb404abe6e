// Package testcert makes certificates for tests.
package testcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// T is the part of *testing.T that this package needs.
type T interface {
	Helper()
	Fatal(args ...any)
	TempDir() string
}

// Authority signs certificates.
type Authority struct {
	t    T
	dir  string
	File string // its own certificate
	cert *x509.Certificate
	key  crypto.Signer
}

// Spec describes a certificate. The zero value is valid now, for clients and servers, without
// names.
type Spec struct {
	CommonName string
	Hosts      []string // names and IP addresses
	Uses       []x509.ExtKeyUsage
	NotBefore  time.Time
	NotAfter   time.Time
}

// Pair is a certificate and its key, in PEM files.
type Pair struct{ Cert, Key string }

// NewAuthority makes an authority. Its files are removed when the test ends.
func NewAuthority(t T) *Authority {
	t.Helper()
	a := &Authority{t: t, dir: t.TempDir()}
	template := template(t, Spec{CommonName: "authority"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	a.key = newKey(t)
	a.cert = a.sign(template, template, a.key, "ca")
	a.File = filepath.Join(a.dir, "ca.pem")
	return a
}

// Issue issues a certificate with its key, in files that begin with name.
func (a *Authority) Issue(name string, s Spec) Pair {
	a.t.Helper()
	key := newKey(a.t)
	a.sign(template(a.t, s), a.cert, key, name)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return Pair{filepath.Join(a.dir, name+".pem"), a.write(name+"-key.pem", "PRIVATE KEY", der)}
}

// Client returns the configuration of a client that trusts the authority. If own is not nil, the
// client presents that certificate.
func (a *Authority) Client(own *Pair) *tls.Config {
	a.t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(a.cert)
	if own != nil {
		pair, err := tls.LoadX509KeyPair(own.Cert, own.Key)
		if err != nil {
			a.t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func template(t T, s Spec) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	if s.Uses == nil {
		s.Uses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	if s.NotBefore.IsZero() {
		s.NotBefore = time.Now().Add(-time.Hour)
	}
	if s.NotAfter.IsZero() {
		s.NotAfter = time.Now().Add(time.Hour)
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: s.CommonName},
		NotBefore: s.NotBefore, NotAfter: s.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: s.Uses,
	}
	for _, host := range s.Hosts {
		if ip, err := netip.ParseAddr(host); err == nil {
			cert.IPAddresses = append(cert.IPAddresses, ip.AsSlice())
		} else {
			cert.DNSNames = append(cert.DNSNames, host)
		}
	}
	return cert
}

func newKey(t T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign writes a certificate for key and returns it.
func (a *Authority) sign(template, parent *x509.Certificate, key crypto.Signer, name string) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

func (a *Authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	file := filepath.Join(a.dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return file
}
