package storeurl

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile/internal/tcpproxy"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
)

// TestMain raises the parallelism, because most tests wait for servers that do not answer. It also
// raises openTimeout, because working servers may be slow on a busy machine.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "16")
	}
	openTimeout = 15 * time.Second
	os.Exit(m.Run())
}

// clientOf returns a client of a server. It is closed when t ends.
func clientOf(t *testing.T, etcd *testservers.Etcd) *clientv3.Client {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

func open(t *testing.T, url string) store.Store {
	t.Helper()
	opened, err := Open(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
		if err := opened.Close(); err != nil {
			t.Errorf("closing again: %v", err)
		}
	})
	return opened.Store
}

// enqueue adds an entry to the line of name.
func enqueue(t *testing.T, st store.Store, name string) {
	t.Helper()
	session, err := st.Open(t.Context(), store.SessionOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close(context.WithoutCancel(t.Context())) })
	_, err = session.Enqueue(t.Context(), store.Request{Name: name, Mode: line.Exclusive, Notify: func(store.Standing) {}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenMemory(t *testing.T) {
	one, other := open(t, "mem:"), open(t, "mem:")
	enqueue(t, one, "a")
	if l, err := other.Line(t.Context(), "a"); err != nil || len(l.Entries) != 0 {
		t.Errorf("another mem: store has %+v, %v; want it empty", l, err)
	}
}

func TestOpenEtcd_prefix(t *testing.T) {
	t.Parallel()
	etcd := testservers.StartEtcd(t)
	cli := clientOf(t, etcd)
	for _, c := range []struct {
		url, key string
	}{
		{"etcd://" + etcd.Endpoint(), "a/"},
		{"etcd://" + etcd.Endpoint() + "/team", "team/a/"},
		{"etcd://" + etcd.Endpoint() + "//team/", "/team/a/"},
		{"etcd+unix://" + etcd.Socket() + "?prefix=sock", "sock/a/"},
	} {
		t.Run(c.url, func(t *testing.T) {
			enqueue(t, open(t, c.url), "a")
			r, err := cli.Get(t.Context(), c.key, clientv3.WithPrefix())
			if err != nil || len(r.Kvs) != 1 {
				t.Errorf("etcd has %v, %v under %q; want one entry", r, err, c.key)
			}
		})
	}
}

func TestOpenEtcd_needsOneHost(t *testing.T) {
	t.Parallel()
	etcd := testservers.StartEtcd(t)
	open(t, "etcd://127.0.0.1:1,"+etcd.Endpoint()+",127.0.0.1:2")
}

// slack is how much later than expected something may happen on a busy machine. It must be less
// than openTimeout (see TestMain): otherwise the tests do not notice that Open ignores a canceled
// context.
const slack = 10 * time.Second

// hurry returns a context that ends long before openTimeout.
func hurry(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// fails opens url and returns the error. It checks that Open fails in time, and that the error
// contains all of want and no password.
func fails(ctx context.Context, t *testing.T, url string, want ...string) error {
	t.Helper()
	start, limit := time.Now(), openTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
	}
	opened, err := Open(ctx, url, nil)
	if err == nil {
		_ = opened.Close()
		t.Fatalf("%s: opened", url)
	}
	if took := time.Since(start); took > limit+slack {
		t.Errorf("failed after %v, want at most %v", took, limit)
	}
	t.Log(err)
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %[2]v, want an error with %[1]q", w, err)
		}
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("the error contains the password: %v", err)
	}
	return err
}

// failsAtOnce opens the etcd behind a unix socket and checks that Open fails without a retry. After
// retries the text is "etcd does not answer" too, but the error wraps that of the last attempt
// instead of the system's.
func failsAtOnce(t *testing.T, socket string, why error, want ...string) {
	t.Helper()
	if err := fails(t.Context(), t, "etcd+unix://"+socket, want...); !errors.Is(err, why) {
		t.Errorf("got %[2]v, want an error that matches %[1]v, as that of the first attempt does", why, err)
	}
}

// The error names each endpoint that cannot be reached, with the reason.
func TestOpenEtcd_namesUnreachableEndpoints(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })

	t.Run("refused and silent", func(t *testing.T) {
		t.Parallel()
		err := fails(t.Context(), t, "etcd://127.0.0.1:1,"+silent.Addr().String()+"/p",
			"127.0.0.1:1: connect: connection refused", silent.Addr().String()+": connected, but no answer")
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, which matches DeadlineExceeded although the caller had no deadline", err)
		}
	})
	t.Run("with a user", func(t *testing.T) {
		t.Parallel()
		_ = fails(t.Context(), t, "etcd://ann:"+secret+"@127.0.0.1:1",
			"etcd://ann:***@127.0.0.1:1", "connection refused")
	})
	t.Run("no such socket", func(t *testing.T) {
		t.Parallel()
		failsAtOnce(t, "/does/not/exist", fs.ErrNotExist, "/does/not/exist", "no such file")
	})
	t.Run("a socket without a listener", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		_ = l.Close()
		failsAtOnce(t, path, syscall.ECONNREFUSED, path, "connection refused")
	})
	t.Run("no such host", func(t *testing.T) {
		t.Parallel()
		_ = fails(t.Context(), t, "etcds://no-such-host.invalid", "no-such-host.invalid:2379")
	})
	t.Run("the caller has little time", func(t *testing.T) {
		t.Parallel()
		_ = fails(hurry(t), t, "etcd://"+silent.Addr().String(), "etcd")
	})
	for _, user := range []string{"", "ann:" + secret + "@"} {
		t.Run("the caller gives up, user "+user[:min(3, len(user))], func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			start := time.Now()
			err := fails(ctx, t, "etcd://"+user+silent.Addr().String())
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want it to match context.Canceled", err)
			}
			if took := time.Since(start); took > slack {
				t.Errorf("Open returned after %v, but the caller canceled after 100 ms", took)
			}
		})
	}
}

func TestOpenEtcd_clientOutlivesTheContext(t *testing.T) {
	t.Parallel()
	etcd := testservers.StartEtcd(t)
	ctx, cancel := context.WithCancel(t.Context())
	cli, err := connect(ctx, target{endpoints: []string{etcd.Endpoint()}}, "", nil, openTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	cancel()
	if err := cli.Ctx().Err(); err != nil {
		t.Errorf("the client's context has ended: %v", err)
	}
}

// expectPages checks that an examination of the store can read what members say over HTTP.
func expectPages(t *testing.T, url string) {
	t.Helper()
	found, err := open(t, url).(store.Examiner).Examine(t.Context(), 15*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	has := func(id string) bool {
		return slices.ContainsFunc(found, func(f store.Finding) bool { return f.ID == id })
	}
	if !has("etcd-fsync") || !has("etcd-clock-rate") || has("etcd-metrics") {
		t.Errorf("%s: got %+v", url, found)
	}
}

func TestOpenEtcd_pages(t *testing.T) {
	t.Parallel()
	etcd := testservers.StartEtcd(t)
	expectPages(t, "etcd://"+etcd.Endpoint())
	expectPages(t, "etcd+unix://"+etcd.Socket())
}

func TestOpenEtcd_authentication(t *testing.T) {
	etcd := testservers.StartEtcd(t)
	admin := clientOf(t, etcd)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(admin.RoleAdd(t.Context(), "root"))
	must(admin.UserAdd(t.Context(), "root", "boss"))
	must(admin.UserGrantRole(t.Context(), "root", "root"))
	must(admin.RoleAdd(t.Context(), "team"))
	for _, prefix := range []string{"team/", ".stile/"} {
		must(admin.RoleGrantPermission(t.Context(), "team", prefix, clientv3.GetPrefixRangeEnd(prefix),
			clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	must(admin.UserAdd(t.Context(), "ann", secret))
	must(admin.UserGrantRole(t.Context(), "ann", "team"))
	must(admin.AuthEnable(t.Context()))

	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("STOREURL_TEST_PASSWORD", secret)

	t.Run("with the password in the URL", func(t *testing.T) {
		enqueue(t, open(t, "etcd://ann:"+secret+"@"+etcd.Endpoint()+"/team"), "url")
	})
	t.Run("with the password in a file", func(t *testing.T) {
		enqueue(t, open(t, "etcd://ann@"+etcd.Endpoint()+"/team?password_file="+file), "file")
	})
	t.Run("with the password in the environment", func(t *testing.T) {
		enqueue(t, open(t, "etcd://ann@"+etcd.Endpoint()+"/team?password_env=STOREURL_TEST_PASSWORD"), "env")
	})
	t.Run("with rights on some names only", func(t *testing.T) {
		enqueue(t, open(t, "etcd://ann:"+secret+"@"+etcd.Endpoint()), "team/x")
	})
	t.Run("with a wrong password", func(t *testing.T) {
		_ = fails(t.Context(), t, "etcd://ann:"+secret+"x@"+etcd.Endpoint()+"/team",
			etcd.Endpoint()+` rejected user "ann" with this password`)
	})
	t.Run("with a wrong user", func(t *testing.T) {
		_ = fails(t.Context(), t, "etcd://bob:"+secret+"@"+etcd.Endpoint(), `rejected user "bob"`)
	})
	t.Run("without a user", func(t *testing.T) {
		_ = fails(t.Context(), t, "etcd://"+etcd.Endpoint(), "give a user and password")
	})
}

// An authority issues certificates and writes them to a directory.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.issue("ca", template)
	return a
}

// issue writes NAME.pem and NAME-key.pem; the first certificate is self-signed.
func (a *authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, parentKey := a.cert, a.key
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+"-key.pem", "PRIVATE KEY", pkcs8)
	return cert, key
}

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(a.file(name), content, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// byAnotherName returns an address of a server that its certificate does not name.
func byAnotherName(t *testing.T, endpoint string) string {
	t.Helper()
	p, err := tcpproxy.New(endpoint, func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	_, port, err := net.SplitHostPort(p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return "localhost:" + port
}

func TestOpenEtcd_tls(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.issue("server", &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.ParseIP(testservers.Host())},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	client := x509.Certificate{
		Subject:     pkix.Name{CommonName: "ann"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	ca.issue("client", &client)
	stranger := newAuthority(t)
	stranger.issue("client", &client)

	serverFlags := []string{"--cert-file=" + ca.file("server.pem"), "--key-file=" + ca.file("server-key.pem")}
	anyone := testservers.StartEtcd(t, serverFlags...)
	known := testservers.StartEtcd(t, append(serverFlags, "--client-cert-auth", "--trusted-ca-file="+ca.file("ca.pem"))...)
	clientOf := func(a *authority) string {
		return "&cert=" + a.file("client.pem") + "&key=" + a.file("client-key.pem")
	}

	t.Run("trusting the authority", func(t *testing.T) {
		t.Parallel()
		enqueue(t, open(t, "etcds://"+anyone.Endpoint()+"?ca="+ca.file("ca.pem")), "a")
	})
	t.Run("with a client certificate", func(t *testing.T) {
		t.Parallel()
		enqueue(t, open(t, "etcds://"+known.Endpoint()+"?ca="+ca.file("ca.pem")+clientOf(ca)), "a")
	})
	t.Run("pages of the member", func(t *testing.T) {
		t.Parallel()
		expectPages(t, "etcds://"+anyone.Endpoint()+"?ca="+ca.file("ca.pem"))
		expectPages(t, "etcds://"+known.Endpoint()+"?ca="+ca.file("ca.pem")+clientOf(ca))
	})
	for _, c := range []struct{ name, url, want string }{
		{"not trusting the authority", "etcds://" + anyone.Endpoint(), "certificate signed by unknown authority"},
		{
			"trusting another authority", "etcds://" + anyone.Endpoint() + "?ca=" + stranger.file("ca.pem"),
			"certificate signed by unknown authority",
		},
		{"without a client certificate", "etcds://" + known.Endpoint() + "?ca=" + ca.file("ca.pem"), "certificate required"},
		{
			"with a stranger's certificate",
			"etcds://" + known.Endpoint() + "?ca=" + ca.file("ca.pem") + clientOf(stranger), "unknown certificate authority",
		},
		{"without TLS", "etcd://" + anyone.Endpoint(), "the URL should begin with etcds://"},
		{"by another name", "etcds://" + byAnotherName(t, anyone.Endpoint()) + "?ca=" + ca.file("ca.pem"), "wanted to match localhost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_ = fails(t.Context(), t, c.url, c.want)
		})
	}

	t.Run("to a server without TLS", func(t *testing.T) {
		t.Parallel()
		_ = fails(t.Context(), t, "etcds://"+testservers.StartEtcd(t).Endpoint(), "TLS handshake")
	})
}
