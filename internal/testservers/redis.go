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

// Redis is a redis-server process: single, a replica, or a node of a cluster.
//
// It persists nothing. After a restart it is empty, except for a cluster node's knowledge of its
// cluster.
type Redis struct {
	t      testing.TB // the test that owns the server, or nil
	binary string
	args   []string // precede the configuration file
	dir    string   // configuration, log and socket
	addr   string
	clock  *clockshim.Clock // nil for the system clock

	process *process // the last one started

	doMu sync.Mutex // held during a command of Do

	mu     sync.Mutex
	direct *respConn // connection of Do; nil before the first use and after Kill
}

// RedisUser is an ACL user with all permissions and without a password.
const RedisUser = "testservers"

// redisTimeout is the time limit for operations that normally complete at once. It is generous,
// because other tests may keep the machine busy.
const redisTimeout = 2 * time.Minute

// StartRedis starts a redis-server, waits until it is ready, and stops it when the test ends.
//
// Each element of config is a line of its configuration, for example "maxmemory-policy noeviction",
// and overrides the defaults. With "tls-cert-file …" among them, the port uses TLS.
//
// In any configuration the ACL user [RedisUser] has all permissions without a password. [Redis.Do]
// uses it.
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

// StartRedisWithClock starts a redis-server whose wall clock can be set while it runs, with
// [Redis.SetClockAhead]. It needs a C compiler for the clock shim. Without one the test is skipped, or
// fails as [Binary] describes.
func StartRedisWithClock(t testing.TB, config ...string) *Redis {
	t.Helper()
	return startRedis(t, 1, nil, adjustableClock(t), func(int) []string { return config })[0]
}

// startRedis starts n servers that are closed when the test ends: see newRedis.
func startRedis(t testing.TB, n int, args []string, clock *clockshim.Clock, config func(i int) []string) []*Redis {
	t.Helper()
	servers, err := newRedis(n, args, clock, config)
	Check(t, err)
	for _, r := range servers {
		r.t = t
	}
	closeWithTest(t, servers...)
	return servers
}

// newRedis starts n servers and waits until all are ready. args precede the configuration file on
// the command line. clock is their wall clock, or nil. config returns additional configuration
// lines of the i-th server.
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
		// t.TempDir contains the test's name and may exceed the length limit of unix socket paths.
		if r.dir, err = os.MkdirTemp("", "redis"); err != nil {
			return servers, err
		}
		servers = append(servers, r)
		// Another process may take a port before the server listens on it: then start over.
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
		"repl-diskless-sync no", // diskless sync would delay the replication stream by up to a second
	}
	if !slices.Contains(r.args, "--sentinel") {
		// Its connections come from 127.0.0.1, so it must announce its own address.
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

// Close kills the process and removes its files.
func (r *Redis) Close() error {
	r.closeConn()
	var err error
	if r.process.running() {
		err = r.process.kill()
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}

// Log returns the end of the server's log.
func (r *Redis) Log() string {
	return fmt.Sprintf("end of the log of redis at %s:\n%s", r.addr, tail(r.log(), 4<<10))
}

// Addr returns the address for clients, as host:port. It never changes.
func (r *Redis) Addr() string { return r.addr }

// Socket returns the path of the unix socket for clients. It does not use TLS.
func (r *Redis) Socket() string { return filepath.Join(r.dir, "sock") }

// Do runs a command, given as words, and returns the reply. The test fails if the command fails or
// the reply is nil. While the server is paused, Do blocks. All commands use one connection, so WAIT
// covers earlier commands. A command must not change the state of the connection, as SELECT and
// SUBSCRIBE do.
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

// Pause suspends the process with SIGSTOP until [Redis.Resume]. Its connections stay open.
func (r *Redis) Pause() {
	r.must("pause", r.process.pause())
}

// Resume continues a paused process.
func (r *Redis) Resume() {
	r.must("resume", r.process.resume())
}

// Kill kills the process with SIGKILL, also if it is paused, and waits until it is gone. Its data
// is lost.
func (r *Redis) Kill() {
	r.must("kill", r.process.kill())
	r.closeConn()
}

// Start starts the process again after [Redis.Kill], at the same address and without data, and
// waits until it is ready.
func (r *Redis) Start() {
	if r.process.running() {
		r.must("start", errors.New("already running"))
	}
	r.must("start", r.start())
	r.must("wait for", r.awaitReady())
}

// Restart kills the process and starts it again, at the same address and without data.
func (r *Redis) Restart() {
	r.Kill()
	r.Start()
}

// ReplicaOf makes the server a replica of master and waits until it is in sync. If master is nil,
// it makes the server a master.
func (r *Redis) ReplicaOf(master *Redis) {
	if master == nil {
		r.Do("REPLICAOF", "NO", "ONE")
		return
	}
	r.Do("REPLICAOF", Host(), master.port())
	r.await("to be in sync with its master", func() bool {
		// The master counts a replica only after it has acknowledged the data.
		return strings.Contains(r.info("replication"), "master_link_status:up") &&
			strings.Contains(master.info("replication"), "port="+r.port()+",state=online")
	})
}

// RunID returns the server's run ID, which changes with each start.
func (r *Redis) RunID() string {
	_, after, _ := strings.Cut(r.info("server"), "run_id:")
	id, _, _ := strings.Cut(after, "\r")
	return id
}

// SetClockAhead sets the wall clock of a server started by [StartRedisWithClock] ahead of the system clock
// by d, or behind it if d is negative.
func (r *Redis) SetClockAhead(d time.Duration) {
	if r.clock == nil {
		r.must("set the clock of", errors.New("it was not started by StartRedisWithClock"))
	}
	r.must("set the clock of", r.clock.Set(d))
	// The server reads the file at most once in 10 ms.
	r.await("to see its new clock", func() bool {
		sent := time.Now()
		words, err := r.Do("TIME").AsStrSlice()
		if err != nil || len(words) != 2 {
			return false
		}
		seconds, err := time.ParseDuration(words[0] + "s")
		// The server read its clock between sent and now, and rounded it down to a second.
		shown := time.Unix(0, 0).Add(seconds).Add(-d)
		return err == nil && shown.After(sent.Add(-2*time.Second)) && shown.Before(time.Now().Add(time.Second))
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

// await polls until is returns true, because redis does not notify clients of its state.
func (r *Redis) await(what string, done func() bool) {
	for end := time.Now().Add(redisTimeout); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			must(r.t, fmt.Errorf("redis at %s took more than %v %s", r.addr, redisTimeout, what))
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

// do runs a command on the existing connection or a new one.
func (r *Redis) do(words ...string) (Reply, error) {
	r.doMu.Lock()
	defer r.doMu.Unlock()
	deadline := time.Now().Add(redisTimeout) // a slow server is no reason to reconnect
	for {
		conn, isNew, err := r.connect(deadline)
		if err != nil {
			return Reply{}, err
		}
		reply, err := conn.do(deadline, words...)
		if _, refused := errors.AsType[replyError](err); err == nil || refused || errors.Is(err, errNil) {
			return reply, err
		}
		r.closeConn()
		// An existing connection may have been closed, for example by CLIENT KILL, which only use
		// reveals.
		if isNew || time.Now().After(deadline) {
			return Reply{}, err
		}
	}
}

// connect returns the connection for do, and whether it is new.
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

// closeConn closes the connection of do, if there is one.
func (r *Redis) closeConn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct != nil {
		_ = r.direct.Close()
		r.direct = nil
	}
}

// awaitReady polls, because redis does not notify clients when it is ready.
func (r *Redis) awaitReady() error {
	var last error
	for end := time.Now().Add(redisTimeout); time.Now().Before(end); {
		if _, last = r.do("PING"); last == nil {
			return nil
		}
		select {
		case <-r.process.done:
			if strings.Contains(tail(r.log(), 16<<10), "Address already in use") {
				return errPortTaken
			}
			return fmt.Errorf("it has exited: %s", r.process.exitReason())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("it is not ready after %v: %w", redisTimeout, last)
}
