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

// ZooKeeper is a ZooKeeper server, the only one or a member of a [ZooKeeperEnsemble], in a process of its own.
//
// It is the one of the Debian package libzookeeper-java, run by the java on the PATH. It does not sync its data to disk:
// a killed process loses nothing by that, and tests do not wait for the disk.
type ZooKeeper struct {
	t      testing.TB // the test that it belongs to; nil if it belongs to none
	id     int        // 1, 2 and so on
	java   string
	dir    string // data, configuration and log
	config []string

	client, quorum, election string // addresses

	links   map[int]*Proxy // to the quorum ports of the others, by id
	process *process       // the last one started
}

// zkPatience is how long is waited for servers to serve, or to agree on a leader. On a busy machine one may take a minute
// to start.
const zkPatience = 4 * time.Minute

// zkJars is where Debian puts Java's libraries.
const zkJars = "/usr/share/java"

// ClassPath returns the class path of the named libraries of Debian packages, such as "curator-recipes". For a library that
// is not installed the error is one for [Check].
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

// Java returns the path of java, which can run a source file too if the compiler is installed. If it is not installed the
// error is one for [Check].
func Java() (string, error) { return installed("java") }

// StartZooKeeper starts a ZooKeeper of one server, waits until it answers and stops it when the test ends.
//
// Its tick is 100 ms, and it grants sessions of one second to a minute. Each of config is a line of its configuration
// and wins over those given here. It speaks the four-letter words to everybody.
func StartZooKeeper(t testing.TB, config ...string) *ZooKeeper {
	t.Helper()
	z, err := NewZooKeeper(config...)
	Check(t, err)
	z.t = t
	bind(t, z)
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

// startZooKeepers starts n servers that know each other and waits until all of them serve.
func startZooKeepers(n int, config []string) ([]*ZooKeeper, error) {
	java, err := Java()
	if err != nil {
		return nil, err
	}
	if _, err := ClassPath("zookeeper"); err != nil {
		return nil, err
	}
	// Another process may take a port between our looking and the server's listening: then begin again.
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

// newZooKeepers prepares servers. Those that it returns beside an error have to be closed too.
func newZooKeepers(n int, java string, config []string) (members []*ZooKeeper, err error) {
	for i := range n {
		z := &ZooKeeper{id: i + 1, java: java, config: config, links: make(map[int]*Proxy)}
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
			if z.links[other.id], err = newProxy(other.quorum); err != nil {
				return members, err
			}
		}
		if err := z.writeFiles(members); err != nil {
			return members, err
		}
	}
	return members, nil
}

// writeFiles writes the server's configuration. Each server is told that the quorum ports of the others are where its
// proxies are: a follower connects to its leader there.
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
		"maxSessionTimeout=60000",
		"admin.enableServer=false",
		"4lw.commands.whitelist=*",
	}
	for _, other := range members {
		if len(members) == 1 {
			break
		}
		quorum := other.quorum
		if other != z {
			quorum = z.links[other.id].Addr()
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

// Close ends the process and removes its data.
func (z *ZooKeeper) Close() error {
	var err error
	if z.process.running() {
		err = z.process.kill()
	}
	for _, link := range z.links {
		if link != nil {
			link.Close()
		}
	}
	return errors.Join(err, os.RemoveAll(z.dir))
}

// Log returns what the server logged last.
func (z *ZooKeeper) Log() string {
	return fmt.Sprintf("zookeeper %d at %s logged last:\n%s", z.id, z.client, tail(z.log(), 4<<10))
}

// Endpoint returns the address that clients connect to, as host:port. It never changes.
func (z *ZooKeeper) Endpoint() string { return z.client }

// Pause stops the process where it is (SIGSTOP) until [ZooKeeper.Resume]. Its connections stay open, and the system goes
// on accepting new ones: a server that is hung.
func (z *ZooKeeper) Pause() {
	z.must("pause", z.process.pause())
}

// Resume lets a paused process go on.
func (z *ZooKeeper) Resume() {
	z.must("resume", z.process.resume())
}

// Kill ends the process with SIGKILL, paused or not, and returns when it is gone. Its data stay.
func (z *ZooKeeper) Kill() {
	z.must("kill", z.process.kill())
}

// Start starts the process again after Kill, with the same data and addresses, and returns without waiting until it
// serves: what a member alone cannot do while the others are down. See [ZooKeeper.AwaitReady].
func (z *ZooKeeper) Start() {
	if z.process.running() {
		z.must("start", errors.New("it is running already"))
	}
	z.must("start", z.start())
}

// AwaitReady returns when the server serves clients: alone, or as the leader or a follower of a majority. After some
// minutes the test fails.
func (z *ZooKeeper) AwaitReady() {
	z.must("wait for", z.awaitReady())
}

// Restart kills the process if it runs, starts it again with the same data and addresses and waits until it serves.
func (z *ZooKeeper) Restart() {
	if z.process.running() {
		z.Kill()
	}
	z.Start()
	z.AwaitReady()
}

// CutOff lets nothing pass between this member and the others any more, but the votes of an election: as a follower it
// goes on serving its clients, and answering their pings, until its syncLimit has passed. See [ZooKeeper.Reconnect].
func (z *ZooKeeper) CutOff() {
	for _, link := range z.links {
		link.Hold()
	}
}

// Reconnect ends [ZooKeeper.CutOff]. What was held is lost with its connections, as in a network that was divided.
func (z *ZooKeeper) Reconnect() {
	for _, link := range z.links {
		link.Reset()
		link.Release()
	}
}

// Say returns the server's answer to a four-letter word, "srvr" for example. It may be empty: from a server that is
// starting, say.
func (z *ZooKeeper) Say(word string) (string, error) { return z.say(word, 20*time.Second) }

func (z *ZooKeeper) say(word string, patience time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", z.client, patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// mode returns "standalone", "leader", "follower" or, if the server does not serve, the empty string.
func (z *ZooKeeper) mode() string {
	answer, err := z.say("srvr", 2*time.Second) // one that is asked too early never answers
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
	// The jar's manifest names what it needs itself; what TLS needs beside that, it forgets.
	jars := []string{"zookeeper", "slf4j-simple", "netty-codec", "netty-resolver", "netty-transport-native-unix-common"}
	for i, jar := range jars {
		jars[i] = filepath.Join(zkJars, jar+".jar")
	}
	z.process, err = startProcess(z.java, []string{
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", // they start in half the time
		"-Dzookeeper.forceSync=no",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", strings.Join(jars, string(filepath.ListSeparator)),
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", z.configFile(),
	}, z.log())
	return err
}

func (z *ZooKeeper) configFile() string { return filepath.Join(z.dir, "zoo.cfg") }

func (z *ZooKeeper) log() string { return filepath.Join(z.dir, "log") }

// awaitReady polls, because ZooKeeper has no event for "able to serve".
func (z *ZooKeeper) awaitReady() error {
	const most = zkPatience
	for end := time.Now().Add(most); time.Now().Before(end); {
		if z.mode() != "" {
			return nil
		}
		select {
		case <-z.process.done:
			if strings.Contains(tail(z.log(), 16<<10), "Address already in use") {
				return fmt.Errorf("zookeeper %d: %w", z.id, errPortTaken)
			}
			return fmt.Errorf("zookeeper %d has ended: %s", z.id, z.process.how())
		case <-time.After(50 * time.Millisecond): // each look costs a server that is starting something
		}
	}
	return fmt.Errorf("zookeeper %d does not serve after %v", z.id, most)
}
