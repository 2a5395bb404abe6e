//go:build linux

package nemesis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stilelock/stile/lab/torture/history"
)

func TestStrike_workers(t *testing.T) {
	s := newTestWorld(t, "redis")
	s.testWorkers[1].holds.Store(true)

	t.Run("holders first, each worker once", func(t *testing.T) {
		one := s.strike(t, "holder-pause", 1)
		if one.On != "w2" || one.Role != "holder" {
			t.Errorf("victim: got %s, role %q, want w2, holder", one.On, one.Role)
		}
		two := s.strike(t, "holder-cut", 1)
		if two.On == "w2" || two.Role != "" {
			t.Errorf("victim: got %s, role %q, want another worker, without role", two.On, two.Role)
		}
		three := s.strike(t, "holder-deaf", 1)
		if _, err := s.tryStrike("holder-pause", 1); err == nil {
			t.Error("a fourth fault got a victim, with three workers")
		}
		must(t, one.Heal())
		if again := s.strike(t, "holder-pause", 1); again.On != "w2" {
			t.Errorf("victim: got %s, want w2, which is healed", again.On)
		} else {
			must(t, again.Heal())
		}
		must(t, two.Heal())
		must(t, three.Heal())
	})

	t.Run("holder-pause", func(t *testing.T) {
		under, past := false, false
		for seed := range uint64(10) {
			st := s.strike(t, "holder-pause", seed)
			under, past = under || st.Duration < s.TTL, past || st.Duration > s.TTL*6/5
			pid := s.worker(st.On).Pid()
			if !stopped(pid) || !strings.Contains(st.What, "stopped for "+st.Duration.String()) {
				t.Errorf("%q: got process state %s, want T", st.What, state(pid))
			}
			must(t, st.Heal())
			eventually(t, "the process runs again", func() bool { return running(pid) })
		}
		if !under || !past {
			t.Errorf("of ten durations, one shorter than the TTL: %v, one longer: %v", under, past)
		}
	})

	for _, name := range []string{"holder-cut", "holder-deaf", "holder-late"} {
		t.Run(name, func(t *testing.T) {
			st := s.strike(t, name, 1)
			node := s.worker(st.On).node
			s.awaitReachable(t, node)
			s.awaitReachable(t, s.testWorkers[0].node, "s1")
			must(t, st.Heal())
			s.awaitReachable(t, node, "s1")
		})
	}

	t.Run("cpu-starve", func(t *testing.T) {
		on := map[string]bool{}
		for seed := uint64(0); len(on) < 2 && seed < 20; seed++ {
			st := s.strike(t, "cpu-starve", seed)
			on[st.On] = true
			pid := s.Cluster.Servers()[0].Pid()
			if st.On != "s1" {
				pid = s.worker(st.On).Pid()
			}
			eventually(t, "the process is stopped", func() bool { return stopped(pid) })
			eventually(t, "the process runs", func() bool { return running(pid) })
			eventually(t, "the process is stopped again", func() bool { return stopped(pid) })
			must(t, st.Heal())
			eventually(t, "the process runs after the heal", func() bool { return running(pid) })
			time.Sleep(2 * starvePeriod)
			if !running(pid) {
				t.Errorf("the process is stopped after the heal")
			}
		}
		if !on["s1"] || len(on) < 2 {
			t.Errorf("victims of twenty strikes: got %v, want a worker and the server", on)
		}
	})

	t.Run("holder-kill", func(t *testing.T) {
		st := s.strike(t, "holder-kill", 1)
		eventually(t, "the process has ended", func() bool { return !s.worker(st.On).alive() })
		if st.On != "w2" || st.Duration != 0 {
			t.Errorf("got victim %s, duration %v, want w2 and 0", st.On, st.Duration)
		}
		must(t, st.Heal())
	})
}

func TestStrike_servers(t *testing.T) {
	s := newTestWorld(t, "etcd3")
	worker := s.testWorkers[0].node

	t.Run("leader-pause", func(t *testing.T) {
		st, before := s.strikeLeader(t, "leader-pause")
		if st.Duration <= s.TTL || !stopped(before.Pid()) {
			t.Errorf("%s (%s) %s: got process state %s, want it stopped for longer than the TTL", st.On, st.Role, st.What, state(before.Pid()))
		}
		if s.leader() == before {
			t.Error("the stopped server still leads")
		}
		must(t, st.Heal())
		eventually(t, "the server runs again", func() bool { return running(before.Pid()) })
	})

	for _, name := range []string{"leader-isolate", "leader-mute", "leader-deaf"} {
		t.Run(name, func(t *testing.T) {
			st, before := s.strikeLeader(t, name)
			eventually(t, "another server leads", func() bool { return s.leader() != before })
			must(t, st.Heal())
			s.awaitReachable(t, worker, "s1", "s2", "s3")
		})
	}

	t.Run("leader-isolate, with the workers and without", func(t *testing.T) {
		with, without := false, false
		for seed := uint64(0); seed < 20 && !(with && without); seed++ {
			s.awaitAll()
			st := s.strike(t, "leader-isolate", seed)
			if strings.Contains(st.What, "workers") {
				with = true
				s.awaitReachable(t, worker, s.serversExcept(st.On)...)
			} else {
				without = true
				s.awaitReachable(t, worker, "s1", "s2", "s3")
			}
			must(t, st.Heal())
		}
		if !with || !without {
			t.Errorf("of twenty strikes, one cut it off from the workers: %v, one did not: %v", with, without)
		}
	})

	t.Run("follower-isolate", func(t *testing.T) {
		s.awaitAll()
		st := s.strike(t, "follower-isolate", 2)
		if leader := s.leader(); st.On == leader.Name() || st.Role != "follower" {
			t.Errorf("victim: got %s (%s), want a follower; the leader is %s", st.On, st.Role, leader)
		}
		s.awaitReachable(t, worker, s.serversExcept(st.On)...)
		must(t, st.Heal())
	})

	t.Run("leader-kill", func(t *testing.T) {
		st, before := s.strikeLeader(t, "leader-kill")
		if before.Running() || st.Duration == 0 {
			t.Errorf("%s was killed for %v: the leader %s runs: %v", st.On, st.Duration, before, before.Running())
		}
		eventually(t, "another server leads", func() bool { return s.leader() != before })
		must(t, st.Heal())
		must(t, before.AwaitReady(t.Context()))
	})

	t.Run("two faults affect two servers", func(t *testing.T) {
		s.awaitAll()
		one := s.strike(t, "leader-mute", 1)
		two := s.strike(t, "server-pause", 1)
		if one.On == two.On {
			t.Errorf("both faults affect %s", one.On)
		}
		must(t, two.Heal())
		must(t, one.Heal())
	})

	t.Run("server-kill", func(t *testing.T) {
		s.awaitAll()
		st := s.strike(t, "server-kill", 1)
		if s.server(st.On).Running() || st.Role == "" {
			t.Errorf("%s (role %q) runs", st.On, st.Role)
		}
		must(t, st.Heal())
		must(t, s.server(st.On).AwaitReady(t.Context()))
	})

	t.Run("server-isolate", func(t *testing.T) {
		s.awaitAll()
		st := s.strike(t, "server-isolate", 1)
		s.awaitReachable(t, worker, s.serversExcept(st.On)...)
		must(t, st.Heal())
	})
}

// put writes to an etcd server, and returns how long that took.
func put(ctx context.Context, addr string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v3/kv/put", strings.NewReader(`{"key":"aw=="}`))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("put: %s", res.Status)
	}
	return time.Since(began), nil
}

func TestStrike_disks(t *testing.T) {
	s := newTestWorld(t, "etcd")
	server := s.Cluster.Servers()[0]

	t.Run("server-slow-disk", func(t *testing.T) {
		st := s.strike(t, "server-slow-disk", 1)
		var delay time.Duration
		for word := range strings.FieldsSeq(st.What) {
			if d, err := time.ParseDuration(word); err == nil && delay == 0 {
				delay = d
			}
		}
		if took, err := put(t.Context(), server.Addr()); err != nil || delay < 50*time.Millisecond || took < delay {
			t.Errorf("%q: put took %v, %v", st.What, took, err)
		}
		must(t, st.Heal())
		if traced, err := tracedBy(server.Pid(), 0); err != nil || !traced {
			t.Errorf("without tracer after the heal: got %v, %v", traced, err)
		}
	})

	t.Run("server-full-disk", func(t *testing.T) {
		data, err := filepath.Glob(filepath.Join(testSite.Dir(), "etcd-*", "s1"))
		must(t, err)
		left := func() uint64 {
			var fs unix.Statfs_t
			must(t, unix.Statfs(data[0], &fs))
			return fs.Bavail
		}
		st := s.strike(t, "server-full-disk", 1)
		if left() > 0 {
			t.Errorf("got %d free blocks, want none", left())
		}
		must(t, server.Kill()) // it may also have ended by itself
		must(t, st.Heal())
		if left() == 0 || !server.Running() {
			t.Errorf("after the heal: %d free blocks, server runs: %v", left(), server.Running())
		}
		must(t, server.AwaitReady(t.Context()))
	})

	t.Run("evict and compact call the world's functions", func(t *testing.T) {
		if st := s.strike(t, "evict", 1); st.What != "deleted a/1" || st.On != "w1" || st.Lock != "a" || !slices.Equal(st.Took, []uint64{1}) || st.Duration != 0 {
			t.Errorf("%+v", st)
		}
		whole := map[bool]bool{}
		s.World.Evict = func(_ context.Context, all bool) (history.Fault, error) {
			whole[all] = true
			return history.Fault{What: "deleted"}, nil
		}
		for seed := range uint64(20) {
			s.strike(t, "evict", seed)
		}
		if len(whole) != 2 {
			t.Errorf("twenty evictions: got %v, want some of a whole line and some of one entry", whole)
		}
		s.World.Compact = func(context.Context) error { return io.ErrUnexpectedEOF }
		if _, err := s.tryStrike("compact", 1); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got error %v, want %v", err, io.ErrUnexpectedEOF)
		}
	})
}

// A client is a connection to a Redis server.
type client struct {
	t    *testing.T
	conn net.Conn
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(3*time.Minute)))
	return &client{t: t, conn: conn}
}

// do sends a command and returns the first line of the reply.
func (c *client) do(command string) (string, error) {
	if _, err := io.WriteString(c.conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c.conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func TestStrike_network(t *testing.T) {
	s := newTestWorld(t, "redis")
	addr, direct := s.Cluster.Addrs()[0], s.Cluster.DirectAddrs()[0]

	t.Run("slow-net", func(t *testing.T) {
		st := s.strike(t, "slow-net", 1)
		var oneWay time.Duration
		_, err := fmt.Sscanf(st.What, "everything takes %s", new(string))
		must(t, err)
		oneWay, err = time.ParseDuration(strings.Fields(st.What)[2])
		must(t, err)
		c, began := dial(t, addr), time.Now()
		if reply, err := c.do("PING"); err != nil || reply != "+PONG" || time.Since(began) < 2*oneWay {
			t.Errorf("%q: got reply %q, %v after %v", st.What, reply, err, time.Since(began))
		}
		must(t, st.Heal())
	})

	t.Run("reset", func(t *testing.T) {
		lost, plain := false, false
		for seed := uint64(0); seed < 20 && !(lost && plain); seed++ {
			c, key := dial(t, addr), fmt.Sprint("k", seed)
			_, err := c.do("PING")
			must(t, err)
			st := s.strike(t, "reset", seed)
			if st.Duration == 0 {
				plain = true
			} else {
				lost = true
				_, err := io.WriteString(c.conn, "SET "+key+" v\r\n")
				must(t, err)
				eventually(t, "the request has arrived", func() bool {
					reply, err := dial(t, direct).do("EXISTS " + key)
					return err == nil && reply == ":1"
				})
			}
			must(t, st.Heal())
			if n, err := c.conn.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: read %d bytes, want a reset", st.What, n)
			}
			if reply, err := dial(t, addr).do("PING"); err != nil || reply != "+PONG" {
				t.Errorf("new connection after the heal: got reply %q, %v", reply, err)
			}
		}
		if !lost || !plain {
			t.Errorf("of twenty strikes, one lost replies: %v, one did not: %v", lost, plain)
		}
	})
}

func TestStrike_redis(t *testing.T) {
	s := newTestWorld(t, "redlock3")

	t.Run("restart-empty", func(t *testing.T) {
		hit := map[int]bool{}
		for seed := uint64(0); seed < 20 && len(hit) < 2; seed++ {
			for _, addr := range s.Cluster.DirectAddrs() {
				_, err := dial(t, addr).do("SET k v")
				must(t, err)
			}
			st := s.strike(t, "restart-empty", seed)
			must(t, st.Heal())
			s.awaitAll()
			on := strings.Split(st.On, ",")
			hit[len(on)] = true
			for _, server := range s.Cluster.Servers() {
				reply, err := dial(t, server.Addr()).do("EXISTS k")
				want := ":1"
				if slices.Contains(on, server.Name()) {
					want = ":0"
				}
				if err != nil || reply != want {
					t.Errorf("%s restarted, EXISTS at %s: got %s, %v, want %s", st.On, server, reply, err, want)
				}
			}
		}
		if !hit[1] || !hit[2] {
			t.Errorf("numbers of victims in twenty strikes: got %v, want one and two", hit)
		}
	})

	t.Run("clock-jump", func(t *testing.T) {
		ttl := s.TTL
		s.TTL = time.Minute // the offsets must be larger than the time that a busy machine takes to read a clock
		defer func() { s.TTL = ttl }()
		ahead, behind := false, false
		for seed := uint64(0); seed < 20 && !(ahead && behind); seed++ {
			st := s.strike(t, "clock-jump", seed)
			ahead, behind = ahead || strings.Contains(st.What, "ahead"), behind || strings.Contains(st.What, "behind")
			for _, server := range s.Cluster.Servers() {
				off := s.clockOf(server.Addr())
				wrong := strings.Contains(st.What, "ahead") && off > s.TTL/4 || strings.Contains(st.What, "behind") && off < -s.TTL/4
				if wrong != slices.Contains(strings.Split(st.On, ","), server.Name()) {
					t.Errorf("%s, on %s: the clock of %s is off by %v", st.What, st.On, server, off)
				}
			}
			must(t, st.Heal())
			for _, server := range s.Cluster.Servers() {
				if off := s.clockOf(server.Addr()); off.Abs() > s.TTL/4 {
					t.Errorf("after the heal the clock of %s is off by %v", server, off)
				}
			}
		}
		if !ahead || !behind {
			t.Errorf("of twenty strikes, one set a clock ahead: %v, one behind: %v", ahead, behind)
		}
	})

	t.Run("server-kill", func(t *testing.T) {
		st := s.strike(t, "server-kill", 1)
		if st.Role != "" {
			t.Errorf("victim %s: got role %q, want none, as there is no leader", st.On, st.Role)
		}
		must(t, st.Heal())
		s.awaitAll()
	})
}

// clockOf returns the offset of a Redis server's clock from ours.
func (s *testWorld) clockOf(addr string) time.Duration {
	s.t.Helper()
	var seconds, micros int64
	conn := dial(s.t, addr).conn
	_, err := io.WriteString(conn, "TIME\r\n")
	must(s.t, err)
	var n, m int
	_, err = fmt.Fscanf(conn, "*2\r\n$%d\r\n%d\r\n$%d\r\n%d\r\n", &n, &seconds, &m, &micros)
	must(s.t, err)
	return time.Until(time.Unix(seconds, micros*1000))
}

// All faults that are possible on one cluster strike, until some have, and the run is canceled
// during the last.
func TestRun_healsEverything(t *testing.T) {
	s := newTestWorld(t, "etcd3")
	began := time.Now()
	s.Progress = func() int64 { return int64(time.Since(began)) } // increases all the time
	faults := slices.DeleteFunc(possible("etcd3"), func(f Fault) bool { return f.Name == "holder-kill" })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	struck := 0
	record := s.Record
	s.Record = func(e history.Event) {
		record(e)
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.Fault != nil {
			if struck++; struck == 5 {
				cancel()
			}
		}
	}
	Run(ctx, &s.World, faults, Schedule{Seed: 4, MeanPause: time.Millisecond})

	for _, e := range s.events {
		// While two faults affect two of three servers, or on a busy machine, there may be no
		// leader to pick.
		if e.Heal != nil && e.Heal.Err != "" && !strings.Contains(e.Heal.Err, "has no leader") {
			t.Errorf("fault %d: %s", e.Heal.ID, e.Heal.Err)
		}
	}
	if struck < 5 || len(s.events) != 2*struck {
		t.Errorf("got %d events, %d of them faults, want two for each of at least 5 faults", len(s.events), struck)
	}
	s.awaitAll()
	for _, server := range s.Cluster.Servers() {
		if traced, err := tracedBy(server.Pid(), 0); !running(server.Pid()) || err != nil || !traced {
			t.Errorf("%s: process state %s; without tracer: %v, %v", server, state(server.Pid()), traced, err)
		}
	}
	for _, w := range s.testWorkers {
		if !w.alive() || !running(w.Pid()) {
			t.Errorf("%s: process state %s", w.name, state(w.Pid()))
		}
		s.awaitReachable(t, w.node, "s1", "s2", "s3")
	}
}
