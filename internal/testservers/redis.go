package testservers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/internal/clockshim"
)

// Redis is a redis-server in a process of its own: alone, a replica, or a node of a cluster.
//
// It keeps nothing on disk: killed and started again it is empty, but for what a cluster's node knows of its cluster.
type Redis struct {
	t      testing.TB
	binary string
	args   []string // before the configuration file
	dir    string   // configuration, log and socket
	addr   string
	clock  *clockshim.Clock // nil: the machine's

	process *process // the last one started

	mu     sync.Mutex
	direct rueidis.Client // for Do; nil until it is needed, and after Kill
}

// redisPatience is how long a server may take for what it does at once. Machines that run tests may be very busy: only a
// server that does not do it at all takes longer.
const redisPatience = 2 * time.Minute

// StartRedis starts a redis-server, waits until it answers and stops it when the test ends.
//
// Each of config is a line of its configuration, "maxmemory-policy noeviction" for example, and wins over those given
// here. With "tls-cert-file …" among them, the port speaks TLS.
//
// Whatever the configuration demands of clients, the ACL user "testservers" may do everything without a password:
// [Redis.Client] and [Redis.Do] speak for it.
func StartRedis(t testing.TB, config ...string) *Redis {
	t.Helper()
	return startRedis(t, 1, nil, nil, func(int) []string { return config })[0]
}

// StartRedisAhead starts a redis-server whose wall clock can be set forward while it runs, with [Redis.SetAhead]. It needs
// a C compiler, for the few lines that stand between the server and the clock; without one the test is skipped.
func StartRedisAhead(t testing.TB, config ...string) *Redis {
	t.Helper()
	return startRedis(t, 1, nil, jumpingClock(t), func(int) []string { return config })[0]
}

// startRedis starts n servers and waits until all of them answer. args come before the configuration file on their
// command lines, clock is their wall clock or nil, and config returns what their configurations have beside the rest.
func startRedis(t testing.TB, n int, args []string, clock *clockshim.Clock, config func(i int) []string) []*Redis {
	t.Helper()
	binary := installed(t, "redis-server")
	// The path of a unix socket has little room, less than the name of a test may take in t.TempDir.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	servers := make([]*Redis, n)
	t.Cleanup(func() { cleanUpRedis(servers) })
	for i := range servers {
		r := &Redis{t: t, binary: binary, args: args, clock: clock, dir: filepath.Join(dir, fmt.Sprint(i+1))}
		servers[i] = r
		r.must("prepare", os.Mkdir(r.dir, 0o700))
		// Another process may take a port between our looking and the server's listening: then begin again.
		for attempt := 1; ; attempt++ {
			r.must("configure", r.configure(config(i)))
			r.must("start", r.start())
			err := r.awaitReady()
			if err == nil {
				break
			}
			if attempt == 5 || !errors.Is(err, errPortTaken) {
				r.must("start", err)
			}
		}
	}
	return servers
}

// configure chooses a port and writes the configuration.
func (r *Redis) configure(config []string) (err error) {
	if r.addr, err = freePort(); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(r.addr)
	if err != nil {
		return err
	}
	listen := "port " + port
	if slices.ContainsFunc(config, func(line string) bool { return strings.HasPrefix(line, "tls-cert-file ") }) {
		listen = "port 0\ntls-port " + port
	}
	lines := []string{
		"bind " + Host(),
		listen,
		"unixsocket " + r.Socket(),
		"dir " + r.dir,
		"save \"\"",
		"appendonly no",
		"enable-debug-command yes",
		"repl-diskless-sync no", // with which a replica would not be sent anything new for up to a second
	}
	if !slices.Contains(r.args, "--sentinel") {
		// To itself it is at 127.0.0.1, whence its connections come; others are to know it by its address.
		lines = append(lines, "replica-announce-ip "+Host(), "user testservers on nopass ~* &* +@all")
	} else {
		lines = append(lines, "sentinel announce-ip "+Host())
		lines = slices.DeleteFunc(lines, func(line string) bool {
			return strings.HasPrefix(line, "save") || strings.HasPrefix(line, "append") ||
				strings.HasPrefix(line, "enable-") || strings.HasPrefix(line, "repl-")
		})
	}
	lines = append(lines, config...)
	return os.WriteFile(r.configFile(), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

// cleanUpRedis shows the logs if the test failed, and ends the processes.
func cleanUpRedis(servers []*Redis) {
	for _, r := range servers {
		if r == nil || r.process == nil {
			continue
		}
		r.hangUp()
		if r.process.running() {
			if err := r.process.kill(); err != nil {
				r.t.Errorf("testservers: %v", err)
			}
		}
		if r.t.Failed() {
			r.t.Logf("redis at %s said last:\n%s", r.addr, tail(r.log(), 4<<10))
		}
	}
}

// Addr returns the address that clients connect to, as host:port. It never changes.
func (r *Redis) Addr() string { return r.addr }

// Socket returns the path of the unix socket on which it listens too, without TLS.
func (r *Redis) Socket() string { return filepath.Join(r.dir, "sock") }

// Client returns a client that may do everything, and is closed when t ends. It comes through the unix socket.
func (r *Redis) Client(t testing.TB) rueidis.Client {
	t.Helper()
	cli, err := r.connect("testservers")
	if err != nil {
		t.Fatalf("testservers: client of redis at %s: %v", r.addr, err)
	}
	t.Cleanup(cli.Close)
	return cli
}

// Do carries out a command, given word by word, and returns the reply. An error fails the test. It may be called while the
// server is paused, and then waits until it is not. All commands go through one connection, so that WAIT tells of those
// before it; none must change what the connection is, as SELECT and SUBSCRIBE do.
func (r *Redis) Do(words ...string) *rueidis.RedisMessage {
	r.t.Helper()
	reply, err := r.do(r.t.Context(), words...)
	if err != nil {
		r.t.Fatalf("testservers: redis at %s: %s: %v", r.addr, strings.Join(words, " "), err)
	}
	return &reply
}

// Pause stops the process where it is (SIGSTOP) until [Redis.Resume]. Its connections stay open.
func (r *Redis) Pause() {
	r.t.Helper()
	r.must("pause", r.process.pause())
}

// Resume lets a paused process go on.
func (r *Redis) Resume() {
	r.t.Helper()
	r.must("resume", r.process.resume())
}

// Kill ends the process with SIGKILL, paused or not, and returns when it is gone, with all that it knew.
func (r *Redis) Kill() {
	r.t.Helper()
	r.must("kill", r.process.kill())
	r.hangUp()
}

// Start starts the process again after [Redis.Kill], empty, at the same address, and returns when it answers.
func (r *Redis) Start() {
	r.t.Helper()
	if r.process.running() {
		r.t.Fatalf("testservers: redis at %s is running already", r.addr)
	}
	r.must("start", r.start())
	r.must("wait for", r.awaitReady())
}

// Restart kills the process and starts it again, empty, at the same address.
func (r *Redis) Restart() {
	r.t.Helper()
	r.Kill()
	r.Start()
}

// ReplicaOf makes the server a replica of another, and returns when it has everything that the other had; or, if master
// is nil, a master again.
func (r *Redis) ReplicaOf(master *Redis) {
	r.t.Helper()
	if master == nil {
		r.Do("REPLICAOF", "NO", "ONE")
		return
	}
	r.Do("REPLICAOF", Host(), master.port())
	r.await("to be in step with its master", func() bool {
		// A replica that has everything does not count until the master has heard so.
		return strings.Contains(r.info("replication"), "master_link_status:up") &&
			strings.Contains(master.info("replication"), "port="+r.port()+",state=online")
	})
}

// RunID returns what the server calls itself, anew with each start.
func (r *Redis) RunID() string {
	r.t.Helper()
	_, after, _ := strings.Cut(r.info("server"), "run_id:")
	id, _, _ := strings.Cut(after, "\r")
	return id
}

// SetAhead sets the wall clock of a server started by [StartRedisAhead] so much ahead of the machine's, or, if d is
// negative, behind it.
func (r *Redis) SetAhead(d time.Duration) {
	r.t.Helper()
	if r.clock == nil {
		r.t.Fatal("testservers: SetAhead needs a server started by StartRedisAhead")
	}
	r.must("set the clock of", r.clock.Set(d))
	// The server looks at the file at most once in ten milliseconds.
	r.await("to see its new clock", func() bool {
		begun := time.Now()
		words, err := r.Do("TIME").AsStrSlice()
		if err != nil || len(words) != 2 {
			return false
		}
		seconds, err := time.ParseDuration(words[0] + "s")
		// It has read its clock between our question and now, however long that took, and rounded it down.
		shown := time.Unix(0, 0).Add(seconds).Add(-d)
		return err == nil && shown.After(begun.Add(-2*time.Second)) && shown.Before(time.Now().Add(time.Second))
	})
}

func (r *Redis) port() string {
	_, port, _ := net.SplitHostPort(r.addr)
	return port
}

func (r *Redis) info(section string) string {
	r.t.Helper()
	text, err := r.Do("INFO", section).ToString()
	r.must("read the state of", err)
	return text
}

// await polls, because redis tells nobody of its states.
func (r *Redis) await(what string, is func() bool) {
	r.t.Helper()
	for end := time.Now().Add(redisPatience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("testservers: redis at %s took more than %v %s", r.addr, redisPatience, what)
		}
	}
}

func (r *Redis) must(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("testservers: cannot %s redis at %s: %v\n%s", what, r.addr, err, tail(r.log(), 2<<10))
	}
}

func (r *Redis) configFile() string { return filepath.Join(r.dir, "redis.conf") }
func (r *Redis) log() string        { return filepath.Join(r.dir, "log") }

func (r *Redis) start() (err error) {
	args := append([]string{r.configFile()}, r.args...)
	var env []string
	if r.clock != nil {
		env = r.clock.Env()
	}
	r.process, err = startProcess(r.binary, args, r.log(), env...)
	return err
}

// connect makes a client for a user without a password, through the unix socket.
func (r *Redis) connect(user string) (rueidis.Client, error) {
	if slices.Contains(r.args, "--sentinel") {
		user = ""
	}
	return rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{r.Socket()},
		DialCtxFn: func(ctx context.Context, _ string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", r.Socket())
		},
		Username:          user,
		ForceSingleClient: true,
		DisableCache:      true,
		DisableRetry:      true,
		PipelineMultiplex: -1,
		ConnWriteTimeout:  redisPatience, // that the server answers late is no reason to hang up
	})
}

// do carries out a command on the connection that is there, or on a new one.
func (r *Redis) do(ctx context.Context, words ...string) (rueidis.RedisMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	for {
		cli, isNew, err := r.dialOnce()
		if err != nil {
			return rueidis.RedisMessage{}, err
		}
		reply, err := cli.Do(ctx, cli.B().Arbitrary(words...).Build()).ToMessage()
		if _, said := rueidis.IsRedisErr(err); err == nil || said || rueidis.IsRedisNil(err) {
			return reply, err
		}
		r.drop(cli)
		// An old connection may have been cut, by CLIENT KILL say, and nobody notices before it is used.
		if isNew || ctx.Err() != nil {
			return reply, err
		}
	}
}

// dialOnce returns the client for do, and whether it was made just now.
func (r *Redis) dialOnce() (cli rueidis.Client, isNew bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct != nil {
		return r.direct, false, nil
	}
	r.direct, err = r.connect("testservers")
	return r.direct, true, err
}

// drop closes a client of do's that is of no use any more.
func (r *Redis) drop(cli rueidis.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct == cli {
		r.direct = nil
		cli.Close()
	}
}

// hangUp closes the connection of do, if there is one.
func (r *Redis) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct != nil {
		r.direct.Close()
		r.direct = nil
	}
}

// awaitReady polls, because redis has no event for "able to serve".
func (r *Redis) awaitReady() error {
	var last error
	for end := time.Now().Add(redisPatience); time.Now().Before(end); {
		if _, last = r.do(context.Background(), "PING"); last == nil {
			return nil
		}
		select {
		case <-r.process.done:
			if strings.Contains(tail(r.log(), 16<<10), "Address already in use") {
				return errPortTaken
			}
			return fmt.Errorf("it has ended: %s", r.process.how())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("it is not ready after %v: %w", redisPatience, last)
}
