package tether

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// declareTimeout is how long a client may take to declare its session after it has connected.
	declareTimeout = 10 * time.Second
	// deathTimeout is how long the process may live on after its end of the connection was closed. A
	// process that is killed closes its files and is dead within milliseconds; one that lives on is not
	// dying.
	deathTimeout = 10 * time.Second
	// revokeTimeout limits the request that ends a lease. If it fails, the TTL ends the lease.
	revokeTimeout = 10 * time.Second
)

// A Server receives declarations. It must be closed. It is safe for concurrent use.
type Server struct {
	leases Leases
	log    *slog.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	limit int64 // of connections
	open  atomic.Int64
}

// New returns a server that does not listen yet. It logs the sessions that it has ended.
func New(leases Leases, log *slog.Logger) *Server {
	s := &Server{leases: leases, log: log, limit: connectionLimit()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// connectionLimit returns the limit of connections. With a pidfd each, they take an eighth of the files that
// this process may have open. The rest is for etcd, which fails without.
func connectionLimit() int64 {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0
	}
	return int64(min(files.Cur, 1<<20) / 16)
}

// Listen receives declarations at the path of a unix socket, until Close. It replaces a socket at
// that path; another file there is an error. It may be called again, for example because the socket's
// file was removed; earlier declarations stay valid.
func (s *Server) Listen(path string) error {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket", path)
	default:
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	context.AfterFunc(s.ctx, func() { _ = l.Close() })
	s.work.Go(func() { s.accept(l) })
	return nil
}

// Close stops the server and returns when it has stopped. The TTL ends the sessions that were declared.
// No call of Listen may be under way.
func (s *Server) Close() {
	s.cancel()
	s.work.Wait()
}

func (s *Server) accept(l *net.UnixListener) {
	defer l.Close() // before Close returns: it removes the socket, and another server may listen at the path then
	for s.ctx.Err() == nil {
		conn, err := l.AcceptUnix()
		if err != nil { // too many open files, or the listener is closed
			select {
			case <-s.ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(declareTimeout))
		peer, err := peerOf(conn)
		switch {
		case err != nil:
		case int(peer.Uid) != os.Geteuid():
			err = errors.New("the process belongs to another user than the server")
		case s.open.Load() >= s.limit:
			err = fmt.Errorf("there are more than %d declarations already", s.limit)
		}
		if err != nil { // at once, because each connection takes a file that etcd may need
			refuse(conn, err)
			continue
		}
		s.open.Add(1)
		s.work.Go(func() {
			defer s.open.Add(-1)
			s.serve(conn, peer)
		})
	}
}

func refuse(conn *net.UnixConn, err error) {
	fmt.Fprintf(conn, "refused: %v\n", err)
	conn.Close()
}

// serve serves one connection until it ends.
func (s *Server) serve(conn *net.UnixConn, peer *unix.Ucred) {
	defer conn.Close()
	defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
	lease, process, err := s.receive(conn, peer)
	if err != nil {
		refuse(conn, err)
		return
	}
	defer process.Close()
	if _, err := io.WriteString(conn, "ok\n"); err != nil && !isReleased(conn) {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if !awaitRelease(conn) || !s.awaitDeath(process) {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, revokeTimeout)
	defer cancel()
	id := slog.String("session", strconv.FormatInt(lease, 16))
	if err := s.leases.Revoke(ctx, lease); err != nil {
		s.log.LogAttrs(ctx, slog.LevelDebug, "session of a dead process not ended", id, slog.Any("error", err))
		return
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "session ended because its process is dead", id)
}

// receive receives a declaration. The process is the pidfd of the peer, which has sent it.
func (s *Server) receive(conn *net.UnixConn, peer *unix.Ucred) (lease int64, process *os.File, err error) {
	reader := bufio.NewReaderSize(io.LimitReader(conn, maxDeclaration), maxDeclaration)
	text, err := reader.ReadString('\n')
	if err != nil {
		return 0, nil, fmt.Errorf("no complete declaration within %d bytes and %v", maxDeclaration, declareTimeout)
	}
	d, err := parse(text)
	if err != nil {
		return 0, nil, err
	}
	own, err := realm()
	switch {
	case err != nil:
		return 0, nil, err
	case reader.Buffered() > 0:
		return 0, nil, errors.New("the declaration was withdrawn")
	case int(peer.Pid) != d.pid || d.realm != own:
		return 0, nil, errors.New("the connection was made by another process, or in another pid namespace")
	}
	ctx, cancel := context.WithTimeout(s.ctx, declareTimeout)
	defer cancel()
	if err := s.leases.Check(ctx, d.lease); err != nil {
		return 0, nil, err
	}
	process, err = openProcess(d.pid)
	return d.lease, process, err
}

// realm returns the pid namespace of this process and the boot of the machine, as in a declaration.
func realm() (string, error) {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return namespace + " " + strings.TrimSpace(string(boot)), err
}

// peerOf returns the process that made a connection. Its id is zero if this process cannot see it.
func peerOf(conn *net.UnixConn) (peer *unix.Ucred, err error) {
	return peer, control(conn, func(fd int) (err error) {
		peer, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
}

// control calls f with the descriptor of a connection.
func control(conn *net.UnixConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if closed := raw.Control(func(fd uintptr) { err = f(int(fd)) }); closed != nil {
		return closed
	}
	return err
}

// openProcess returns the pidfd of a process.
func openProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0) // since Linux 5.3
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // makes the file one that Go's runtime polls
	process := os.NewFile(uintptr(fd), "pidfd")
	if err := process.SetReadDeadline(time.Time{}); err != nil {
		process.Close()
		return nil, fmt.Errorf("poll the pidfd: %w", err)
	}
	return process, nil
}

// awaitRelease waits for the end of a connection. It reports whether the connection has ended because no
// process has the client's end open.
func awaitRelease(conn *net.UnixConn) bool {
	n, err := conn.Read(make([]byte, 1))
	return n == 0 && err != nil && isReleased(conn)
}

// isReleased reports whether no process has the other end of a connection open, or one that had it has shut
// down both directions. The end of input alone would not show that: a process can shut down one direction.
func isReleased(conn *net.UnixConn) bool {
	events := int16(0)
	err := control(conn, func(fd int) (err error) {
		events, err = poll(fd, 0)
		return err
	})
	return err == nil && events&unix.POLLHUP != 0
}

// awaitDeath waits until a process is dead, for no longer than deathTimeout, and reports whether it is.
func (s *Server) awaitDeath(process *os.File) bool {
	defer context.AfterFunc(s.ctx, func() { _ = process.Close() })()
	raw, err := process.SyscallConn()
	if err != nil || process.SetReadDeadline(time.Now().Add(deathTimeout)) != nil {
		return false
	}
	dead := false
	_ = raw.Read(func(fd uintptr) bool {
		events, err := poll(int(fd), unix.POLLIN)
		dead = err == nil && events&unix.POLLIN != 0
		return dead || err != nil
	})
	return dead
}

// poll returns the events of a descriptor without waiting.
func poll(fd int, wanted int16) (events int16, err error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: wanted}}
	for {
		if _, err = unix.Poll(fds, 0); !errors.Is(err, unix.EINTR) {
			return fds[0].Revents, err
		}
	}
}
