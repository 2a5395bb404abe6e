//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// startEtcd starts a cluster of n members with default settings.
func (s *servers) startEtcd(ctx context.Context, program string, n int) error {
	addrs, err := freeAddresses(2 * n)
	if err != nil {
		return err
	}
	fronts, err := s.withProxies(addrs[:n], nil)
	if err != nil {
		return err
	}
	var initial []string
	for i := range n {
		initial = append(initial, fmt.Sprintf("m%d=http://%s", i, addrs[n+i]))
	}
	for i := range n {
		client, peer := "http://"+addrs[i], "http://"+addrs[n+i]
		m := s.add(addrs[i], program, fmt.Sprintf("--name=m%d", i), "--data-dir="+filepath.Join(s.dir, fmt.Sprintf("data%d", i)),
			"--listen-client-urls="+client, "--advertise-client-urls="+client,
			"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster="+strings.Join(initial, ","),
			"--metrics=extensive", "--log-level=fatal")
		if err := s.start(m); err != nil {
			return err
		}
	}
	s.url = "etcd://" + strings.Join(fronts, ",")
	s.healthy = s.etcdHealthy
	if err := await(ctx, "etcd does not answer", s.healthy); err != nil {
		return err
	}
	cli, err := clientv3.New(clientv3.Config{Endpoints: addrs[:n], Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	s.close = func() { _ = cli.Close() }
	var asked atomic.Int64
	s.sample = func(ctx context.Context) (sample, error) {
		now, err := s.sampleEtcd(ctx)
		now.requests -= float64(asked.Load())
		return now, err
	}
	s.leader = func(ctx context.Context) (*member, error) {
		for i, addr := range addrs[:n] {
			status, err := cli.Status(ctx, addr)
			if err != nil {
				return nil, err
			}
			if status.Leader == status.Header.MemberId {
				return s.members[i], nil
			}
		}
		return nil, errors.New("the cluster has no leader")
	}
	s.entries = func(ctx context.Context, name string) (int, error) {
		asked.Add(1)
		resp, err := cli.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		return int(resp.Count), nil
	}
	return nil
}

// etcdHealthy returns an error unless all members that run have a leader.
func (s *servers) etcdHealthy(ctx context.Context) error {
	for _, m := range s.members {
		if !m.running() {
			continue
		}
		resp, err := get(ctx, "http://"+m.addr+"/health")
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("etcd at %s: %s", m.addr, resp.Status)
		}
	}
	return nil
}

func get(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(req)
}

// sampleEtcd reads the counters. Renewals are not counted: they do not depend on the lines. A message
// on a watch counts as one, however many events it has.
func (s *servers) sampleEtcd(ctx context.Context) (now sample, err error) {
	now = sample{at: time.Now()}
	if now.cpu, err = s.cpu(); err != nil {
		return now, err
	}
	for _, m := range s.members {
		if !m.running() {
			continue
		}
		resp, err := get(ctx, "http://"+m.addr+"/metrics")
		if err != nil {
			return now, err
		}
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
				now.bytes += value
			}
		}
		err = lines.Err()
		_ = resp.Body.Close()
		if err != nil {
			return now, err
		}
	}
	return now, nil
}
