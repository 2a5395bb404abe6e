package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// etcd is a server in a process of its own, with default settings and a data directory that goes with it.
type etcd struct {
	dir      string
	endpoint string
	version  string

	cancel context.CancelFunc
	done   chan struct{} // closed when the process has ended
	err    error         // how it ended; read it after done
}

// startEtcd starts the program on free loopback ports and returns when it answers.
func startEtcd(ctx context.Context, binary string) (*etcd, error) {
	path, err := exec.LookPath(binary)
	if err != nil {
		return nil, fmt.Errorf("no etcd to measure: %w: run `make servers`, or name one with -etcd", err)
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "etcdbench")
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer log.Close()

	client, peer := "http://"+ports[0], "http://"+ports[1]
	// It ends when stop says so, not with ctx: an interrupted benchmark still ends its sessions.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(life, path,
		"--name=bench", "--data-dir="+filepath.Join(dir, "data"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=bench="+peer)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = environ()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second

	e := &etcd{dir: dir, endpoint: ports[0], cancel: cancel, done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() {
		defer close(e.done)
		e.err = errors.Join(errors.New("etcd has ended"), cmd.Wait())
	}()
	if err := e.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, e.stop())
	}
	return e, nil
}

// freePorts returns loopback addresses that nobody listens on.
func freePorts(n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// environ is this process's environment without what would configure etcd.
func environ() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ETCD_") {
			env = append(env, e)
		}
	}
	return env
}

// awaitReady polls: etcd has no event for "able to serve".
func (e *etcd) awaitReady(ctx context.Context) error {
	cli, err := e.client()
	if err != nil {
		return err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		// Writing takes a leader, which asking for the status does not.
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := cli.Put(try, "ready", "")
		cancel()
		if err == nil {
			status, err := cli.Status(ctx, e.endpoint)
			if err == nil {
				e.version = status.Version
			}
			return err
		}
		select {
		case <-e.done:
			return fmt.Errorf("%w\n%s", e.err, e.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("etcd is not ready: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (e *etcd) lastWords() string {
	b, err := os.ReadFile(filepath.Join(e.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4<<10):])
}

// stop ends the process and removes what it has written.
func (e *etcd) stop() error {
	e.cancel()
	<-e.done
	return os.RemoveAll(e.dir)
}

// client returns a new client, on a connection of its own. The settings are the same for whatever is measured.
func (e *etcd) client() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints:            []string{e.endpoint},
		DialTimeout:          5 * time.Second,
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
	})
}
