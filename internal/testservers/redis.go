package testservers

import (
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

	"github.com/stilelock/stile/internal/clockshim"
)

// Redis is a redis-server in a process of its own: alone, a replica, or a node of a cluster.
//
// It keeps nothing on disk: killed and started again it is empty, but for what a cluster's node knows of its cluster.
type Redis struct {
	t      testing.TB // the test that it belongs to; nil if it belongs to none
	binary string
	args   []string // before the configuration file
	dir    string   // configuration, log and socket
	addr   string
	clock  *clockshim.Clock // nil: the machine's

	process *process // the last one started

	asking sync.Mutex // is had by a command of Do's

	mu     sync.Mutex
	direct *respConn // for Do; nil until it is needed, and after Kill
}

// RedisUser is who may do everything, without a password.
const RedisUser = "testservers"

// redisPatience is how long a server may take for what it does at once. Machines that run tests may be very busy: only a
// server that does not do it at all takes longer.
const redisPatience = 2 * time.Minute

// StartRedis starts a redis-server, waits until it answers and stops it when the test ends.
//
// Each of config is a line of its configuration, "maxmemory-policy noeviction" for example, and wins over those given
// here. With "tls-cert-file …" among them, the port speaks TLS.
//
// Whatever the configuration demands of clients, the ACL user [RedisUser] may do everything without a password:
// [Redis.Do] speaks for it.
func StartRedis(t testing.TB, config ...string) *Redis {
	t.Helper()
	return startRedis(t, 1, nil, nil, func(int) []string { return config })[0]
}

// NewRedis is [StartRedis] for a server that belongs to no test.
func NewRedis(config ...string) (*Redis, error) {
	servers, err := newRedis(1, nil, nil, func(int) []string { return config })
	if err != nil {
		return nil, err
	}
	return servers[0], nil
}

// StartRedisAhead starts a redis-server whose wall clock can be set forward while it runs, with [Redis.SetAhead]. It needs
// a C compiler, for the few lines that stand between the server and the clock; without one the test is skipped.
func StartRedisAhead(t testing.TB, config ...string) *Redis {
	t.Helper()
	return startRedis(t, 1, nil, jumpingClock(t), func(int) []string { return config })[0]
}

// startRedis starts n servers that end with the test: see newRedis.
func startRedis(t testing.TB, n int, args []string, clock *clockshim.Clock, config func(i int) []string) []*Redis {
	t.Helper()
	servers, err := newRedis(n, args, clock, config)
	Check(t, err)
	for _, r := range servers {
		r.t = t
	}
	bind(t, servers...)
	return servers
}

// newRedis starts n servers and waits until all of them answer. args come before the configuration file on their
// command lines, clock is their wall clock or nil, and config returns what their configurations have beside the rest.
func newRedis(n int, args []string, clock *clockshim.Clock, config func(i int) []string) (servers []*Redis, err error) {
	binary, err := installed("redis-server")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w\n%s", err, logs(servers)), closeAll(servers))
		}
	}()
	for i := range n {
		r := &Redis{binary: binary, args: args, clock: clock}
		// The path of a unix socket has little room, less than the name of a test may take in t.TempDir.
		if r.dir, err = os.MkdirTemp("", "redis"); err != nil {
			return servers, err
		}
		servers = append(servers, r)
		// Another process may take a port between our looking and the server's listening: then begin again.
		for attempt := 1; ; attempt++ {
			if err = r.configure(config(i)); err == nil {
				err = r.start()
			}
			if err == nil {
				err = r.awaitReady()
			}
			if err == nil {
				break
			}
			if attempt == 5 || !errors.Is(err, errPortTaken) {
				return servers, fmt.Errorf("cannot start redis at %s: %w", r.addr, err)
			}
		}
	}
	return servers, nil
}

// configure chooses a port and writes the configuration.
func (r *Redis) configure(config []string) (err error) {
	if r.addr, err = NewAddress(); err != nil {
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
		lines = append(lines, "replica-announce-ip "+Host(), "user "+RedisUser+" on nopass ~* &* +@all")
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

// Close ends the process.
func (r *Redis) Close() error {
	r.hangUp()
	var err error
	if r.process.running() {
		err = r.process.kill()
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

// Log returns what the server logged last.
func (r *Redis) Log() string {
	return fmt.Sprintf("redis at %s logged last:\n%s", r.addr, tail(r.log(), 4<<10))
}

// Addr returns the address that clients connect to, as host:port. It never changes.
func (r *Redis) Addr() string { return r.addr }

// Socket returns the path of the unix socket on which it listens too, without TLS.
func (r *Redis) Socket() string { return filepath.Join(r.dir, "sock") }

// Do carries out a command, given word by word, and returns the reply. An error fails the test, as a reply that is nil
// does. It may be called while the server is paused, and then waits until it is not. All commands go through one connection,
// so that WAIT tells of those before it; none must change what the connection is, as SELECT and SUBSCRIBE do.
func (r *Redis) Do(words ...string) Reply {
	if r.t != nil {
		r.t.Helper()
	}
	reply, err := r.do(words...)
	if err != nil {
		must(r.t, fmt.Errorf("redis at %s: %s: %w", r.addr, strings.Join(words, " "), err))
	}
	return reply
}

// Pause stops the process where it is (SIGSTOP) until [Redis.Resume]. Its connections stay open.
func (r *Redis) Pause() {
	r.must("pause", r.process.pause())
}

// Resume lets a paused process go on.
func (r *Redis) Resume() {
	r.must("resume", r.process.resume())
}

// Kill ends the process with SIGKILL, paused or not, and returns when it is gone, with all that it knew.
func (r *Redis) Kill() {
	r.must("kill", r.process.kill())
	r.hangUp()
}

// Start starts the process again after [Redis.Kill], empty, at the same address, and returns when it answers.
func (r *Redis) Start() {
	if r.process.running() {
		r.must("start", errors.New("it is running already"))
	}
	r.must("start", r.start())
	r.must("wait for", r.awaitReady())
}

// Restart kills the process and starts it again, empty, at the same address.
func (r *Redis) Restart() {
	r.Kill()
	r.Start()
}

// ReplicaOf makes the server a replica of another, and returns when it has everything that the other had; or, if master
// is nil, a master again.
func (r *Redis) ReplicaOf(master *Redis) {
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
	_, after, _ := strings.Cut(r.info("server"), "run_id:")
	id, _, _ := strings.Cut(after, "\r")
	return id
}

// SetAhead sets the wall clock of a server started by [StartRedisAhead] so much ahead of the machine's, or, if d is
// negative, behind it.
func (r *Redis) SetAhead(d time.Duration) {
	if r.clock == nil {
		r.must("set the clock of", errors.New("StartRedisAhead has not started it"))
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
	text, err := r.Do("INFO", section).ToString()
	r.must("read the state of", err)
	return text
}

// await polls, because redis tells nobody of its states.
func (r *Redis) await(what string, is func() bool) {
	for end := time.Now().Add(redisPatience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			must(r.t, fmt.Errorf("redis at %s took more than %v %s", r.addr, redisPatience, what))
		}
	}
}

func (r *Redis) must(what string, err error) {
	if err != nil {
		must(r.t, fmt.Errorf("cannot %s redis at %s: %w", what, r.addr, err))
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

// do carries out a command on the connection that is there, or on a new one.
func (r *Redis) do(words ...string) (Reply, error) {
	r.asking.Lock()
	defer r.asking.Unlock()
	deadline := time.Now().Add(redisPatience) // that the server answers late is no reason to hang up
	for {
		conn, isNew, err := r.connect(deadline)
		if err != nil {
			return Reply{}, err
		}
		reply, err := conn.do(deadline, words...)
		if _, refused := errors.AsType[refusal](err); err == nil || refused || errors.Is(err, errNil) {
			return reply, err
		}
		r.hangUp()
		// An old connection may have been cut, by CLIENT KILL say, and nobody notices before it is used.
		if isNew || time.Now().After(deadline) {
			return Reply{}, err
		}
	}
}

// connect returns the connection for do, and whether it was made just now.
func (r *Redis) connect(deadline time.Time) (conn *respConn, isNew bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct != nil {
		return r.direct, false, nil
	}
	user := RedisUser
	if slices.Contains(r.args, "--sentinel") {
		user = ""
	}
	r.direct, err = dialRESP(r.Socket(), user, deadline)
	return r.direct, true, err
}

// hangUp closes the connection of do, if there is one.
func (r *Redis) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct != nil {
		_ = r.direct.Close()
		r.direct = nil
	}
}

// awaitReady polls, because redis has no event for "able to serve".
func (r *Redis) awaitReady() error {
	var last error
	for end := time.Now().Add(redisPatience); time.Now().Before(end); {
		if _, last = r.do("PING"); last == nil {
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
