package stilecertmagic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redis/rueidis"
	"go.uber.org/zap"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/adapters/stilecertmagic"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/memstore"
	"github.com/stilelock/stile/store/redisstore"
)

var redis = testservers.Shared[*testservers.Redis]{New: func() (*testservers.Redis, error) { return testservers.NewRedis() }}

func TestMain(m *testing.M) {
	code := m.Run()
	redis.Close()
	os.Exit(code)
}

// onStores runs a test on the memory store and on Redis. The locks have a prefix of their own.
func onStores(t *testing.T, test func(t *testing.T, st store.Store, prefix string)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { test(t, memstore.New(), "") })
	t.Run("redis", func(t *testing.T) {
		cli, err := rueidis.NewClient(redisstore.ClientOptions(redis.Get(t).Addr()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cli.Close)
		st, err := redisstore.New(cli, nil)
		if err != nil {
			t.Fatal(err)
		}
		test(t, st, "certmagic/"+rand.Text()+"/")
	})
}

// newClient returns a client. Each loss of a hold is sent to the channel.
func newClient(t *testing.T, st store.Store) (*stile.Client, <-chan struct{}) {
	t.Helper()
	losses := make(chan struct{}, 10)
	c, err := stile.New(st, &stile.Options{TTL: stile.MaxTTL, Hooks: stile.Hooks{HoldEnd: func(_ context.Context, e stile.HoldEndEvent) {
		if e.Reason == stile.EndLost {
			losses <- struct{}{}
		}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c, losses
}

// breakHold breaks the hold of the lock, as an operator does.
func breakHold(t *testing.T, c *stile.Client, name string) {
	t.Helper()
	l, err := c.Line(t.Context(), name)
	if err != nil || len(l.Holders) != 1 {
		t.Fatalf("holders of %q: got %+v, %v, want one", name, l.Holders, err)
	}
	if _, err := c.Break(t.Context(), name, l.Holders[0].Token); err != nil {
		t.Fatal(err)
	}
}

// A bucket is a storage whose locks do nothing.
type bucket struct{ certmagic.Storage }

func newBucket(t *testing.T) bucket {
	return bucket{&certmagic.FileStorage{Path: t.TempDir()}}
}

func (bucket) Lock(context.Context, string) error   { return nil }
func (bucket) Unlock(context.Context, string) error { return nil }

// An issuer signs everything, and counts it.
type issuer struct{ issued atomic.Int32 }

func (i *issuer) IssuerKey() string { return "test" }

func (i *issuer) Issue(_ context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(int64(i.issued.Add(1))), DNSNames: request.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, request.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// newMember returns a member of a cluster that shares the storage.
func newMember(t *testing.T, storage certmagic.Storage, issuer *issuer) *certmagic.Config {
	t.Helper()
	var config *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
		Logger:           zap.NewNop(),
	})
	t.Cleanup(cache.Stop)
	config = certmagic.New(cache, certmagic.Config{Storage: storage, Issuers: []certmagic.Issuer{issuer}, Logger: zap.NewNop()})
	return config
}

// All members of a cluster want the certificate of one name. One gets it; the others find it.
func TestStorage_cluster(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store, prefix string) {
		shared, ca := newBucket(t), &issuer{}
		var wg sync.WaitGroup
		for range 4 {
			c, _ := newClient(t, st)
			member := newMember(t, stilecertmagic.Wrap(shared, stilecertmagic.New(c, prefix)), ca)
			wg.Go(func() {
				if err := member.ObtainCertSync(t.Context(), "*.example.com"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := ca.issued.Load(); n != 1 {
			t.Errorf("the issuer has issued %d certificates, want 1", n)
		}
		c, _ := newClient(t, st)
		if lines, err := c.Lines(t.Context(), prefix); err != nil || len(lines) != 0 {
			t.Errorf("locks after that: got %+v, %v, want none", lines, err)
		}
	})
}

// A renewing storage calls a function before the lease of a lock is renewed.
type renewing struct {
	stilecertmagic.Storage
	before func()
}

func (r renewing) RenewLockLease(ctx context.Context, name string, d time.Duration) error {
	r.before()
	return r.Storage.RenewLockLease(ctx, name, d)
}

// The lock is lost before an attempt to get a certificate. The attempt continues only if the lock can be
// taken again.
// Promise: P1
func TestStorage_loss(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store, prefix string) {
		const name = "issue_cert_example.com"
		for _, free := range []bool{false, true} {
			ca := &issuer{}
			c, losses := newClient(t, st)
			rival, _ := newClient(t, st)
			var held *stile.Hold
			member := newMember(t, renewing{stilecertmagic.Wrap(newBucket(t), stilecertmagic.New(c, prefix)), func() {
				breakHold(t, c, prefix+name)
				<-losses
				if free {
					return
				}
				var err error
				if held, err = rival.Mutex(prefix + name).Lock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}}, ca)
			attempt := 0 // as CertMagic sets it for attempts in the background
			err := member.ObtainCertSync(context.WithValue(t.Context(), certmagic.AttemptsCtxKey, &attempt), "example.com")
			issued := ca.issued.Load()
			switch {
			case free && (err != nil || issued != 1):
				t.Errorf("the lock is lost and free: got %v, %d certificates, want one", err, issued)
			case !free && (err == nil || !strings.Contains(err.Error(), "is held") || issued != 0):
				t.Errorf("the lock is lost and held: got %v, %d certificates, want none", err, issued)
			}
			if held != nil {
				if err := held.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestLocker_TryLock(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store, prefix string) {
		c, _ := newClient(t, st)
		l, ctx := stilecertmagic.New(c, prefix), t.Context()
		if err := l.Lock(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		if ok, err := l.TryLock(ctx, "a"); ok || err != nil {
			t.Errorf("TryLock of a lock that is held: got %t, %v, want false", ok, err)
		}
		if err := l.RenewLockLease(ctx, "a", time.Hour); err != nil {
			t.Errorf("RenewLockLease of a lock that is held: %v", err)
		}
		if err := l.Unlock(ctx, "a"); err != nil {
			t.Error(err)
		}
		if ok, err := l.TryLock(ctx, "a"); !ok || err != nil {
			t.Errorf("TryLock of a free lock: got %t, %v, want true", ok, err)
		}
		if err := l.Unlock(ctx, "a"); err != nil {
			t.Error(err)
		}
		if _, err := l.TryLock(ctx, "a//b"); !errors.Is(err, stile.ErrBadName) {
			t.Errorf("TryLock of a bad name: got %v, want ErrBadName", err)
		}
	})
}

// Names that are not locked are errors, also after an Unlock and after a Lock that failed.
func TestLocker_notLocked(t *testing.T) {
	c, _ := newClient(t, memstore.New())
	l, ctx := stilecertmagic.New(c, "p/"), t.Context()
	check := func(when string) {
		t.Helper()
		const want = `stilecertmagic: lock "p/a": unlock of a lock that is not held`
		if err := l.Unlock(ctx, "a"); err == nil || err.Error() != want {
			t.Errorf("Unlock %s: got %v, want %s", when, err, want)
		}
		if err := l.RenewLockLease(ctx, "a", time.Hour); err == nil {
			t.Errorf("RenewLockLease %s: got no error", when)
		}
	}
	check("of a new Locker")
	if err := l.Lock(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	check("after Unlock")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := l.Lock(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock with an ended context: got %v", err)
	}
	check("after a failed Lock")
}

// The Unlock of a holder that has lost the lock does not release that of another goroutine of the process.
// Promise: P1
func TestLocker_unlockAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, losses := newClient(t, memstore.New())
		l, ctx := stilecertmagic.New(c, ""), t.Context()
		if err := l.Lock(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		breakHold(t, c, "a")
		<-losses
		second := make(chan error)
		go func() { second <- l.Lock(ctx, "a") }()
		synctest.Wait()
		if err := l.Unlock(ctx, "a"); !errors.Is(err, stile.ErrLost) {
			t.Errorf("Unlock of the lost lock: got %v, want the loss", err)
		}
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		if ok, err := l.TryLock(ctx, "a"); ok || err != nil {
			t.Errorf("TryLock beside the second holder: got %t, %v, want false", ok, err)
		}
		if err := l.Unlock(ctx, "a"); err != nil {
			t.Errorf("Unlock of the second holder: %v", err)
		}
	})
}
