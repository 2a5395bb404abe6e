//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// startRedis starts n servers that save nothing. If there are several, the first is the master, the last
// a sentinel that promotes a replica, and there is no proxy.
func (s *servers) startRedis(ctx context.Context, program string, n int) error {
	addrs, err := freeAddresses(n)
	if err != nil {
		return err
	}
	for i, addr := range addrs {
		dir := filepath.Join(s.dir, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		args := []string{"--port", port(addr), "--bind", host(addr), "--save", "", "--appendonly", "no", "--dir", dir}
		switch {
		case i > 0 && i == n-1:
			file := filepath.Join(dir, "sentinel.conf")
			if err := os.WriteFile(file, []byte(sentinelConfig(addrs[0], addr, dir)), 0o600); err != nil {
				return err
			}
			args = []string{file, "--sentinel"}
		case i > 0:
			args = append(args, "--replicaof", host(addrs[0])+" "+port(addrs[0]), "--replica-announce-ip", host(addr))
		}
		m := s.add(addr, program, args...)
		if err := s.start(m); err != nil {
			return err
		}
	}
	if n == 1 {
		fronts, err := s.withProxies(addrs[:1], nil)
		if err != nil {
			return err
		}
		s.url = "redis://" + fronts[0]
	} else {
		sentinel := goredis.NewSentinelClient(&goredis.Options{Addr: addrs[n-1]})
		defer sentinel.Close()
		err := await(ctx, "the sentinel does not know the replicas", func(ctx context.Context) error {
			found, err := sentinel.Replicas(ctx, sentinelMaster).Result()
			if err == nil && (len(found) < n-2 || found[0]["flags"] != "slave" || found[0]["master-link-status"] != "ok") {
				err = fmt.Errorf("replicas: %v", found)
			}
			return err
		})
		if err != nil {
			return err
		}
		s.url = "redis+sentinel://" + addrs[n-1] + "/" + sentinelMaster
	}
	admin := goredis.NewClient(&goredis.Options{Addr: addrs[0]})
	s.close = func() { _ = admin.Close() }
	if err := await(ctx, "redis does not answer", func(ctx context.Context) error { return admin.Ping(ctx).Err() }); err != nil {
		return err
	}
	s.sample = func(ctx context.Context) (sample, error) { return s.sampleRedis(ctx, admin) }
	s.leader = func(context.Context) (*member, error) { return s.members[0], nil }
	s.entries = func(ctx context.Context, name string) (int, error) {
		waiters, err := admin.ZCard(ctx, "{"+name+"}//q").Result()
		if err != nil {
			return 0, err
		}
		holders, err := admin.ZCard(ctx, "{"+name+"}//h").Result()
		return int(waiters + holders), err
	}
	return nil
}

const sentinelMaster = "mymaster"

// sentinelConfig returns the configuration of a sentinel that considers the master down after a second. On a slow
// machine that may happen already while the servers start. The failover timeout is short, because the next failover
// begins only after twice that.
func sentinelConfig(master, addr, dir string) string {
	return strings.Join([]string{
		"port " + port(addr), "bind " + host(addr), "dir " + dir,
		"sentinel monitor " + sentinelMaster + " " + host(master) + " " + port(master) + " 1",
		"sentinel down-after-milliseconds " + sentinelMaster + " 1000",
		"sentinel failover-timeout " + sentinelMaster + " 3000",
	}, "\n") + "\n"
}

// scriptCommands are the commands with which a client runs a script. The others that it sends, such
// as SUBSCRIBE, do not depend on the lines, or cannot be told apart from those inside scripts.
var scriptCommands = map[string]bool{"eval": true, "evalsha": true, "fcall": true}

// sampleRedis reads the counters. A request is a script that a client runs; a renewal is one for each
// entry. A message is one that is published.
func (s *servers) sampleRedis(ctx context.Context, admin *goredis.Client) (now sample, err error) {
	now = sample{at: time.Now()}
	if now.cpu, err = s.cpu(); err != nil {
		return now, err
	}
	text, err := admin.InfoMap(ctx, "commandstats", "stats").Result()
	if err != nil {
		return now, err
	}
	for key, value := range text["Commandstats"] {
		name, ok := strings.CutPrefix(key, "cmdstat_")
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		n, err := strconv.ParseFloat(calls, 64)
		if !ok || err != nil {
			return now, fmt.Errorf("unexpected INFO commandstats: %s:%s", key, value)
		}
		switch {
		case scriptCommands[name]:
			now.requests += n
		case name == "publish" || name == "spublish":
			now.messages += n
		}
	}
	if now.bytes, err = strconv.ParseFloat(text["Stats"]["total_net_output_bytes"], 64); err != nil {
		return now, errors.New("INFO stats has no total_net_output_bytes")
	}
	return now, nil
}
