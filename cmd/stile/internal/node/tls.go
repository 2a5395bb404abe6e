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

// TLS names PEM files. The certificate and its key are read anew for each connection, so that renewing them needs no
// restart; the certificates of authorities are read once.
type TLS struct {
	// Cert and Key are what the server shows to clients, and to the other members of its cluster. Without both,
	// connections are plain.
	Cert, Key string
	// ClientCA has the authorities that sign clients' certificates. With it clients have to have one; if users are
	// required, its common name is the user.
	ClientCA string
	// PeerCA has the authorities that sign members' certificates; without it ClientCA does. A member is whoever has such
	// a certificate for the host in a member's URL.
	PeerCA string
}

func (t TLS) peerCA() string {
	if t.PeerCA != "" {
		return t.PeerCA
	}
	return t.ClientCA
}

// check reads all the files. used is whether anything is to listen with TLS if there are certificates.
func (t TLS) check(used bool) error {
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return errors.New("--tls-cert and --tls-key go together: the certificate in one file, its private key in the other")
	case t.Cert == "" && t.ClientCA != "":
		return errors.New("--tls-client-ca needs a certificate for the server itself: --tls-cert and --tls-key")
	case t.Cert == "" && t.PeerCA != "":
		return errors.New("--tls-peer-ca needs a certificate for the server itself: --tls-cert and --tls-key")
	case t.Cert != "" && !used:
		return errors.New("there is nothing to use --tls-cert for: a unix socket has no TLS; give an address with --listen too")
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

// leaf returns the server's own certificate, and checks that it can be used today.
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
	return pair.Leaf, current("--tls-cert", t.Cert, pair.Leaf)
}

// current checks that a certificate is valid now.
func current(flag, file string, cert *x509.Certificate) error {
	const day = "2006-01-02 15:04 MST"
	switch now := time.Now(); {
	case now.After(cert.NotAfter):
		return fmt.Errorf("%s %s: the certificate has expired on %s; renew it", flag, file, cert.NotAfter.Format(day))
	case now.Before(cert.NotBefore):
		return fmt.Errorf("%s %s: the certificate is not valid before %s; is the clock right?",
			flag, file, cert.NotBefore.Format(day))
	default:
		return nil
	}
}

// authorities reads certificates of authorities. At least one of them has to be valid now.
func authorities(flag, file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	bad := fmt.Errorf("%s: there is no certificate in %s; it must be a PEM file", flag, file)
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(bytes.TrimSpace(rest)) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", flag, file, err)
		}
		pool.AddCert(cert)
		if err := current(flag, file, cert); err == nil {
			bad = nil
		} else if bad != nil {
			bad = err
		}
	}
	return pool, bad
}

// accepts checks the server's own certificate as somebody else will, who trusts the authorities in file. Certificates
// of authorities in between are taken from the same file as the server's own, as it shows them.
func (t TLS) accepts(flag, file, host string, use x509.ExtKeyUsage) error {
	roots, err := authorities(flag, file)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(cert)
		}
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		DNSName: host, Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{use},
	})
	return err
}
