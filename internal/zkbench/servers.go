package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	ports, err := freePorts(3 * n)
	if err != nil {
		return nil, err
	}
	var members []string
	for i := range n {
		e.clients = append(e.clients, ports[i])
		_, quorum, _ := net.SplitHostPort(ports[n+i])
		_, election, _ := net.SplitHostPort(ports[2*n+i])
		members = append(members, fmt.Sprintf("server.%d=127.0.0.1:%s:%s", i+1, quorum, election))
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
	_, port, err := net.SplitHostPort(e.clients[i])
	if err != nil {
		return err
	}
	config := append([]string{
		"tickTime=500", "initLimit=20", "syncLimit=10", "dataDir=" + data,
		"clientPort=" + port, "clientPortAddress=127.0.0.1", "maxClientCnxns=0", "maxSessionTimeout=60000",
		"admin.enableServer=false", "4lw.commands.whitelist=srvr",
	}, members...)
	file := filepath.Join(data, "zoo.cfg")
	if err := os.WriteFile(file, []byte(strings.Join(config, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	cmd := exec.Command("java", "-Xmx256m", "-cp", jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("no ZooKeeper to measure: %w: run `make tools`", err)
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

// freePorts returns loopback addresses that nobody listens on.
func freePorts(n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
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
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
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
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close()
	// One that is just starting may take the connection and never answer.
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
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
