package storeurl

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

// silent returns the address of a listener that never answers.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// Open fails at once if nothing listens at the hosts. Its error after a timeout is a different one.
func TestOpen_failsAtOnceWhenRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"etcd://127.0.0.1:2",
		"etcd://127.0.0.1:1,127.0.0.1:2",
		"etcd://ann:" + secret + "@127.0.0.1:2",
		"etcds://127.0.0.1:2",
		"zk://127.0.0.1:1,127.0.0.1:2/x",
		"redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
		"redlock://127.0.0.1:1,127.0.0.1:2," + silent(t),
	} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			err := fails(t.Context(), t, url, ": cannot connect", "connect: connection refused")
			if !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want an error that matches ECONNREFUSED and not Canceled", err)
			}
		})
	}
	t.Run("no such host", func(t *testing.T) {
		t.Parallel()
		for _, scheme := range []string{"etcd", "zk"} {
			_ = fails(t.Context(), t, scheme+"://no-such-host.invalid", "no-such-host.invalid:2")
		}
	})
	t.Run("a client that reports it itself", func(t *testing.T) {
		t.Parallel()
		_ = fails(t.Context(), t, "redis://127.0.0.1:1", "connection refused")
	})
}

// Open goes on waiting while at least one host may still answer.
func TestOpen_waitsForHangingHosts(t *testing.T) {
	t.Parallel()
	etcd := testservers.StartEtcd(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		time.Sleep(5 * refusalDelay) // meanwhile the connection hangs
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", etcd.Endpoint())
			if err != nil {
				conn.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, conn); server.Close() }()
			go func() { _, _ = io.Copy(conn, server); conn.Close() }()
		}
	}()
	open(t, "etcd://127.0.0.1:1,"+l.Addr().String())
}

func TestIsRefusal(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	expired, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	_, canceled := dial(ended, "127.0.0.1:1")
	_, timedOut := dial(expired, "127.0.0.1:1")
	_, refused := dial(t.Context(), "127.0.0.1:1")
	_, missing := dial(t.Context(), "unix://"+filepath.Join(t.TempDir(), "s"))
	for _, c := range []struct {
		err  error
		want bool
	}{
		{refused, true},
		{missing, true},
		{os.NewSyscallError("connect", syscall.EHOSTUNREACH), true},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, true},
		{nil, false},
		{canceled, false},
		{timedOut, false},
		{os.NewSyscallError("connect", syscall.ETIMEDOUT), false},
		{&net.DNSError{Err: "server misbehaving", IsTemporary: true}, false},
		{&net.DNSError{Err: "i/o timeout", IsTimeout: true}, false},
	} {
		if got := isRefusal(c.err); got != c.want {
			t.Errorf("isRefusal(%v) = %v", c.err, got)
		}
	}
}

// A proxy may reach hosts that we cannot. The etcd client uses the one in the environment, which is
// read once per process; hence the child process.
func TestHasProxy(t *testing.T) {
	if os.Getenv("STOREURL_TEST_PROXY") != "" {
		if !hasProxy("192.0.2.1:2379") || hasProxy("192.0.2.2:2379") {
			t.Error("hasProxy is not true for 192.0.2.1 and false for 192.0.2.2")
		}
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHasProxy$")
	cmd.Env = append(os.Environ(), "STOREURL_TEST_PROXY=1", "HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=192.0.2.2")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
