//go:build linux

package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// zookeeper is a ZooKeeper server of Debian's package libzookeeper-java. A server considers another
// one dead after four seconds, or ten with the timing as shipped. Without a majority it asks the others for
// their votes every second; as shipped at intervals that double up to a minute, so that an outage may last twice
// as long as its cause.
type zookeeper struct{}

// jars is Debian's directory of Java libraries.
const jars = "/usr/share/java"

func (zookeeper) port() int { return 2181 }

func (zookeeper) diskSize() string { return "512m" }

func (zookeeper) configure(s *Server) error {
	timing := []string{"tickTime=250", "initLimit=40", "syncLimit=16", "minSessionTimeout=1000", "maxSessionTimeout=60000"}
	if s.cluster.shipped {
		timing = []string{"tickTime=2000", "initLimit=10", "syncLimit=5"}
	}
	lines := append(timing,
		"dataDir="+s.dir,
		"clientPort=2181",
		"clientPortAddress="+s.node.IP(),
		"maxClientCnxns=0",
		"admin.enableServer=false",
		"4lw.commands.whitelist=srvr",
	)
	for _, member := range s.cluster.servers {
		if len(s.cluster.servers) > 1 {
			lines = append(lines, fmt.Sprintf("server.%d=%s:2888:3888", member.number, member.node.IP()))
		}
	}
	if err := os.WriteFile(filepath.Join(s.dir, "myid"), []byte(strconv.Itoa(s.number)), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.dir, "zoo.cfg"), []byte(strings.Join(lines, "\n")+"\n"), 0o600)
}

func (zookeeper) command(s *Server) (string, []string, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return "", nil, fmt.Errorf("%w: java: run `make servers`", ErrMissing)
	}
	// The manifest of the jar lists its dependencies, except for some that TLS needs.
	path := []string{"zookeeper", "slf4j-simple", "netty-codec", "netty-resolver", "netty-transport-native-unix-common"}
	for i, jar := range path {
		path[i] = filepath.Join(jars, jar+".jar")
		if _, err := os.Stat(path[i]); err != nil {
			return "", nil, fmt.Errorf("%w: %s: run `make servers`", ErrMissing, path[i])
		}
	}
	interval := "-Dzookeeper.fastleader.maxNotificationInterval=1000"
	if s.cluster.shipped {
		interval = "-Dzookeeper.fastleader.maxNotificationInterval=60000"
	}
	return java, []string{
		interval,
		"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", // they halve the start time
		"-XX:-UsePerfData", // its file in /tmp would remain
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", strings.Join(path, ":"),
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(s.dir, "zoo.cfg"),
	}, nil
}

func (zookeeper) leadership(ctx context.Context, s *Server) (leadership, error) {
	state, err := zookeeperState(ctx, s)
	if err != nil {
		return leadership{}, err
	}
	zxid, err := strconv.ParseUint(state["Zxid"], 0, 64)
	if err != nil {
		return leadership{}, errors.New("not serving")
	}
	return leadership{leads: state["Mode"] != "follower", term: zxid >> 32}, nil
}

func (zookeeper) versions(ctx context.Context, s *Server) map[string]string {
	versions := map[string]string{}
	if state, err := zookeeperState(ctx, s); err == nil {
		versions["zookeeper"], _, _ = strings.Cut(state["Zookeeper version"], "-")
	}
	if text, err := exec.CommandContext(ctx, "java", "-version").CombinedOutput(); err == nil {
		versions["java"], _, _ = strings.Cut(string(text), "\n")
	}
	return versions
}

// zookeeperState asks a server for its state, as names and values.
func zookeeperState(ctx context.Context, s *Server) (map[string]string, error) {
	conn, err := dial(ctx, s)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return nil, err
	}
	state := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		state[name] = value
	}
	return state, nil
}
