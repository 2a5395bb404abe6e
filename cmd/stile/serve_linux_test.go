package main_test

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
)

func TestServe_stopsAtOnce(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		var took time.Duration
		for range 10 {
			// A server that waits for its clients to disconnect takes seven seconds in each run. A
			// busy machine may need as long, but not in each run.
			if took = timeToStop(t, sig); took < 4*time.Second {
				break
			}
		}
		if took >= 4*time.Second {
			t.Errorf("%v: with a client connected, stopping took about %v in each of ten runs, want less than 4s", sig, took)
		}
	}
}

// timeToStop returns how long a server with a client takes to end after a signal.
func timeToStop(t *testing.T, sig syscall.Signal) time.Duration {
	t.Helper()
	s := serve(t)
	cli := s.client(t)
	session, err := concurrency.NewSession(cli, concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewMutex(session, "demo").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-cli.Watch(t.Context(), "demo", clientv3.WithPrefix(), clientv3.WithCreatedNotify())

	sent := time.Now()
	if err := s.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	logged := <-s.logged
	_ = s.Wait() // the result is in ProcessState
	took := time.Since(sent)
	if code := s.ProcessState.ExitCode(); code != 0 {
		t.Errorf("%v: got exit code %d, want 0", sig, code)
	}
	if lines := strings.Count(string(logged), "\n"); lines != 1 || !strings.Contains(string(logged), "msg=stopping") {
		t.Errorf("%v: got log %s after the ready line, want one line with msg=stopping", sig, logged)
	}
	return took
}

// hungSocket returns the path of a socket that accepts no connections and has a full backlog.
func hungSocket(t *testing.T, path string) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	queued, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { queued.Close() })
	return path
}

func TestServe_refusesToStart(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	other := serve(t)

	m.command("serve", "--listen", "0.0.0.0:2379").spawn().expectExit(125, "loopback", "TLS", "127.0.0.1", "--root-password-file")
	own := testcert.NewAuthority(t).Issue("server", testcert.Spec{Hosts: []string{"127.0.0.1"}})
	m.command("serve", "--listen", "0.0.0.0:2379", "--tls-cert", own.Cert, "--tls-key", own.Key).spawn().
		expectExit(125, "loopback", "--tls-client-ca", "--root-password-file", "--insecure")
	m.command("serve", "--listen", taken.Addr().String()).spawn().expectExit(125, taken.Addr().String(), "in use", "--listen")
	m.command("serve", "--listen", "127.0.0.1:0", "--data", m.write("file", "", 0o600)).spawn().
		expectExit(125, m.path("file"), "--data")
	m.command("serve", "--socket", hungSocket(t, m.path("sock"))).spawn().expectExit(125, m.path("sock"), "another server listens")
	m.command("serve", "surplus").spawn().expectExit(125, "surplus")
	m.command("serve", "--listen", "127.0.0.1:0", "--data", other.data).spawn().
		expectExit(125, other.data, "in use by another stile serve", "--data")
}
