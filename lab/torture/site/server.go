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
	cluster *Cluster
	number  int // 1, 2 and so on
	name    string
	node    *Node
	dir     string // its data and configuration, in a file system of its own if it keeps data on disk
	clock   *clockshim.Clock
	proxy   *tcpproxy.Proxy
	full    atomic.Bool // its disk is, so that it may end of that

	mu      sync.Mutex
	process *process // the last one started
}

func (c *Cluster) newServer(number int) (*Server, error) {
	name := fmt.Sprintf("s%d", number)
	node, err := c.network.Node(name)
	if err != nil {
		return nil, err
	}
	return &Server{cluster: c, number: number, name: name, node: node, dir: filepath.Join(c.dir, name)}, nil
}

// prepare makes everything ready that the server needs, when all servers have their nodes.
func (s *Server) prepare(proxied bool) (err error) {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	runs := s.cluster.kind.runs
	if size := runs.room(); size != "" {
		if err := mountMemory(s.dir, size); err != nil {
			return err
		}
	}
	if proxied {
		// The observer's address is outside of all faults, but clients reach the proxy on the server's node.
		s.proxy, err = tcpproxy.New(s.Addr(), func() (net.Listener, error) { return s.node.listen(runs.port() + 10000) })
		if err != nil {
			return err
		}
	}
	return runs.configure(s)
}

// Name returns the server's name: "s1", "s2" and so on.
func (s *Server) Name() string { return s.name }

// Node returns the node that the server runs on, alone.
func (s *Server) Node() *Node { return s.node }

// Addr returns the server's own address, as host:port. It never changes.
func (s *Server) Addr() string {
	return net.JoinHostPort(s.node.IP(), strconv.Itoa(s.cluster.kind.runs.port()))
}

// Proxy returns the proxy through which clients reach the server, nil unless [Options.Proxies] was set.
func (s *Server) Proxy() *tcpproxy.Proxy { return s.proxy }

// Pid returns the id of the server's process, or of the last one if it does not run.
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

// Start starts the server again, after [Server.Kill] or when it has ended by itself, with the data that it had; Redis has
// none then. It does not wait until the server serves: alone it may not be able to. See [Server.AwaitReady].
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil && s.process.running() {
		return fmt.Errorf("%s runs already", s)
	}
	path, args, err := s.cluster.kind.runs.command(s)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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
	go s.watch(s.process)
	return nil
}

// watch waits for the end of the server's process, and tells of it unless it was to be expected.
func (s *Server) watch(p *process) {
	<-p.done
	if p.killed.Load() || s.full.Load() {
		return
	}
	select {
	case s.cluster.crashed <- fmt.Errorf("%s has ended by itself: %s; it said last:\n%s", s, p.cmd.ProcessState, tail(s.log(), 2<<10)):
	default: // another one has, before
	}
}

// AwaitReady waits until the server serves, for three minutes at most, which only one that is broken takes on however busy a machine,
// and no longer than ctx allows. The error has the
// last of what the server has said.
func (s *Server) AwaitReady(ctx context.Context) error {
	const most = 3 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("it has not been ready for %v", most))
	defer cancel()
	s.mu.Lock()
	ended := s.process.done
	s.mu.Unlock()
	// Polling, because the servers have no event for that.
	for {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := s.cluster.kind.runs.standing(once, s)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("%s has ended: it said last:\n%s", s, tail(s.log(), 2<<10))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w; it said last:\n%s", s, context.Cause(ctx), err, tail(s.log(), 2<<10))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill ends the server with SIGKILL, paused or not, and returns when it is gone. Its data stay, but Redis keeps none. That
// it had ended before is no error.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	return s.process.kill()
}

// Pause stops the server (SIGSTOP) until [Server.Resume]. Its connections stay open, and the system accepts new ones for it.
func (s *Server) Pause() error { return Pause(s.Pid()) }

// Resume lets a paused server go on.
func (s *Server) Resume() error { return Resume(s.Pid()) }

// Leads reports whether the server says that it leads; it may be mistaken, unlike [Cluster.Leader]. A server that does not
// answer before ctx ends does not lead.
func (s *Server) Leads(ctx context.Context) bool {
	st, err := s.cluster.kind.runs.standing(ctx, s)
	return err == nil && st.leads
}

// FillDisk leaves no room in the file system of the server's data until [Server.FreeDisk]. It fails if the server keeps
// none.
func (s *Server) FillDisk() error {
	if s.cluster.kind.runs.room() == "" {
		return fmt.Errorf("%s keeps nothing on disk", s)
	}
	f, err := os.Create(s.filler())
	if err != nil {
		return err
	}
	defer f.Close()
	s.full.Store(true)
	return s.fill(f)
}

// fill makes a file as large as there is room for.
func (s *Server) fill(f *os.File) error {
	size := int64(0)
	for range 100 { // the server may be quicker, now and then
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
	return fmt.Errorf("%s makes room as fast as it is taken away", s)
}

// FreeDisk undoes [Server.FillDisk], also one that has failed. A server that has ended for lack of room is not started again;
// FreeDisk gives one that is about to end of it a moment to do so.
func (s *Server) FreeDisk() error {
	if err := os.Remove(s.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	ended := s.process.done
	s.mu.Unlock()
	select {
	case <-ended:
	case <-time.After(300 * time.Millisecond):
	}
	s.full.Store(false)
	return nil
}

func (s *Server) filler() string { return filepath.Join(s.dir, "filler") }

// SetClock sets the server's wall clock so much ahead of the machine's or, if ahead is negative, behind it, and returns when
// the server has seen that. It fails if the server has no clock of its own: see [Options.Clocks].
func (s *Server) SetClock(ctx context.Context, ahead time.Duration) error {
	if s.clock == nil {
		return fmt.Errorf("%s has no clock of its own", s)
	}
	if err := s.clock.Set(ahead); err != nil {
		return err
	}
	// A moment passes until the server looks at its clock again.
	for {
		asked := time.Now()
		now, err := redisTime(ctx, s)
		// It looked at its clock at some time between our asking and its answer.
		const exact = time.Second / 4
		if err == nil && now.Add(-ahead).After(asked.Add(-exact)) && now.Add(-ahead).Before(time.Now().Add(exact)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not see its new clock: %w", s, context.Cause(ctx)), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// String returns the kind and the name of the server, for messages.
func (s *Server) String() string { return s.cluster.kind.name + "/" + s.name }

func (s *Server) log() string { return filepath.Join(s.cluster.dir, s.name+".log") }

func (s *Server) close() error {
	errs := []error{s.Kill()}
	if s.proxy != nil {
		s.proxy.Close()
	}
	if s.cluster.kind.runs.room() != "" {
		if err := unix.Unmount(s.dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", s.dir, err))
		}
	}
	return errors.Join(append(errs, s.node.Close())...)
}
