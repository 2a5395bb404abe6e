//go:build linux

package site

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/internal/clockshim"
	"github.com/stilelock/stile/internal/tcpproxy"
)

// Server is one server of a [Cluster]. It is safe for concurrent use.
type Server struct {
	cluster  *Cluster
	number   int // 1, 2 and so on
	name     string
	node     *Node
	dir      string // its data and configuration; its own file system if it keeps data on disk
	clock    *clockshim.Clock
	proxy    *tcpproxy.Proxy
	diskFull atomic.Bool // whether FillDisk has filled its disk, which may make it end

	mu      sync.Mutex
	process *process // the latest
}

func (c *Cluster) newServer(number int) (*Server, error) {
	name := fmt.Sprintf("s%d", number)
	node, err := c.network.Node(name)
	if err != nil {
		return nil, err
	}
	return &Server{cluster: c, number: number, name: name, node: node, dir: filepath.Join(c.dir, name)}, nil
}

// prepare creates the server's directory, proxy and configuration, after all servers have their
// nodes.
func (s *Server) prepare(proxied bool) (err error) {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	software := s.cluster.kind.software
	if size := software.diskSize(); size != "" {
		if err := mountTmpfs(s.dir, size); err != nil {
			return err
		}
	}
	if proxied {
		// The proxy connects from the observer's address, which no fault affects. But clients reach
		// it on the server's node.
		s.proxy, err = tcpproxy.New(s.Addr(), func() (net.Listener, error) { return s.node.listen(software.port() + 10000) })
		if err != nil {
			return err
		}
	}
	return software.configure(s)
}

// Name returns the server's name: "s1", "s2" and so on.
func (s *Server) Name() string { return s.name }

// Node returns the node that the server runs on, alone.
func (s *Server) Node() *Node { return s.node }

// Addr returns the server's own address, as host:port. It never changes.
func (s *Server) Addr() string {
	return net.JoinHostPort(s.node.IP(), strconv.Itoa(s.cluster.kind.software.port()))
}

// Proxy returns the proxy through which clients reach the server, nil unless [Options.Proxies] was set.
func (s *Server) Proxy() *tcpproxy.Proxy { return s.proxy }

// Pid returns the id of the server's process, or of its last one if it does not run.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.pid()
}

// Running reports whether the server's process has not ended. It may be paused.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process != nil && s.process.running()
}

// Start starts the server again, after [Server.Kill] or after it has ended by itself, with its
// data; Redis is empty then. It does not wait until the server is ready, which may need other
// servers. See [Server.AwaitReady].
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil && s.process.running() {
		return fmt.Errorf("%s is already running", s)
	}
	path, args, err := s.cluster.kind.software.command(s)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := s.node.Command(path, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, s.dir
	if s.clock != nil {
		cmd.Env = append(os.Environ(), s.clock.Env()...)
	}
	if s.process, err = s.cluster.network.launch(cmd); err != nil {
		return fmt.Errorf("start %s: %w", s, err)
	}
	go s.reportCrash(s.process)
	return nil
}

// reportCrash waits for the end of the server's process, and reports it unless it was expected.
func (s *Server) reportCrash(p *process) {
	<-p.done
	if p.killed.Load() || s.diskFull.Load() {
		return
	}
	select {
	case s.cluster.crashed <- fmt.Errorf("%s has ended unexpectedly: %s; end of its output:\n%s", s, p.cmd.ProcessState, tail(s.logPath(), 2<<10)):
	default: // an earlier crash has not been received
	}
}

// AwaitReady waits until the server is ready, for up to three minutes and until ctx ends. Only a
// broken server needs three minutes, however busy the machine. The error contains the end of the
// server's output.
func (s *Server) AwaitReady(ctx context.Context) error {
	const readyTimeout = 3 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not ready within %v", readyTimeout))
	defer cancel()
	s.mu.Lock()
	ended := s.process.done
	s.mu.Unlock()
	// It polls because the servers have no event for that.
	for {
		requestCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := s.cluster.kind.software.leadership(requestCtx, s)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("%s has ended; end of its output:\n%s", s, tail(s.logPath(), 2<<10))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w; end of its output:\n%s", s, context.Cause(ctx), err, tail(s.logPath(), 2<<10))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill kills the server with SIGKILL, even if it is paused, and returns when it has ended. Its data
// remain, except for Redis, which has no persistence. It returns nil if the server had ended
// before.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	return s.process.kill()
}

// Pause stops the server (SIGSTOP) until [Server.Resume]. Its connections remain open, and the
// kernel accepts new ones for it.
func (s *Server) Pause() error { return Pause(s.Pid()) }

// Resume continues a paused server.
func (s *Server) Resume() error { return Resume(s.Pid()) }

// Leads reports whether the server says that it leads, which may be wrong, unlike [Cluster.Leader].
// It returns false for a server that does not reply before ctx ends.
func (s *Server) Leads(ctx context.Context) bool {
	st, err := s.cluster.kind.software.leadership(ctx, s)
	return err == nil && st.leads
}

// FillDisk fills the file system of the server's data until [Server.FreeDisk]. It fails if the
// server keeps nothing on disk.
func (s *Server) FillDisk() error {
	if s.cluster.kind.software.diskSize() == "" {
		return fmt.Errorf("%s keeps nothing on disk", s)
	}
	f, err := os.Create(s.fillerPath())
	if err != nil {
		return err
	}
	defer f.Close()
	s.diskFull.Store(true)
	return s.fill(f)
}

// fill makes a file as large as the free space.
func (s *Server) fill(f *os.File) error {
	size := int64(0)
	for range 100 { // the server may free space, or use it, in between
		var fs unix.Statfs_t
		if err := unix.Statfs(s.dir, &fs); err != nil {
			return err
		}
		left := int64(fs.Bavail) * fs.Bsize
		if left == 0 {
			return nil
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, size, left); {
		case err == nil:
			size += left
		case !errors.Is(err, unix.ENOSPC):
			return err
		}
	}
	return fmt.Errorf("%s frees space as fast as it is filled", s)
}

// FreeDisk undoes [Server.FillDisk], even one that has failed. It does not restart a server that
// has ended because of the full disk. It waits a moment for a server that is about to end because
// of that.
func (s *Server) FreeDisk() error {
	if err := os.Remove(s.fillerPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	ended := s.process.done
	s.mu.Unlock()
	select {
	case <-ended:
	case <-time.After(300 * time.Millisecond):
	}
	s.diskFull.Store(false)
	return nil
}

func (s *Server) fillerPath() string { return filepath.Join(s.dir, "filler") }

// SetClock sets the server's wall clock ahead of the machine's clock by this offset or, if
// negative, behind it. It returns when the server uses the new time. It fails if the server does
// not have its own clock: see [Options.Clocks].
func (s *Server) SetClock(ctx context.Context, ahead time.Duration) error {
	if s.clock == nil {
		return fmt.Errorf("%s does not have its own clock", s)
	}
	if err := s.clock.Set(ahead); err != nil {
		return err
	}
	// It takes a moment until the server reads its clock again.
	for {
		asked := time.Now()
		now, err := redisTime(ctx, s)
		// The server read its clock between the request and the reply.
		const tolerance = time.Second / 4
		if err == nil && now.Add(-ahead).After(asked.Add(-tolerance)) && now.Add(-ahead).Before(time.Now().Add(tolerance)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not use its new time: %w", s, context.Cause(ctx)), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// String returns the kind and the name of the server, for messages.
func (s *Server) String() string { return s.cluster.kind.name + "/" + s.name }

func (s *Server) logPath() string { return filepath.Join(s.cluster.dir, s.name+".log") }

func (s *Server) close() error {
	errs := []error{s.Kill()}
	if s.proxy != nil {
		s.proxy.Close()
	}
	if s.cluster.kind.software.diskSize() != "" {
		if err := unix.Unmount(s.dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", s.dir, err))
		}
	}
	return errors.Join(append(errs, s.node.Close())...)
}
