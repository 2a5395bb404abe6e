package storeurl

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// tetherServer receives declarations as a server of Stile's does.
type tetherServer struct {
	t *testing.T
	*net.UnixListener
}

// listenForTethers listens beside a socket.
func listenForTethers(t *testing.T, socket string) *tetherServer {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket + ".tether", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &tetherServer{t, l}
}

// receive receives a declaration of this process, of a lease in hexadecimal, and replies. Further input is
// read from rest.
func (s *tetherServer) receive(lease, reply string) (conn net.Conn, rest *bufio.Reader) {
	s.t.Helper()
	if err := s.SetDeadline(time.Now().Add(time.Minute)); err != nil { // only a failure takes that long
		s.t.Fatal(err)
	}
	conn, err := s.Accept()
	if err != nil {
		s.t.Fatalf("no declaration: %v", err)
	}
	s.t.Cleanup(func() { conn.Close() })
	rest = bufio.NewReader(conn)
	text, err := rest.ReadString('\n')
	if want := declarationOf(s.t, lease); text != want || err != nil {
		s.t.Fatalf("got declaration %q, %v; want %q", text, err, want)
	}
	if _, err := io.WriteString(conn, reply); err != nil {
		s.t.Fatal(err)
	}
	return conn, rest
}

// declarationOf returns the declaration of a lease, in hexadecimal, by this process.
func declarationOf(t *testing.T, lease string) string {
	t.Helper()
	id, err := strconv.ParseInt(lease, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	text, err := declaration(clientv3.LeaseID(id))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// socketLink returns a link to a socket, as local: has one, and the path of the socket. Nothing listens
// there.
func socketLink(t *testing.T) (link, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "st") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	link, socket = filepath.Join(dir, "link"), filepath.Join(dir, "s")
	if err := errors.Join(os.WriteFile(socket, nil, 0o600), os.Symlink(socket, link)); err != nil {
		t.Fatal(err)
	}
	return link, socket
}

// The declaration is made before the session is used, and again when the connection has ended.
func TestTether_declaresAgain(t *testing.T) {
	t.Parallel()
	link, socket := socketLink(t)
	server := listenForTethers(t, socket)
	session := make(chan func(), 1)
	go func() { session <- tether{link, slog.New(slog.DiscardHandler)}.declare(t.Context(), 0x1f) }()
	conn, _ := server.receive("1f", "ok\n")
	closed := <-session
	conn.Close()
	server.receive("1f", "ok\n")
	closed()
}

// A server that is started, or restarted, later gets the declaration.
func TestTether_serverStartedLater(t *testing.T) {
	t.Parallel()
	link, socket := socketLink(t)
	var log bytes.Buffer
	closed := tether{link, slog.New(slog.NewTextHandler(&log, nil))}.declare(t.Context(), -0x1f)
	listenForTethers(t, socket).receive("-1f", "ok\n")
	closed()
	if got := log.String(); strings.Count(got, "WARN") != 1 || !strings.Contains(got, "no such file") {
		t.Errorf("got log %q, want one warning", got)
	}
}

// A refusal may have a reason that passes, like too many declarations. So the client tries again.
func TestTether_refused(t *testing.T) {
	t.Parallel()
	for reply, logged := range map[string]string{
		"refused: no\n": "refused by the server: no", "HTTP/1.1 400 Bad Request\r\n": "400 Bad Request",
	} {
		link, socket := socketLink(t)
		server := listenForTethers(t, socket)
		var log bytes.Buffer
		session := make(chan func(), 1)
		go func() { session <- tether{link, slog.New(slog.NewTextHandler(&log, nil))}.declare(t.Context(), 1) }()
		server.receive("1", reply)
		server.receive("1", "ok\n")
		(<-session)()
		if got := log.String(); strings.Count(got, "WARN") != 1 || !strings.Contains(got, logged) {
			t.Errorf("got log %q, want it to say %q once", got, logged)
		}
	}
}

// A server that does not answer delays a session by less than the session needs to be renewed.
func TestTether_silentServer(t *testing.T) {
	t.Parallel()
	etcd := testservers.StartEtcd(t)
	listenForTethers(t, etcd.Socket()) // never accepts
	opened, err := Open(t.Context(), "etcd+unix://"+etcd.Socket(), &Options{Tethered: true})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	client, err := stile.New(opened.Store, &stile.Options{TTL: declareTimeout})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // with a wait for the declaration it would never succeed
	defer cancel()
	if _, err := client.Mutex("lock").Lock(ctx); err != nil {
		t.Error(err)
	}
	if err := client.Close(ctx); err != nil {
		t.Error(err)
	}
}

// A declaration that is given up is withdrawn: the server may have received it.
func TestTether_givenUpIsWithdrawn(t *testing.T) {
	t.Parallel()
	link, socket := socketLink(t)
	server := listenForTethers(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := tether{link, slog.New(slog.DiscardHandler)}.connect(ctx, 1)
		failed <- err
	}()
	_, rest := server.receive("1", "") // does not reply
	cancel()
	if err := <-failed; err == nil {
		t.Error("connect has succeeded without a reply")
	}
	if text, err := io.ReadAll(rest); string(text) != "\n" || err != nil {
		t.Errorf("got %q, %v; want the declaration withdrawn", text, err)
	}
}

// Only sessions of programs that want it are declared.
func TestOpen_tethered(t *testing.T) {
	t.Parallel()
	etcd := testservers.StartEtcd(t)
	server := listenForTethers(t, etcd.Socket())
	begin := func(opts *Options) store.Session {
		opened, err := Open(t.Context(), "etcd+unix://"+etcd.Socket(), opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = opened.Close() })
		session, err := opened.Store.Open(t.Context(), store.SessionOptions{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return session
	}
	other := begin(nil) // a declaration of this session would be the first in the queue
	ids := make(chan string, 1)
	sessions := make(chan store.Session, 1)
	go func() {
		session := begin(&Options{Tethered: true})
		sessions <- session
		ids <- session.ID()
	}()
	if err := server.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	conn, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	rest := bufio.NewReader(conn)
	text, err := rest.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "ok\n")
	session := <-sessions
	if want := declarationOf(t, <-ids); text != want {
		t.Errorf("got declaration %q, want %q", text, want)
	}
	for _, s := range []store.Session{session, other} {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if text, err := io.ReadAll(rest); string(text) != "\n" || err != nil {
		t.Errorf("got %q, %v when the session was closed; want the declaration withdrawn", text, err)
	}
}
