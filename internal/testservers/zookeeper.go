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
	t      testing.TB
	id     int // 1, 2 and so on
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

// Jars returns the class path of the named libraries of Debian packages, such as "curator-recipes". If one is not there
// the test is skipped or fails, as [Binary] says.
func Jars(t testing.TB, names ...string) string {
	t.Helper()
	paths := make([]string, 0, len(names))
	for _, name := range names {
		path := filepath.Join(zkJars, name+".jar")
		if _, err := os.Stat(path); err != nil {
			missing(t, name, path, "run `make servers`")
		}
		paths = append(paths, path)
	}
	return strings.Join(paths, string(filepath.ListSeparator))
}

// Java returns the path of java, which can run a source file too if the compiler is installed. If it is not there the
// test is skipped or fails, as [Binary] says.
func Java(t testing.TB) string {
	t.Helper()
	return installed(t, "java")
}

// StartZooKeeper starts a ZooKeeper of one server, waits until it answers and stops it when the test ends.
//
// Its tick is 100 ms, and it grants sessions of one second to a minute. Each of config is a line of its configuration
// and wins over those given here. It speaks the four-letter words to everybody.
func StartZooKeeper(t testing.TB, config ...string) *ZooKeeper {
	t.Helper()
	config = append([]string{"tickTime=100", "initLimit=100", "syncLimit=100"}, config...)
	return startZooKeepers(t, 1, config)[0]
}

// startZooKeepers starts n servers that know each other and waits until all of them serve.
func startZooKeepers(t testing.TB, n int, config []string) []*ZooKeeper {
	t.Helper()
	java := Java(t)
	Jars(t, "zookeeper")
	dir, err := os.MkdirTemp("", "zookeeper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })

	// Another process may take a port between our looking and the server's listening: then begin again.
	for attempt := 1; ; attempt++ {
		members, err := newZooKeepers(t, n, java, filepath.Join(dir, fmt.Sprint(attempt)), config)
		if err == nil {
			err = launchZooKeepers(members)
		}
		if err == nil {
			t.Cleanup(func() { cleanUpZooKeepers(members) })
			return members
		}
		for _, z := range members {
			if z.process.running() {
				_ = z.process.kill()
			}
		}
		if attempt == 5 || !errors.Is(err, errPortTaken) {
			for _, z := range members {
				z.showLog()
			}
			t.Fatalf("testservers: %v", err)
		}
	}
}

func newZooKeepers(t testing.TB, n int, java, dir string, config []string) ([]*ZooKeeper, error) {
	t.Helper()
	members := make([]*ZooKeeper, n)
	for i := range members {
		z := &ZooKeeper{t: t, id: i + 1, java: java, config: config, links: make(map[int]*Proxy)}
		z.dir = filepath.Join(dir, fmt.Sprint(z.id))
		for _, addr := range []*string{&z.client, &z.quorum, &z.election} {
			var err error
			if *addr, err = freePort(); err != nil {
				return nil, err
			}
		}
		members[i] = z
	}
	for _, z := range members {
		for _, other := range members {
			if other != z {
				z.links[other.id] = NewProxy(t, other.quorum)
			}
		}
		if err := z.writeFiles(members); err != nil {
			return nil, err
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

// cleanUpZooKeepers shows the logs if the test failed, and ends the processes.
func cleanUpZooKeepers(members []*ZooKeeper) {
	for _, z := range members {
		if z.process.running() {
			if err := z.process.kill(); err != nil {
				z.t.Errorf("testservers: %v", err)
			}
		}
	}
	for _, z := range members {
		if z.t.Failed() {
			z.showLog()
		}
	}
}

// Endpoint returns the address that clients connect to, as host:port. It never changes.
func (z *ZooKeeper) Endpoint() string { return z.client }

// Pause stops the process where it is (SIGSTOP) until [ZooKeeper.Resume]. Its connections stay open, and the system goes
// on accepting new ones: a server that is hung.
func (z *ZooKeeper) Pause() {
	z.t.Helper()
	z.must("pause", z.process.pause())
}

// Resume lets a paused process go on.
func (z *ZooKeeper) Resume() {
	z.t.Helper()
	z.must("resume", z.process.resume())
}

// Kill ends the process with SIGKILL, paused or not, and returns when it is gone. Its data stay.
func (z *ZooKeeper) Kill() {
	z.t.Helper()
	z.must("kill", z.process.kill())
}

// Start starts the process again after Kill, with the same data and addresses, and returns without waiting until it
// serves: what a member alone cannot do while the others are down. See [ZooKeeper.AwaitReady].
func (z *ZooKeeper) Start() {
	z.t.Helper()
	if z.process.running() {
		z.t.Fatalf("testservers: zookeeper %d is running already", z.id)
	}
	z.must("start", z.start())
}

// AwaitReady returns when the server serves clients: alone, or as the leader or a follower of a majority. After some
// minutes the test fails.
func (z *ZooKeeper) AwaitReady() {
	z.t.Helper()
	z.must("wait for", z.awaitReady())
}

// Restart kills the process if it runs, starts it again with the same data and addresses and waits until it serves.
func (z *ZooKeeper) Restart() {
	z.t.Helper()
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
	z.t.Helper()
	if err != nil {
		z.t.Fatalf("testservers: cannot %s zookeeper %d: %v", what, z.id, err)
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

func (z *ZooKeeper) showLog() {
	z.t.Helper()
	if z.process != nil {
		z.t.Logf("zookeeper %d at %s said last:\n%s", z.id, z.client, tail(z.log(), 4<<10))
	}
}

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
