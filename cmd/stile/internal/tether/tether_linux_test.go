package tether

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// modeVar makes the test program a client. Its value is what the client does.
const modeVar = "STILE_TEST_TETHER"

// The modes of a client.
const (
	modeStay     = "stay"     // declares a session and keeps the connection
	modeClose    = "close"    // closes the connection after that
	modeWithdraw = "withdraw" // withdraws the declaration after that
	modeFork     = "fork"     // starts a process that inherits the connection
	modeShutdown = "shutdown" // the same, and shuts down its direction of the connection
	modeForeign  = "foreign"  // declares the session for its parent
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVar); mode != "" {
		os.Unsetenv(modeVar)
		actAs(mode, os.Args[1], os.Args[2])
		return
	}
	os.Exit(m.Run())
}

// actAs is a client. It prints the server's reply and then lives until its stdin ends.
func actAs(mode, socket, lease string) {
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	c, err := net.Dial("unix", socket)
	must(err)
	conn := c.(*net.UnixConn)
	pid := os.Getpid()
	if mode == modeForeign {
		pid = os.Getppid()
	}
	own, err := realm()
	must(err)
	fmt.Fprintf(conn, "stile-tether 1 %s %d %s\n", lease, pid, own) // fails if the server has refused already
	reply, err := bufio.NewReader(conn).ReadString('\n')
	must(err)
	switch mode {
	case modeClose:
		must(conn.Close())
	case modeWithdraw:
		_, err := conn.Write([]byte{'\n'})
		must(err)
		must(conn.Close())
	case modeFork, modeShutdown:
		file, err := conn.File()
		must(err)
		child := exec.Command("cat")
		child.Stdin, child.ExtraFiles = os.Stdin, []*os.File{file}
		must(child.Start())
		if mode == modeShutdown {
			must(conn.CloseWrite())
		}
		fmt.Print(reply)
		_ = child.Wait() // the child reads stdin
	}
	fmt.Print(reply)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// recorder has the leases of a test, which are those from 1 to 99.
type recorder struct {
	t       *testing.T
	socket  string
	server  *Server
	revoked chan int64
}

var errUnknown = errors.New("no such lease")

// newRecorder starts a server, after the changes.
func newRecorder(t *testing.T, change ...func(*Server)) *recorder {
	t.Helper()
	dir, err := os.MkdirTemp("", "st") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &recorder{t: t, socket: filepath.Join(dir, "s"), revoked: make(chan int64, 100)}
	r.server = New(Leases{
		Check: func(_ context.Context, lease int64) error {
			if lease < 1 || lease > 99 {
				return errUnknown
			}
			return nil
		},
		Revoke: func(_ context.Context, lease int64) error {
			r.revoked <- lease
			return nil
		},
	}, slog.New(slog.DiscardHandler))
	for _, f := range change {
		f(r.server)
	}
	t.Cleanup(r.server.Close)
	if err := r.server.Listen(r.socket); err != nil {
		t.Fatal(err)
	}
	return r
}

// process is a running client.
type process struct {
	*exec.Cmd
	t     *testing.T
	stdin io.Closer // its end lets the client and its child end
}

// start starts a client and returns it with the server's reply.
func (r *recorder) start(mode string, lease int64, change ...func(*exec.Cmd)) (*process, string) {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], r.socket, strconv.FormatInt(lease, 16))
	cmd.Env = append(os.Environ(), modeVar+"="+mode)
	for _, f := range change {
		f(cmd)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	p := &process{cmd, r.t, stdin}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	reply, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		r.t.Fatalf("client %s: %q, %v", mode, reply, err)
	}
	return p, strings.TrimSuffix(reply, "\n")
}

// declare is start for a declaration that the server accepts.
func (r *recorder) declare(mode string, lease int64) *process {
	r.t.Helper()
	p, reply := r.start(mode, lease)
	if reply != "ok" {
		r.t.Fatalf("lease %d: got reply %q, want ok", lease, reply)
	}
	return p
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// expect checks that lease is the next one that is ended.
func (r *recorder) expect(lease int64) {
	r.t.Helper()
	select {
	case got := <-r.revoked:
		if got != lease {
			r.t.Fatalf("lease %d ended, want %d", got, lease)
		}
	case <-time.After(time.Minute):
		r.t.Fatalf("lease %d has not ended", lease)
	}
}

// expectNone checks that no lease was ended until the death of another process was noticed and handled. It
// needs a number for the lease of that process.
func (r *recorder) expectNone(other int64) {
	r.t.Helper()
	r.declare(modeStay, other).signal(syscall.SIGKILL)
	r.expect(other)
}

// Promise: P4
func TestServer_killedProcess(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	p := r.declare(modeStay, 1)
	p.signal(syscall.SIGKILL)
	r.expect(1) // although nobody has waited for the process: it is a zombie
}

// Promise: P1
func TestServer_stoppedProcess(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	p := r.declare(modeStay, 1)
	p.signal(syscall.SIGSTOP)
	r.expectNone(2)
	p.signal(syscall.SIGKILL)
	r.expect(1)
}

// A connection that is closed does not show that its process is dead.
//
// Promise: P1
func TestServer_connectionClosed(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	p := r.declare(modeClose, 1)
	r.expectNone(2)
	p.signal(syscall.SIGKILL)
}

// A forked process may go on with what its parent did. It has the connection.
//
// Promise: P1
func TestServer_connectionInherited(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	p := r.declare(modeFork, 1)
	p.signal(syscall.SIGKILL)
	r.expectNone(2)
	_ = p.stdin.Close() // the child ends
	r.expect(1)
}

func TestServer_declarationWithdrawn(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	p := r.declare(modeWithdraw, 1)
	p.signal(syscall.SIGKILL)
	r.expectNone(2)
}

// The end of input does not show that no process has the connection.
//
// Promise: P1
func TestServer_halfClosed(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	p := r.declare(modeShutdown, 1)
	p.signal(syscall.SIGKILL)
	r.expectNone(2)
}

// Promise: P1
func TestServer_refuses(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	needsRoot := func(t *testing.T) {
		t.Helper()
		if os.Getuid() != 0 {
			t.Skip("needs root")
		}
	}
	refused := func(t *testing.T, reason, mode string, lease int64, change ...func(*exec.Cmd)) {
		t.Helper()
		p, reply := r.start(mode, lease, change...)
		if !strings.HasPrefix(reply, "refused: ") || !strings.Contains(reply, reason) {
			t.Errorf("got reply %q, want a refusal with %q", reply, reason)
		}
		p.signal(syscall.SIGKILL)
	}
	t.Run("another process", func(t *testing.T) { refused(t, "another process", modeForeign, 1) })
	t.Run("unknown lease", func(t *testing.T) { refused(t, errUnknown.Error(), modeStay, 100) })
	t.Run("pid namespace", func(t *testing.T) {
		needsRoot(t)
		refused(t, "pid namespace", modeStay, 1, func(c *exec.Cmd) {
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
		})
	})
	t.Run("another user", func(t *testing.T) {
		needsRoot(t)
		for path, mode := range map[string]os.FileMode{filepath.Dir(r.socket): 0o755, r.socket: 0o777} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, "another user", modeStay, 1, func(c *exec.Cmd) {
			c.Path = "/proc/self/fd/3" // its directory may be closed to other users
			self, err := os.Open("/proc/self/exe")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { self.Close() })
			c.ExtraFiles = []*os.File{self}
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		})
	})
	r.expectNone(2)
}

func TestServer_invalidDeclarations(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	own, err := realm()
	if err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	namespace, boot, _ := strings.Cut(own, " ")
	for _, text := range []string{
		"\n", "GET / HTTP/1.1\n", "stile-tether 1 1\n", strings.Repeat("x", 2*maxDeclaration),
		fmt.Sprintf("stile-tether 2 1 %d %s\n", pid, own),
		fmt.Sprintf("stile-tether 1 x %d %s\n", pid, own),
		fmt.Sprintf("stile-tether 1 1 0 %s\n", own),
		fmt.Sprintf("stile-tether 1 1 -1 %s\n", own),
		fmt.Sprintf("stile-tether 1 1 %d\n", pid),
		fmt.Sprintf("stile-tether 1 1 %d pid:[1] %s\n", pid, boot),                                   // in a container, a process with the same number
		fmt.Sprintf("stile-tether 1 1 %d %s 00000000-0000-0000-0000-000000000000\n", pid, namespace), // on another machine
		fmt.Sprintf("stile-tether 1 1 %d %s\n\n", pid, own),                                          // withdrawn at once
	} {
		conn, err := net.Dial("unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, text)
		reply, _ := bufio.NewReader(conn).ReadString('\n')
		if !strings.HasPrefix(reply, "refused: ") {
			t.Errorf("%q: got reply %q, want a refusal", text, reply)
		}
		conn.Close()
	}
	r.expectNone(2)
}

// The socket of a server that was killed is replaced, and no other file.
func TestServer_listensAgain(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	before := r.declare(modeStay, 1)
	if err := r.server.Listen(r.socket); err != nil {
		t.Fatal(err)
	}
	r.declare(modeStay, 2).signal(syscall.SIGKILL)
	r.expect(2)
	before.signal(syscall.SIGKILL)
	r.expect(1)

	file := r.socket + "file"
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.server.Listen(file); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("got %v for a file, want an error", err)
	}
	if text, err := os.ReadFile(file); string(text) != "mine" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// Declarations must not use up the files that etcd needs.
func TestServer_limit(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, func(s *Server) {
		if s.limit < 1 {
			t.Errorf("the limit is %d", s.limit)
		}
		s.limit = 1
	})
	silent, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	eventually := func(what string, n int64) {
		t.Helper()
		for end := time.Now().Add(time.Minute); r.server.open.Load() != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %d connections, want %d", what, r.server.open.Load(), n)
			}
		}
	}
	eventually("a silent client", 1)
	if _, reply := r.start(modeStay, 1); !strings.Contains(reply, "more than 1") {
		t.Fatalf("got reply %q beside a silent connection, want a refusal", reply)
	}
	silent.Close()
	eventually("it has gone", 0)

	first := r.declare(modeStay, 1)
	second, reply := r.start(modeStay, 2)
	if !strings.Contains(reply, "more than 1") {
		t.Fatalf("got reply %q, want a refusal", reply)
	}
	second.signal(syscall.SIGKILL)
	first.signal(syscall.SIGKILL)
	r.expect(1)
	eventually("all have gone", 0)
	r.declare(modeStay, 3)
}

// Close ends everything, and no session.
func TestServer_close(t *testing.T) {
	t.Parallel()
	r := newRecorder(t)
	r.declare(modeStay, 1)
	r.declare(modeClose, 2) // the server waits for its death
	r.server.Close()
	if len(r.revoked) > 0 {
		t.Errorf("lease %d ended", <-r.revoked)
	}
	if _, err := os.Lstat(r.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}
