//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// lockName is the lock that everybody waits for.
const lockName = "hot"

// joinTimeout bounds the time until all waiters are in the line and the server is quiet.
const joinTimeout = 5 * time.Minute

// measure measures one row with a server of its own.
func measure(ctx context.Context, c config, r row) (row, error) {
	s, err := startServer(ctx, c.etcd)
	if err != nil {
		return r, err
	}
	defer s.stop()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, Logger: zap.NewNop()})
	if err != nil {
		return r, err
	}
	defer cli.Close()

	unlock, err := lockWith(ctx, "stile", cli)
	if err != nil {
		return r, err
	}
	before, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	workers, err := startWorkers(ctx, s, r)
	if err != nil {
		return r, err
	}
	defer workers.kill()
	joined, err := s.awaitQuiet(ctx, cli, r.Waiters+1)
	if err != nil {
		return r, errors.Join(err, workers.err())
	}
	r.Join = joined.since(before)
	select {
	case <-ctx.Done():
		return r, ctx.Err()
	case <-time.After(c.idle):
	}
	idle, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	r.Idle = idle.since(joined)
	began := time.Now()
	if err := unlock(ctx); err != nil {
		return r, err
	}
	if err := workers.wait(); err != nil {
		return r, err
	}
	took := time.Since(began)
	drained, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	r.Drain = drained.since(idle)
	r.Drain.Took = took
	return r, nil
}

// server is an etcd of one member.
type server struct {
	addr string
	dir  string
	cmd  *exec.Cmd
}

func startServer(ctx context.Context, program string) (*server, error) {
	dir, err := os.MkdirTemp("", "stile-scale")
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddresses(2)
	if err != nil {
		return nil, err
	}
	client, peer := "http://"+addrs[0], "http://"+addrs[1]
	s := &server{addr: addrs[0], dir: dir}
	s.cmd = exec.Command(program, "--name=m", "--data-dir="+filepath.Join(dir, "data"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=m="+peer,
		"--metrics=extensive", "--log-level=fatal")
	return s, s.start(ctx)
}

// freeAddresses returns n free TCP addresses of a loopback address that other programs are unlikely
// to use.
func freeAddresses(n int) (addrs []string, err error) {
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(256), 1+rand.N(254))
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

// start starts the program and waits until it answers.
func (s *server) start(ctx context.Context) error {
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); ; {
		resp, err := http.Get("http://" + s.addr + "/health")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("etcd does not answer: %w", errors.Join(err, context.Cause(ctx)))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// sample is the state of the server's counters.
type sample struct {
	at       time.Time
	cpu      time.Duration
	requests float64
	messages float64
	bytes    float64
}

func (s sample) since(before sample) phase {
	return phase{
		Took: s.at.Sub(before.at), CPU: s.cpu - before.cpu, Requests: s.requests - before.requests,
		Messages: s.messages - before.messages, Bytes: s.bytes - before.bytes,
	}
}

// sample reads the counters. Renewals are not counted: they do not depend on the lines.
func (s *server) sample(ctx context.Context) (sample, error) {
	now := sample{at: time.Now()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/metrics", nil)
	if err != nil {
		return now, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return now, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		series, text, _ := strings.Cut(lines.Text(), " ")
		value, err := strconv.ParseFloat(text, 64)
		if err != nil || strings.Contains(series, `"LeaseKeepAlive"`) {
			continue
		}
		watch := strings.Contains(series, `grpc_method="Watch"`)
		switch {
		case strings.HasPrefix(series, "grpc_server_msg_received_total"):
			now.requests += value
		case strings.HasPrefix(series, "grpc_server_msg_sent_total") && watch:
			now.messages += value
		case series == "etcd_network_client_grpc_sent_bytes_total":
			now.bytes = value
		case series == "process_cpu_seconds_total":
			now.cpu = time.Duration(value * float64(time.Second))
		}
	}
	return now, lines.Err()
}

// awaitQuiet waits until the line has n entries and the clients have sent nothing for a second, and
// returns the counters of then. Its own requests are not in them.
func (s *server) awaitQuiet(ctx context.Context, cli *clientv3.Client, n int) (sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, joinTimeout, fmt.Errorf("not all waiters have joined within %v", joinTimeout))
	defer cancel()
	asked := 0.0
	for {
		resp, err := cli.Get(ctx, lockName+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return sample{}, context.Cause(ctx)
		}
		asked++
		if resp.Count >= int64(n) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	for last := (sample{}); ; {
		now, err := s.sample(ctx)
		if err != nil {
			return now, err
		}
		if now.requests == last.requests {
			last.requests -= asked
			return last, nil
		}
		last = now
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return now, context.Cause(ctx)
		}
	}
}

// workers are the processes with the waiters.
type workers struct {
	cmds   []*exec.Cmd
	stderr []*bytes.Buffer
}

// maxWorkers is how many processes the waiters are divided among.
const maxWorkers = 10

func startWorkers(ctx context.Context, s *server, r row) (*workers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	flock := filepath.Join(s.dir, "flock")
	if err := os.WriteFile(flock, nil, 0o600); err != nil {
		return nil, err
	}
	w := &workers{}
	left := r.Waiters
	for i := range min(maxWorkers, r.Waiters) {
		n := left / (min(maxWorkers, r.Waiters) - i)
		left -= n
		cmd := exec.CommandContext(ctx, self, "-endpoint="+s.addr, "-contender="+r.Contender, "-n="+strconv.Itoa(n), "-flock="+flock)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			w.kill()
			return nil, err
		}
		w.cmds, w.stderr = append(w.cmds, cmd), append(w.stderr, &stderr)
	}
	return w, nil
}

// wait waits until all waiters have passed.
func (w *workers) wait() error {
	var errs []error
	for i, cmd := range w.cmds {
		if err := cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("a worker failed: %w: %s", err, tail(w.stderr[i].String())))
		}
	}
	w.cmds = nil
	return errors.Join(errs...)
}

// err kills the workers and returns how they ended.
func (w *workers) err() error {
	for _, cmd := range w.cmds {
		_ = cmd.Process.Kill()
	}
	return w.wait()
}

func (w *workers) kill() { _ = w.err() }

func tail(text string) string { return text[max(0, len(text)-500):] }
