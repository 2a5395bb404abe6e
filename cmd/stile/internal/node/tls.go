package node

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"
)

// TLS names PEM files. The certificate and its key are read again for each connection, so renewing
// them needs no restart. The authorities' certificates are read once.
type TLS struct {
	// Cert and Key are the server's certificate, for clients and for the other members of its
	// cluster. Without both, connections are plain.
	Cert, Key string
	// ClientCA has the authorities that sign clients' certificates. If it is set, clients need a
	// certificate; if users are required, its common name is the user.
	ClientCA string
	// PeerCA has the authorities that sign members' certificates; if it is empty, ClientCA is used.
	// A member is any process with such a certificate for the host of a member's URL.
	PeerCA string
}

func (t TLS) peerCA() string {
	if t.PeerCA != "" {
		return t.PeerCA
	}
	return t.ClientCA
}

// check reads and validates all the files. used reports whether any address would use a
// certificate.
func (t TLS) check(used bool) error {
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return errors.New("--tls-cert and --tls-key must be given together: the certificate in one file, its private key in the other")
	case t.Cert == "" && t.ClientCA != "":
		return errors.New("--tls-client-ca needs a certificate for the server itself: --tls-cert and --tls-key")
	case t.Cert == "" && t.PeerCA != "":
		return errors.New("--tls-peer-ca needs a certificate for the server itself: --tls-cert and --tls-key")
	case t.Cert != "" && !used:
		return errors.New("--tls-cert is not used: a unix socket has no TLS; name an address with --listen too")
	case t.Cert == "":
		return nil
	}
	if _, err := t.leaf(); err != nil {
		return err
	}
	for _, ca := range []struct{ flag, file string }{{"--tls-client-ca", t.ClientCA}, {"--tls-peer-ca", t.PeerCA}} {
		if ca.file == "" {
			continue
		}
		if _, err := authorities(ca.flag, ca.file); err != nil {
			return err
		}
	}
	return nil
}

// Server returns the configuration of a server with these certificates, whose clients need a certificate if
// ClientCA is set; nil if there are no certificates. The files are checked.
func (t TLS) Server() (*tls.Config, error) {
	if err := t.check(true); err != nil || t.Cert == "" {
		return nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
			return &pair, err
		},
	}
	if t.ClientCA != "" {
		pool, err := authorities("--tls-client-ca", t.ClientCA)
		if err != nil {
			return nil, err
		}
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, pool
	}
	return config, nil
}

// leaf returns the server's certificate after checking that it is valid now.
func (t TLS) leaf() (*x509.Certificate, error) {
	for _, f := range []struct{ flag, file string }{{"--tls-cert", t.Cert}, {"--tls-key", t.Key}} {
		if _, err := os.ReadFile(f.file); err != nil {
			return nil, fmt.Errorf("%s: %w", f.flag, err)
		}
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s with --tls-key %s: %w", t.Cert, t.Key, err)
	}
	return pair.Leaf, checkCurrent("--tls-cert", t.Cert, pair.Leaf)
}

// checkCurrent checks that a certificate is valid now.
func checkCurrent(flag, file string, cert *x509.Certificate) error {
	const format = "2006-01-02 15:04 MST"
	switch now := time.Now(); {
	case now.After(cert.NotAfter):
		return fmt.Errorf("%s %s: the certificate expired on %s; renew it", flag, file, cert.NotAfter.Format(format))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("%s %s: the certificate is not valid before %s; check the clock",
			flag, file, cert.NotBefore.Format(format))
	default:
		return nil
	}
}

// authorities reads the certificates of authorities. At least one of them must be valid now.
func authorities(flag, file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	bad := fmt.Errorf("%s: no certificate in %s; it must be a PEM file", flag, file)
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(bytes.TrimSpace(rest)) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", flag, file, err)
		}
		pool.AddCert(cert)
		if err := checkCurrent(flag, file, cert); err == nil {
			bad = nil
		} else if bad != nil {
			bad = err
		}
	}
	return pool, bad
}

// accepts checks the server's certificate as a peer would that trusts the authorities in file. The
// intermediate certificates are those in the server's own file, because the server sends them.
func (t TLS) accepts(flag, file, host string, use x509.ExtKeyUsage) error {
	roots, err := authorities(flag, file)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return err
	}
	intermediates := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(cert)
		}
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		DNSName: host, Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{use},
	})
	return err
}
