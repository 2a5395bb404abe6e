package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// server is one or more server programs under test, with a data directory that stop removes.
type server struct {
	dir     string
	cmds    []*exec.Cmd
	running sync.WaitGroup
	ended   chan error // how the first program ended
}

func newServer() (*server, error) {
	dir, err := os.MkdirTemp("", "stile-bench")
	return &server{dir: dir, ended: make(chan error, 1)}, err
}

// start starts a program. Only stop ends it: it outlives the context of an interrupted benchmark,
// which still has to close its sessions.
func (s *server) start(program string, args ...string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("cannot find the server program: %w; run `make servers`", err)
	}
	log, err := os.Create(filepath.Join(s.dir, fmt.Sprintf("log-%d", len(s.cmds))))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = log, log
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "ETCD_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmds = append(s.cmds, cmd)
	s.running.Go(func() {
		_ = cmd.Wait() // ProcessState has the result
		text, _ := os.ReadFile(log.Name())
		select {
		case s.ended <- fmt.Errorf("%s ended: %v\n%s", program, cmd.ProcessState, text[max(0, len(text)-4<<10):]):
		default:
		}
	})
	return nil
}

// untilExit returns a context that is canceled when a program ends; its cause says how. Without it,
// some clients would wait forever for a server that has ended.
func (s *server) untilExit(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case err := <-s.ended:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// await polls ready until it returns nil.
func await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // enough on a busy machine
	defer cancel()
	for {
		try, stop := context.WithTimeout(ctx, 2*time.Second)
		err := ready(try)
		stop()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready: %w: %w", context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop kills the programs and removes their data.
func (s *server) stop() error {
	for _, cmd := range s.cmds {
		_ = cmd.Process.Kill()
	}
	s.running.Wait()
	return os.RemoveAll(s.dir)
}

// freeAddresses returns n free TCP addresses of one host. Programs that take free ports of
// 127.0.0.1 cannot take them before they are used.
func freeAddresses(n int) ([]string, error) {
	host := loopbackHost()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// loopbackHost returns a loopback address that other programs are unlikely to use, or 127.0.0.1 if
// the system has no others.
func loopbackHost() string {
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(256), 1+rand.N(254))
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "127.0.0.1"
	}
	_ = l.Close()
	return host
}

func host(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

func port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}
