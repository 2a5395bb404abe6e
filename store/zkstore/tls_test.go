package zkstore_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	z := restricted(t)
	trusted := x509.NewCertPool()
	trusted.AddCert(z.certificate)
	opts := optionsWith(ann)
	opts.TLS = &tls.Config{RootCAs: trusted}
	st := newStore(t, opts, z.tlsAddress)
	name := newName(t)
	p := enqueue(t, openSession(t, st), name, line.Exclusive)
	p.await(t, store.Admitted)
	if l, err := newStore(t, optionsWith(ann), z.Endpoint()).Line(t.Context(), name); err != nil || len(l.Entries) != 1 {
		t.Errorf("line without TLS, at the other port: got %+v, %v, want one entry", l, err)
	}
	p.withdraw(t)

	for _, tt := range []struct {
		what    string
		opts    *zkstore.Options
		address string
		want    string
	}{
		{"untrusted certificate", &zkstore.Options{TLS: &tls.Config{}}, z.tlsAddress, "unknown authority"},
		{"TLS at a port without it", &zkstore.Options{TLS: &tls.Config{RootCAs: trusted}}, z.Endpoint(), "TLS handshake"},
		{"no TLS at a port that requires it", nil, z.tlsAddress, z.tlsAddress + ": " + "the server has closed the connection"},
	} {
		// The error is returned when this is over. On a busy machine the last attempt may not have
		// failed yet.
		patience := time.Second
		await(t, fmt.Sprintf("%s: error with %q", tt.what, tt.want), func() bool {
			patience *= 2
			ctx, cancel := until(t, patience)
			defer cancel()
			_, err := newStore(t, tt.opts, tt.address).Open(ctx, store.SessionOptions{TTL: longTTL})
			if err == nil {
				t.Fatalf("%s: Open succeeded", tt.what)
			}
			return strings.Contains(err.Error(), tt.want)
		})
	}
}
