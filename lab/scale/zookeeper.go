//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// classPath has the jars of the Debian packages libzookeeper-java and libslf4j-java.
const classPath = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"

// startZooKeeper starts an ensemble of n servers with default settings but for the tick, and longer
// sessions.
func (s *servers) startZooKeeper(ctx context.Context, n int) error {
	addrs, err := freeAddresses(3 * n)
	if err != nil {
		return err
	}
	var ensemble []string
	for i := range n {
		if n > 1 {
			ensemble = append(ensemble, fmt.Sprintf("server.%d=%s:%s:%s", i+1, host(addrs[i]), port(addrs[n+i]), port(addrs[2*n+i])))
		}
	}
	for i := range n {
		data := filepath.Join(s.dir, fmt.Sprint(i+1))
		if err := os.Mkdir(data, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(data, "myid"), fmt.Append(nil, i+1), 0o600); err != nil {
			return err
		}
		lines := append([]string{
			"tickTime=500", "initLimit=80", "syncLimit=80", "dataDir=" + data,
			"clientPort=" + port(addrs[i]), "clientPortAddress=" + host(addrs[i]), "maxClientCnxns=0", "maxSessionTimeout=60000",
			"admin.enableServer=false", "4lw.commands.whitelist=srvr",
		}, ensemble...)
		file := filepath.Join(data, "zoo.cfg")
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return err
		}
		m := s.add(addrs[i], "java", "-Xmx768m", "-cp", classPath, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
		if err := s.start(m); err != nil {
			return err
		}
	}
	for _, m := range s.members {
		if err := await(ctx, "zookeeper does not answer", func(ctx context.Context) error { _, err := m.zkMode(ctx); return err }); err != nil {
			return err
		}
	}
	counts := &zkCounts{}
	fronts, err := s.withProxies(addrs[:n], func() observer { return &zkFrames{counts: counts} })
	if err != nil {
		return err
	}
	s.url = "zk://" + strings.Join(fronts, ",")
	admin, err := connectZooKeeper(ctx, addrs[:1], ttl)
	if err != nil {
		return err
	}
	s.close = admin.Close
	s.sample = func(context.Context) (sample, error) {
		cpu, err := s.cpu()
		return sample{
			at: time.Now(), cpu: cpu, requests: float64(counts.requests.Load()), listings: float64(counts.listings.Load()),
			messages: float64(counts.events.Load()), bytes: float64(counts.bytes.Load()),
		}, err
	}
	s.leader = func(ctx context.Context) (*member, error) {
		for _, m := range s.members {
			if mode, err := m.zkMode(ctx); err != nil || mode == "leader" {
				return m, err
			}
		}
		return nil, errors.New("the ensemble has no leader")
	}
	s.entries = func(_ context.Context, name string) (int, error) {
		_, stat, err := admin.Exists("/" + name)
		return int(stat.NumChildren), err
	}
	return nil
}

// zkMode returns the mode that a member reports: standalone, leader or follower.
func (m *member) zkMode(ctx context.Context) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	// A server that is just starting may accept the connection and never answer.
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", err
	}
	_, mode, found := strings.Cut(string(answer), "Mode: ")
	if !found {
		return "", errors.New("the server is not serving yet")
	}
	mode, _, _ = strings.Cut(mode, "\n")
	return mode, nil
}

// connectZooKeeper opens a session of the go-zookeeper client.
func connectZooKeeper(ctx context.Context, addrs []string, ttl time.Duration) (*zk.Conn, error) {
	conn, events, err := zk.Connect(addrs, ttl, zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return conn, nil
			}
		case <-ctx.Done():
			conn.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// zkCounts is what the clients have sent and received on all connections. Pings, and the transactions
// with which Stile confirms its sessions, are not counted as requests: they do not depend on the
// lines.
type zkCounts struct {
	requests, listings, events, bytes atomic.Int64
}

// Operation codes and other constants of ZooKeeper's protocol.
const (
	zkOpChildren  = 8
	zkOpPing      = 11
	zkOpChildren2 = 12
	zkOpCheck     = 13
	zkOpMulti     = 14
	zkOpClose     = -11
	zkEventXid    = -1

	// zkRootCheck is the length of a request of one check of "/".
	zkRootCheck = 4 + 4 + (4 + 1 + 4) + (4 + 1 + 4) + (4 + 1 + 4)
)

// zkFrames observes one connection.
type zkFrames struct {
	counts   *zkCounts
	upward   frames
	downward frames
}

func (z *zkFrames) up(b []byte) {
	z.upward.read(b, func(number, length int, head []byte) {
		if number == 0 || len(head) < 8 {
			return // the handshake
		}
		op := int32(binary.BigEndian.Uint32(head[4:]))
		switch {
		case op == zkOpPing || op == zkOpClose:
			return
		case op == zkOpMulti && length == zkRootCheck && len(head) >= 12 && binary.BigEndian.Uint32(head[8:]) == zkOpCheck:
			return
		case op == zkOpChildren || op == zkOpChildren2:
			z.counts.listings.Add(1)
		}
		z.counts.requests.Add(1)
	})
}

func (z *zkFrames) down(b []byte) {
	z.counts.bytes.Add(int64(len(b)))
	z.downward.read(b, func(number, _ int, head []byte) {
		if number > 0 && len(head) >= 4 && int32(binary.BigEndian.Uint32(head)) == zkEventXid {
			z.counts.events.Add(1)
		}
	})
}

// frames divides a stream into frames, each with its length before it.
type frames struct {
	number int
	left   int // bytes of the current frame that are still to come; zero between frames
	length int
	head   []byte
	prefix []byte
}

// headSize is how many bytes of a frame are kept.
const headSize = 12

// read calls found for each frame whose first bytes are complete, with its number, its length, and
// the first bytes.
func (f *frames) read(b []byte, found func(number, length int, head []byte)) {
	for len(b) > 0 {
		if f.left == 0 {
			n := min(4-len(f.prefix), len(b))
			f.prefix, b = append(f.prefix, b[:n]...), b[n:]
			if len(f.prefix) < 4 {
				return
			}
			f.length = int(binary.BigEndian.Uint32(f.prefix))
			f.left, f.prefix, f.head = f.length, f.prefix[:0], f.head[:0]
			continue
		}
		n := min(f.left, len(b))
		missing := min(headSize, f.length) - len(f.head)
		if missing > 0 {
			f.head = append(f.head, b[:min(missing, n)]...)
			if len(f.head) == min(headSize, f.length) {
				found(f.number, f.length, f.head)
			}
		}
		f.left, b = f.left-n, b[n:]
		if f.left == 0 {
			f.number++
		}
	}
}
