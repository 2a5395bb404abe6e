package testservers

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ZooKeeper is a ZooKeeper server process, single or a member of a [ZooKeeperEnsemble].
//
// It runs the Debian package libzookeeper-java with the java on the PATH. It does not fsync its
// data. This loses nothing when the process is killed, and saves tests from waiting for the disk.
type ZooKeeper struct {
	t      testing.TB // the test that owns the server, or nil
	id     int        // 1, 2 and so on
	java   string
	dir    string // data, configuration and log
	config []string

	client, quorum, election string // addresses

	proxies map[int]*Proxy // to the quorum ports of the other members, by id
	process *process       // the last one started
}

// zkTimeout is how long to wait until servers are ready or have elected a leader. On a busy machine
// a server may need a minute to start.
const zkTimeout = 4 * time.Minute

// zkJars is Debian's directory of Java libraries.
const zkJars = "/usr/share/java"

// ClassPath returns the class path of the named libraries from Debian packages, such as
// "curator-recipes". If a library is not installed, the error is one for [Check].
func ClassPath(libraries ...string) (string, error) {
	paths := make([]string, 0, len(libraries))
	for _, name := range libraries {
		path := filepath.Join(zkJars, name+".jar")
		if _, err := os.Stat(path); err != nil {
			return "", &missingError{name, path, "run `make servers`"}
		}
		paths = append(paths, path)
	}
	return strings.Join(paths, string(filepath.ListSeparator)), nil
}

// Java returns the path of java. If the compiler is installed too, java can run source files. If
// java is not installed, the error is one for [Check].
func Java() (string, error) { return installed("java") }

// StartZooKeeper starts a single ZooKeeper server, waits until it is ready, and stops it when the
// test ends.
//
// Its tick is 100 ms, and it grants session timeouts from 1 s to 60 s. Each element of config is a
// line of its configuration and overrides the defaults. All four-letter words are enabled.
func StartZooKeeper(t testing.TB, config ...string) *ZooKeeper {
	t.Helper()
	z, err := NewZooKeeper(config...)
	Check(t, err)
	z.t = t
	closeWithTest(t, z)
	return z
}

// NewZooKeeper is [StartZooKeeper] for a server that belongs to no test.
func NewZooKeeper(config ...string) (*ZooKeeper, error) {
	config = append([]string{"tickTime=100", "initLimit=100", "syncLimit=100"}, config...)
	members, err := startZooKeepers(1, config)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// startZooKeepers starts an ensemble of n servers and waits until all are ready.
func startZooKeepers(n int, config []string) ([]*ZooKeeper, error) {
	java, err := Java()
	if err != nil {
		return nil, err
	}
	if _, err := ClassPath("zookeeper"); err != nil {
		return nil, err
	}
	// Another process may take a port before the server listens on it: then start over.
	for attempt := 1; ; attempt++ {
		members, err := newZooKeepers(n, java, config)
		if err == nil {
			err = launchZooKeepers(members)
		}
		if err == nil {
			return members, nil
		}
		again := attempt < 5 && errors.Is(err, errPortTaken)
		if !again {
			err = fmt.Errorf("%w\n%s", err, logs(members))
		}
		if err := errors.Join(err, closeAll(members)); !again {
			return nil, err
		}
	}
}

// newZooKeepers prepares n servers. The caller must close the returned servers also after an error.
func newZooKeepers(n int, java string, config []string) (members []*ZooKeeper, err error) {
	for i := range n {
		z := &ZooKeeper{id: i + 1, java: java, config: config, proxies: make(map[int]*Proxy)}
		if z.dir, err = os.MkdirTemp("", "zookeeper"); err != nil {
			return members, err
		}
		members = append(members, z)
		for _, addr := range []*string{&z.client, &z.quorum, &z.election} {
			if *addr, err = NewAddress(); err != nil {
				return members, err
			}
		}
	}
	for _, z := range members {
		for _, other := range members {
			if other == z {
				continue
			}
			if z.proxies[other.id], err = newProxy(other.quorum); err != nil {
				return members, err
			}
			// A follower often decides before the leader, whose port is closed then, and tries again for this long.
			// If the proxy accepted and reset its connection, the follower would start another election, while the
			// leader waits for it in vain for all of initLimit.
			z.proxies[other.id].WaitForServer(10 * time.Second)
		}
		if err := z.writeFiles(members); err != nil {
			return members, err
		}
	}
	return members, nil
}

// writeFiles writes the server's configuration. Followers connect to the quorum port of their
// leader, so each server is configured with its own proxies as the quorum ports of the others.
func (z *ZooKeeper) writeFiles(members []*ZooKeeper) error {
	data := filepath.Join(z.dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "myid"), []byte(fmt.Sprint(z.id)), 0o600); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(z.client)
	if err != nil {
		return err
	}
	lines := []string{
		"dataDir=" + data,
		"clientPort=" + port,
		"clientPortAddress=" + host,
		"maxClientCnxns=0",
		"minSessionTimeout=1000",
		"maxSessionTimeout=1800000",
		"admin.enableServer=false",
		"4lw.commands.whitelist=*",
	}
	for _, other := range members {
		if len(members) == 1 {
			break
		}
		quorum := other.quorum
		if other != z {
			quorum = z.proxies[other.id].Addr()
		}
		_, election, err := net.SplitHostPort(other.election)
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("server.%d=%s:%s", other.id, quorum, election))
	}
	text := strings.Join(append(lines, z.config...), "\n") + "\n"
	return os.WriteFile(z.configFile(), []byte(text), 0o600)
}

func launchZooKeepers(members []*ZooKeeper) error {
	for _, z := range members {
		if err := z.start(); err != nil {
			return err
		}
	}
	for _, z := range members {
		if err := z.awaitReady(); err != nil {
			return err
		}
	}
	return nil
}

// Close kills the process and removes its data.
func (z *ZooKeeper) Close() error {
	var err error
	if z.process.running() {
		err = z.process.kill()
	}
	for _, proxy := range z.proxies {
		if proxy != nil {
			proxy.Close()
		}
	}
	return errors.Join(err, os.RemoveAll(z.dir))
}

// Log returns the end of the server's log.
func (z *ZooKeeper) Log() string {
	return fmt.Sprintf("end of the log of zookeeper %d at %s:\n%s", z.id, z.client, tail(z.log(), 4<<10))
}

// Endpoint returns the address for clients, as host:port. It never changes.
func (z *ZooKeeper) Endpoint() string { return z.client }

// Pause suspends the process with SIGSTOP until [ZooKeeper.Resume]. Its connections stay open, and
// the kernel still accepts new ones, as for a hung server.
func (z *ZooKeeper) Pause() {
	z.must("pause", z.process.pause())
}

// Resume continues a paused process.
func (z *ZooKeeper) Resume() {
	z.must("resume", z.process.resume())
}

// Kill kills the process with SIGKILL, also if it is paused, and waits until it is gone. Its data
// stays.
func (z *ZooKeeper) Kill() {
	z.must("kill", z.process.kill())
}

// Start starts the process again after Kill, with the same data and addresses. It does not wait
// until the server is ready, because a member cannot become ready without a majority. See
// [ZooKeeper.AwaitReady].
func (z *ZooKeeper) Start() {
	if z.process.running() {
		z.must("start", errors.New("already running"))
	}
	z.must("start", z.start())
}

// AwaitReady waits until the server serves clients: alone, or as the leader or a follower of a
// majority. The test fails after four minutes.
func (z *ZooKeeper) AwaitReady() {
	z.must("wait for", z.awaitReady())
}

// Restart kills the process if it is running, starts it again with the same data and addresses, and
// waits until it is ready.
func (z *ZooKeeper) Restart() {
	if z.process.running() {
		z.Kill()
	}
	z.Start()
	z.AwaitReady()
}

// CutOff holds all traffic between this member and the others, except for election messages. A
// follower continues to serve its clients and answer their pings until its syncLimit has passed.
// See [ZooKeeper.Reconnect].
func (z *ZooKeeper) CutOff() {
	for _, proxy := range z.proxies {
		proxy.Hold()
	}
}

// Reconnect ends [ZooKeeper.CutOff]. It resets the connections and loses the held data, as after a
// network partition.
func (z *ZooKeeper) Reconnect() {
	for _, proxy := range z.proxies {
		proxy.Reset()
		proxy.Release()
	}
}

// Say sends a four-letter word, for example "srvr", and returns the server's reply. The reply may
// be empty, for example while the server is starting.
func (z *ZooKeeper) Say(word string) (string, error) { return z.say(word, 20*time.Second) }

func (z *ZooKeeper) say(word string, timeout time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", z.client, timeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// mode returns "standalone", "leader" or "follower", or the empty string if the server is not
// ready.
func (z *ZooKeeper) mode() string {
	answer, err := z.say("srvr", 2*time.Second) // a server that is starting may never reply
	if err != nil {
		return ""
	}
	_, mode, _ := strings.Cut(answer, "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}

func (z *ZooKeeper) must(what string, err error) {
	if err != nil {
		must(z.t, fmt.Errorf("cannot %s zookeeper %d: %w", what, z.id, err))
	}
}

func (z *ZooKeeper) start() (err error) {
	// The jar's manifest lists its dependencies except those of TLS.
	jars := []string{"zookeeper", "slf4j-simple", "netty-codec", "netty-resolver", "netty-transport-native-unix-common"}
	for i, jar := range jars {
		jars[i] = filepath.Join(zkJars, jar+".jar")
	}
	z.process, err = startProcess(z.java, []string{
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", // halves the start time
		"-Dzookeeper.forceSync=no",
		// Servers that look for a leader repeat their votes after 0.2 s, 0.4 s and so on, by default up to 60 s
		// (ZOOKEEPER-3218). When several have failed, an election would take minutes.
		"-Dzookeeper.fastleader.maxNotificationInterval=1000",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", strings.Join(jars, string(filepath.ListSeparator)),
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", z.configFile(),
	}, z.log())
	return err
}

func (z *ZooKeeper) configFile() string { return filepath.Join(z.dir, "zoo.cfg") }

func (z *ZooKeeper) log() string { return filepath.Join(z.dir, "log") }

// awaitReady polls, because ZooKeeper does not notify clients when it is ready.
func (z *ZooKeeper) awaitReady() error {
	const timeout = zkTimeout
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		if z.mode() != "" {
			return nil
		}
		select {
		case <-z.process.done:
			if strings.Contains(tail(z.log(), 16<<10), "Address already in use") {
				return fmt.Errorf("zookeeper %d: %w", z.id, errPortTaken)
			}
			return fmt.Errorf("zookeeper %d has exited: %s", z.id, z.process.exitReason())
		case <-time.After(50 * time.Millisecond): // polling slows down a starting server
		}
	}
	return fmt.Errorf("zookeeper %d is not ready after %v", z.id, timeout)
}
