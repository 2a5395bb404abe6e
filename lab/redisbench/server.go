package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// redis is the server that is measured.
type redis struct {
	cmd  *exec.Cmd
	addr string
	dir  string
}

func startRedis(ctx context.Context, binary string) (*redis, error) {
	dir, err := os.MkdirTemp("", "redisbench")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if err := l.Close(); err != nil {
		return nil, err
	}
	r := &redis{addr: addr, dir: dir}
	r.cmd = exec.CommandContext(ctx, binary, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir)
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = r.commands(); err == nil {
			return r, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%s does not answer: %w", binary, err), r.stop())
}

func (r *redis) stop() error {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	return os.RemoveAll(r.dir)
}

// info returns what the server says of itself under a name.
func (r *redis) info(section, name string) (string, error) {
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "INFO %s\r\n", section); err != nil {
		return "", err
	}
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", err
		}
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
}

// commands returns how many commands the server has carried out, those in scripts included.
func (r *redis) commands() (int, error) {
	text, err := r.info("stats", "total_commands_processed")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// A relay passes on what arrives, late.
type relay struct {
	listener net.Listener
	target   string
	oneWay   time.Duration

	mu    sync.Mutex
	conns []net.Conn
}

func startRelay(target string, oneWay time.Duration) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, target: target, oneWay: oneWay}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(conn)
		}
	}()
	return r, nil
}

func (r *relay) serve(client net.Conn) {
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		client.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, client, server)
	r.mu.Unlock()
	go r.pass(server, client)
	r.pass(client, server)
}

func (r *relay) pass(to, from net.Conn) {
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 4096)
	go func() {
		defer close(pieces)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				pieces <- piece{buf[:n], time.Now().Add(r.oneWay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			_, _ = io.Copy(io.Discard, from)
			break
		}
	}
	to.Close()
	from.Close()
}

func (r *relay) close() {
	r.listener.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
}
