//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// servers are the servers of one row, with a directory that stop removes.
type servers struct {
	store   string
	dir     string
	members []*member
	proxies []*proxy
	url     string // for Stile; clients that use it are counted
	close   func() // closes what the functions below use; may be nil

	// sample reads the counters.
	sample func(context.Context) (sample, error)
	// healthy returns an error unless all members answer.
	healthy func(context.Context) error
	// leader returns the member that leads; only of clusters.
	leader func(context.Context) (*member, error)
	// entries returns the number of entries in the line of a name. Its requests are not in the samples.
	entries func(ctx context.Context, name string) (int, error)
}

// member is a server process.
type member struct {
	program string
	args    []string
	addr    string // for clients, without the proxy
	cmd     *exec.Cmd
}

// sample is the state of the counters; see [phase].
type sample struct {
	at                                  time.Time
	cpu                                 time.Duration
	requests, listings, messages, bytes float64
}

func (s sample) since(before sample) phase {
	return phase{
		Took: s.at.Sub(before.at), CPU: s.cpu - before.cpu, Requests: s.requests - before.requests,
		Listings: s.listings - before.listings, Messages: s.messages - before.messages, Bytes: s.bytes - before.bytes,
	}
}

// startServers starts n servers of a store, which are one cluster. There are none for the memory
// store.
func startServers(ctx context.Context, c config, store string, n int) (s *servers, err error) {
	s = &servers{store: store, url: "mem:"}
	if s.dir, err = os.MkdirTemp("", "stile-scale"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if text, _ := os.ReadFile(s.log()); len(text) > 0 {
				err = fmt.Errorf("%w; the servers' last output: %s", err, bytes.TrimSpace(text[max(0, len(text)-1000):]))
			}
			s.stop()
		}
	}()
	switch store {
	case etcdStore:
		return s, s.startEtcd(ctx, c.etcd, n)
	case redisStore:
		return s, s.startRedis(ctx, c.redis, n)
	case zkStore:
		return s, s.startZooKeeper(ctx, n)
	}
	s.sample = func(context.Context) (sample, error) {
		cpu, err := cpuOf(os.Getpid())
		return sample{at: time.Now(), cpu: cpu}, err
	}
	return s, nil
}

// add prepares a member; start starts it.
func (s *servers) add(addr, program string, args ...string) *member {
	m := &member{program: program, args: args, addr: addr}
	s.members = append(s.members, m)
	return m
}

// log returns the path of the file with the output of all members.
func (s *servers) log() string { return filepath.Join(s.dir, "log") }

// start starts the process of a member.
func (s *servers) start(m *member) error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	m.cmd = exec.Command(m.program, m.args...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	return m.cmd.Start()
}

// kill ends the process of a member with SIGKILL, if it runs.
func (m *member) kill() {
	if m.cmd != nil && m.cmd.Process != nil && m.cmd.ProcessState == nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
	}
}

func (m *member) running() bool {
	return m.cmd != nil && m.cmd.Process != nil && m.cmd.ProcessState == nil
}

// cpu returns the processor time of all members together.
func (s *servers) cpu() (sum time.Duration, err error) {
	for _, m := range s.members {
		if !m.running() {
			continue
		}
		one, err := cpuOf(m.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}

// memory returns the resident memory of all members together, in bytes.
func (s *servers) memory() (sum int64, err error) {
	for _, m := range s.members {
		if !m.running() {
			continue
		}
		one, err := statusOf(m.cmd.Process.Pid, "VmRSS")
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}

// reset resets all connections of the clients.
func (s *servers) reset() {
	for _, p := range s.proxies {
		p.reset()
	}
}

func (s *servers) stop() {
	if s.close != nil {
		s.close()
	}
	for _, p := range s.proxies {
		p.close()
	}
	for _, m := range s.members {
		m.kill()
	}
	_ = os.RemoveAll(s.dir)
}

// withProxies starts a proxy before each address and returns their addresses.
func (s *servers) withProxies(addrs []string, count func() observer) (fronts []string, err error) {
	for _, addr := range addrs {
		p, err := newProxy(addr, count)
		if err != nil {
			return nil, err
		}
		s.proxies = append(s.proxies, p)
		fronts = append(fronts, p.addr())
	}
	return fronts, nil
}

// await polls ready until it returns nil.
func await(ctx context.Context, what string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("it has taken two minutes"))
	defer cancel()
	var last error // of the tries that ctx did not end
	for {
		try, stop := context.WithTimeout(ctx, 5*time.Second)
		err := ready(try)
		stop()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitQuiet waits until the clients have sent at most requests in a second, and the servers have used less than half
// a processor in it. A server that is busy with slow requests gets few. It returns the counters of before that second.
func (s *servers) awaitQuiet(ctx context.Context, requests float64) (sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, joinTimeout, fmt.Errorf("the clients have not been quiet within %v", joinTimeout))
	defer cancel()
	last, err := s.sample(ctx)
	for err == nil {
		if err = sleep(ctx, time.Second); err != nil {
			break
		}
		var now sample
		if now, err = s.sample(ctx); err != nil {
			break
		}
		if p := now.since(last); p.Requests <= requests && p.CPU < p.Took/2 {
			return last, nil
		}
		last = now
	}
	return last, err
}

// quietRequests returns how many requests a second do not count while n clients wait. From time to time, a client
// reads whether the line has changed: on Redis and ZooKeeper once a second, on etcd less and less often.
func (s *servers) quietRequests(n int) float64 {
	if s.store == redisStore || s.store == zkStore {
		return 5 + 1.5*float64(n)
	}
	return 5 + float64(n)/4
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// freeAddresses returns n free TCP addresses of a loopback address that other programs are unlikely
// to use. Their ports are below those that the system assigns: a proxy listens at the same address before the server
// does, and must not get the server's port.
func freeAddresses(n int) (addrs []string, err error) {
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(256), 1+rand.N(254))
	for tries := 0; len(addrs) < n; tries++ {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(11_000+rand.N(20_000))))
		if err != nil {
			if tries > 50 {
				return nil, err
			}
			continue
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

func host(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

func port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}
