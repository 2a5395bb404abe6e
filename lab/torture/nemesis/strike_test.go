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

func TestFaultsOfWorkers(t *testing.T) {
	s := newScene(t, "redis")
	s.idlers[1].holds.Store(true)

	t.Run("who holds is hit, and nobody twice", func(t *testing.T) {
		one := s.strike(t, "holder-pause", 1)
		if one.On != "w2" || one.Role != "holder" {
			t.Errorf("%s was hit as %q, want the holder w2", one.On, one.Role)
		}
		two := s.strike(t, "holder-cut", 1)
		if two.On == "w2" || two.Role != "" {
			t.Errorf("%s was hit as %q, want somebody else than w2, who holds nothing", two.On, two.Role)
		}
		three := s.strike(t, "holder-deaf", 1)
		if _, err := s.try("holder-pause", 1); err == nil {
			t.Error("a fourth fault hits one of three workers")
		}
		must(t, one.Heal())
		if again := s.strike(t, "holder-pause", 1); again.On != "w2" {
			t.Errorf("%s was hit, want w2, who is healed", again.On)
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
			under, past = under || st.For < s.TTL, past || st.For > s.TTL*6/5
			pid := s.idler(st.On).Pid()
			if !stopped(pid) || !strings.Contains(st.What, "stopped for "+st.For.String()) {
				t.Errorf("%q: its state is %s", st.What, state(pid))
			}
			must(t, st.Heal())
			eventually(t, "it runs again", func() bool { return running(pid) })
		}
		if !under || !past {
			t.Errorf("of ten one is under the TTL: %v, one past it: %v", under, past)
		}
	})

	for _, name := range []string{"holder-cut", "holder-deaf", "holder-late"} {
		t.Run(name, func(t *testing.T) {
			st := s.strike(t, name, 1)
			node := s.idler(st.On).node
			s.reachesOnly(t, node)
			s.reachesOnly(t, s.idlers[0].node, "s1")
			must(t, st.Heal())
			s.reachesOnly(t, node, "s1")
		})
	}

	t.Run("cpu-starve", func(t *testing.T) {
		on := map[string]bool{}
		for seed := uint64(0); len(on) < 2 && seed < 20; seed++ {
			st := s.strike(t, "cpu-starve", seed)
			on[st.On] = true
			pid := s.Cluster.Servers()[0].Pid()
			if st.On != "s1" {
				pid = s.idler(st.On).Pid()
			}
			eventually(t, "it stands still", func() bool { return stopped(pid) })
			eventually(t, "it runs", func() bool { return running(pid) })
			eventually(t, "it stands still again", func() bool { return stopped(pid) })
			must(t, st.Heal())
			eventually(t, "it runs, healed", func() bool { return running(pid) })
			time.Sleep(2 * period)
			if !running(pid) {
				t.Errorf("when healed it is stopped again")
			}
		}
		if !on["s1"] || len(on) < 2 {
			t.Errorf("in twenty times it hit %v, want a worker and the server", on)
		}
	})

	t.Run("holder-kill", func(t *testing.T) {
		st := s.strike(t, "holder-kill", 1)
		eventually(t, "it is dead", func() bool { return !s.idler(st.On).alive() })
		if st.On != "w2" || st.For != 0 {
			t.Errorf("%s is dead, for %v", st.On, st.For)
		}
		must(t, st.Heal())
	})
}

func TestFaultsOfServersThatElectALeader(t *testing.T) {
	s := newScene(t, "etcd3")
	worker := s.idlers[0].node

	t.Run("leader-pause", func(t *testing.T) {
		st, before := s.strikeLeader(t, "leader-pause")
		if st.For <= s.TTL || !stopped(before.Pid()) {
			t.Errorf("%s (%s) %s, its state is %s; want it stopped past the TTL", st.On, st.Role, st.What, state(before.Pid()))
		}
		if s.leader() == before {
			t.Error("who is stopped leads")
		}
		must(t, st.Heal())
		eventually(t, "it runs again", func() bool { return running(before.Pid()) })
	})

	for _, name := range []string{"leader-isolate", "leader-mute", "leader-deaf"} {
		t.Run(name, func(t *testing.T) {
			st, before := s.strikeLeader(t, name)
			eventually(t, "another one leads", func() bool { return s.leader() != before })
			must(t, st.Heal())
			s.reachesOnly(t, worker, "s1", "s2", "s3")
		})
	}

	t.Run("a leader is isolated with the workers or without", func(t *testing.T) {
		with, without := false, false
		for seed := uint64(0); seed < 20 && !(with && without); seed++ {
			s.awaitAll()
			st := s.strike(t, "leader-isolate", seed)
			if strings.Contains(st.What, "everybody") {
				with = true
				s.reachesOnly(t, worker, s.but(st.On)...)
			} else {
				without = true
				s.reachesOnly(t, worker, "s1", "s2", "s3")
			}
			must(t, st.Heal())
		}
		if !with || !without {
			t.Errorf("in twenty times it was cut off from the workers too: %v, or not: %v", with, without)
		}
	})

	t.Run("follower-isolate", func(t *testing.T) {
		s.awaitAll()
		st := s.strike(t, "follower-isolate", 2)
		if leader := s.leader(); st.On == leader.Name() || st.Role != "follower" {
			t.Errorf("%s (%s) was hit, want a follower; %s leads", st.On, st.Role, leader)
		}
		s.reachesOnly(t, worker, s.but(st.On)...)
		must(t, st.Heal())
	})

	t.Run("leader-kill", func(t *testing.T) {
		st, before := s.strikeLeader(t, "leader-kill")
		if before.Running() || st.For == 0 {
			t.Errorf("%s was killed for %v, and the leader %s runs: %v", st.On, st.For, before, before.Running())
		}
		eventually(t, "another one leads", func() bool { return s.leader() != before })
		must(t, st.Heal())
		must(t, before.AwaitReady(t.Context()))
	})

	t.Run("two faults hit two servers", func(t *testing.T) {
		s.awaitAll()
		one := s.strike(t, "leader-mute", 1)
		two := s.strike(t, "server-pause", 1)
		if one.On == two.On {
			t.Errorf("both hit %s", one.On)
		}
		must(t, two.Heal())
		must(t, one.Heal())
	})

	t.Run("server-kill", func(t *testing.T) {
		s.awaitAll()
		st := s.strike(t, "server-kill", 1)
		if s.server(st.On).Running() || st.Role == "" {
			t.Errorf("%s (%q) runs", st.On, st.Role)
		}
		must(t, st.Heal())
		must(t, s.server(st.On).AwaitReady(t.Context()))
	})

	t.Run("server-isolate", func(t *testing.T) {
		s.awaitAll()
		st := s.strike(t, "server-isolate", 1)
		s.reachesOnly(t, worker, s.but(st.On)...)
		must(t, st.Heal())
	})
}

// put writes to the etcd of a scene and returns how long it took.
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

func TestFaultsOfDisks(t *testing.T) {
	s := newScene(t, "etcd")
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
			t.Errorf("%q: a put takes %v, %v", st.What, took, err)
		}
		must(t, st.Heal())
		if traced, err := tracedBy(server.Pid(), 0); err != nil || !traced {
			t.Errorf("when healed nobody traces it: %v, %v", traced, err)
		}
	})

	t.Run("server-full-disk", func(t *testing.T) {
		data, err := filepath.Glob(filepath.Join(here.Dir(), "etcd-*", "s1"))
		must(t, err)
		left := func() uint64 {
			var fs unix.Statfs_t
			must(t, unix.Statfs(data[0], &fs))
			return fs.Bavail
		}
		st := s.strike(t, "server-full-disk", 1)
		if left() > 0 {
			t.Errorf("there is room for %d blocks", left())
		}
		must(t, server.Kill()) // as it may do by itself
		must(t, st.Heal())
		if left() == 0 || !server.Running() {
			t.Errorf("when healed there is room for %d blocks, and the server runs: %v", left(), server.Running())
		}
		must(t, server.AwaitReady(t.Context()))
	})

	t.Run("evict and compact are the harness's", func(t *testing.T) {
		if st := s.strike(t, "evict", 1); st.What != "deleted a/1" || st.On != "w1" || st.Lock != "a" || !slices.Equal(st.Took, []uint64{1}) || st.For != 0 {
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
			t.Errorf("of twenty evictions some should be of a whole line, and some of one entry: %v", whole)
		}
		s.World.Compact = func(context.Context) error { return io.ErrUnexpectedEOF }
		if _, err := s.try("compact", 1); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the error is %v", err)
		}
	})
}

// A client speaks to a Redis.
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

// says sends a command and returns the first line of the answer.
func (c *client) says(command string) (string, error) {
	if _, err := io.WriteString(c.conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c.conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func TestFaultsOfTheNetwork(t *testing.T) {
	s := newScene(t, "redis")
	addr, direct := s.Cluster.Addrs()[0], s.Cluster.DirectAddrs()[0]

	t.Run("slow-net", func(t *testing.T) {
		st := s.strike(t, "slow-net", 1)
		var oneWay time.Duration
		_, err := fmt.Sscanf(st.What, "everything takes %s", new(string))
		must(t, err)
		oneWay, err = time.ParseDuration(strings.Fields(st.What)[2])
		must(t, err)
		c, began := dial(t, addr), time.Now()
		if answer, err := c.says("PING"); err != nil || answer != "+PONG" || time.Since(began) < 2*oneWay {
			t.Errorf("%q: after %v it answers %q, %v", st.What, time.Since(began), answer, err)
		}
		must(t, st.Heal())
	})

	t.Run("reset", func(t *testing.T) {
		lost, plain := false, false
		for seed := uint64(0); seed < 20 && !(lost && plain); seed++ {
			c, key := dial(t, addr), fmt.Sprint("k", seed)
			_, err := c.says("PING")
			must(t, err)
			st := s.strike(t, "reset", seed)
			if st.For == 0 {
				plain = true
			} else {
				lost = true
				_, err := io.WriteString(c.conn, "SET "+key+" v\r\n")
				must(t, err)
				eventually(t, "the request has arrived", func() bool {
					answer, err := dial(t, direct).says("EXISTS " + key)
					return err == nil && answer == ":1"
				})
			}
			must(t, st.Heal())
			if n, err := c.conn.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: %d bytes came, want a reset", st.What, n)
			}
			if answer, err := dial(t, addr).says("PING"); err != nil || answer != "+PONG" {
				t.Errorf("when healed a new connection answers %q, %v", answer, err)
			}
		}
		if !lost || !plain {
			t.Errorf("in twenty times replies were lost: %v, were not: %v", lost, plain)
		}
	})
}

func TestFaultsOfRedis(t *testing.T) {
	s := newScene(t, "redlock3")

	t.Run("restart-empty", func(t *testing.T) {
		hit := map[int]bool{}
		for seed := uint64(0); seed < 20 && len(hit) < 2; seed++ {
			for _, addr := range s.Cluster.DirectAddrs() {
				_, err := dial(t, addr).says("SET k v")
				must(t, err)
			}
			st := s.strike(t, "restart-empty", seed)
			must(t, st.Heal())
			s.awaitAll()
			on := strings.Split(st.On, ",")
			hit[len(on)] = true
			for _, server := range s.Cluster.Servers() {
				answer, err := dial(t, server.Addr()).says("EXISTS k")
				want := ":1"
				if slices.Contains(on, server.Name()) {
					want = ":0"
				}
				if err != nil || answer != want {
					t.Errorf("%s were restarted, and EXISTS at %s says %s, %v, want %s", st.On, server, answer, err, want)
				}
			}
		}
		if !hit[1] || !hit[2] {
			t.Errorf("in twenty times so many were hit: %v, want one or two", hit)
		}
	})

	t.Run("clock-jump", func(t *testing.T) {
		ttl := s.TTL
		s.TTL = time.Minute // what a clock is off by must be more than what a busy machine takes to ask it
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
					t.Errorf("when healed the clock of %s is off by %v", server, off)
				}
			}
		}
		if !ahead || !behind {
			t.Errorf("in twenty times a clock jumped ahead: %v, back: %v", ahead, behind)
		}
	})

	t.Run("server-kill", func(t *testing.T) {
		st := s.strike(t, "server-kill", 1)
		if st.Role != "" {
			t.Errorf("%s was hit as %q, where nobody leads", st.On, st.Role)
		}
		must(t, st.Heal())
		s.awaitAll()
	})
}

// clockOf returns how much the clock of a Redis is ahead of ours.
func (s *scene) clockOf(addr string) time.Duration {
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

// Everything that there is on one cluster, until there have been some faults, and an end in the middle of the last.
func TestARunLeavesEverythingHealed(t *testing.T) {
	s := newScene(t, "etcd3")
	began := time.Now()
	s.Progress = func() int64 { return int64(time.Since(began)) } // all the time
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
		// While two faults hit two of three servers, and on a busy machine, no leader may be found to be hit.
		if e.Heal != nil && e.Heal.Err != "" && !strings.Contains(e.Heal.Err, "has no leader") {
			t.Errorf("fault %d: %s", e.Heal.ID, e.Heal.Err)
		}
	}
	if struck < 5 || len(s.events) != 2*struck {
		t.Errorf("%d events are recorded, %d of them faults", len(s.events), struck)
	}
	s.awaitAll()
	for _, server := range s.Cluster.Servers() {
		if traced, err := tracedBy(server.Pid(), 0); !running(server.Pid()) || err != nil || !traced {
			t.Errorf("the state of %s is %s; nobody traces it: %v, %v", server, state(server.Pid()), traced, err)
		}
	}
	for _, i := range s.idlers {
		if !i.alive() || !running(i.Pid()) {
			t.Errorf("the state of %s is %s", i.name, state(i.Pid()))
		}
		s.reachesOnly(t, i.node, "s1", "s2", "s3")
	}
}
