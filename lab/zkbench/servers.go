package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ensemble is ZooKeeper servers in processes of their own: those of the Debian package libzookeeper-java.
type ensemble struct {
	dir     string
	clients []string // addresses
	running []*exec.Cmd
}

const jars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"

// startEnsemble starts n servers that know each other.
func startEnsemble(n int) (_ *ensemble, err error) {
	dir, err := os.MkdirTemp("", "zkbench")
	if err != nil {
		return nil, err
	}
	e := &ensemble{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.stop())
		}
	}()
	host := loopback()
	ports, err := freePorts(host, 3*n)
	if err != nil {
		return nil, err
	}
	var members []string
	for i := range n {
		e.clients = append(e.clients, ports[i])
		_, quorum, _ := net.SplitHostPort(ports[n+i])
		_, election, _ := net.SplitHostPort(ports[2*n+i])
		members = append(members, fmt.Sprintf("server.%d=%s:%s:%s", i+1, host, quorum, election))
	}
	if n == 1 {
		members = nil
	}
	for i := range n {
		if err := e.start(i, members); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *ensemble) start(i int, members []string) error {
	data := filepath.Join(e.dir, fmt.Sprint(i+1))
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "myid"), fmt.Append(nil, i+1), 0o600); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(e.clients[i])
	if err != nil {
		return err
	}
	config := append([]string{
		"tickTime=500", "initLimit=80", "syncLimit=80", "dataDir=" + data,
		"clientPort=" + port, "clientPortAddress=" + host, "maxClientCnxns=0", "maxSessionTimeout=60000",
		"admin.enableServer=false", "4lw.commands.whitelist=srvr",
	}, members...)
	file := filepath.Join(data, "zoo.cfg")
	if err := os.WriteFile(file, []byte(strings.Join(config, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	cmd := exec.Command("java", "-Xmx256m", "-cp", jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("no ZooKeeper to measure: %w: run `make servers`", err)
	}
	e.running = append(e.running, cmd)
	return nil
}

// stop ends the servers and removes what they have written.
func (e *ensemble) stop() error {
	for _, cmd := range e.running {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return os.RemoveAll(e.dir)
}

// loopback returns an address of this machine that nobody else uses: where all of 127.0.0.0/8 is the machine's own, as on
// Linux, one by chance. A port that is free there is free when a server takes it.
func loopback() string {
	host := fmt.Sprintf("127.%d.%d.%d", 1+rand.N(250), rand.N(256), 1+rand.N(254))
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "127.0.0.1"
	}
	_ = l.Close()
	return host
}

// freePorts returns addresses of the host that nobody listens on.
func freePorts(host string, n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// forClients waits until all serve, and returns two of the servers, for two clients: the followers, if there are any.
func (e *ensemble) forClients(ctx context.Context) (two [2]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // as a busy machine may need
	defer cancel()
	var followers []string
	for _, addr := range e.clients {
		mode := ""
		for mode == "" {
			if mode = modeOf(addr); mode == "" {
				select {
				case <-ctx.Done():
					return two, fmt.Errorf("the server at %s does not serve: %w", addr, ctx.Err())
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
		if mode != "leader" {
			followers = append(followers, addr)
		}
	}
	return [2]string{followers[0], followers[len(followers)-1]}, nil
}

// modeOf returns what a server says it is; empty if it does not serve.
func modeOf(addr string) string {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close()
	// One that is just starting may take the connection and never answer.
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return ""
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return ""
	}
	answer, _ := io.ReadAll(conn)
	_, mode, _ := strings.Cut(string(answer), "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}
