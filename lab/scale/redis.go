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

// startRedis starts one server that saves nothing.
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
		m := s.add(addr, program, "--port", port(addr), "--bind", host(addr), "--save", "", "--appendonly", "no", "--dir", dir)
		if err := s.start(m); err != nil {
			return err
		}
	}
	fronts, err := s.withProxies(addrs[:1], nil)
	if err != nil {
		return err
	}
	s.url = "redis://" + fronts[0]
	admin := goredis.NewClient(&goredis.Options{Addr: addrs[0]})
	s.close = func() { _ = admin.Close() }
	if err := await(ctx, "redis does not answer", func(ctx context.Context) error { return admin.Ping(ctx).Err() }); err != nil {
		return err
	}
	s.sample = func(ctx context.Context) (sample, error) { return s.sampleRedis(ctx, admin) }
	s.entries = func(ctx context.Context, name string) (int, error) {
		n, err := admin.HLen(ctx, "{"+name+"}//e").Result()
		return int(n), err
	}
	return nil
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
