//go:build linux

package site

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// redis is a Redis server without persistence: it is empty after a restart.
type redis struct{}

func (redis) port() int { return 6379 }

func (redis) diskSize() string { return "" }

func (redis) configure(*Server) error { return nil }

func (redis) command(s *Server) (string, []string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", nil, fmt.Errorf("%w: redis-server: run `make servers`", ErrMissing)
	}
	return path, []string{
		"--bind", s.node.IP(), "--port", "6379", "--protected-mode", "no", "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--loglevel", "warning",
	}, nil
}

func (redis) leadership(ctx context.Context, s *Server) (leadership, error) {
	_, err := redisDo(ctx, s, "PING")
	return leadership{leads: len(s.cluster.servers) == 1}, err
}

func (redis) versions(ctx context.Context, s *Server) map[string]string {
	text, err := redisDo(ctx, s, "INFO server")
	if err != nil {
		return nil
	}
	_, after, _ := strings.Cut(text, "redis_version:")
	version, _, _ := strings.Cut(after, "\r")
	return map[string]string{"redis": version}
}

// redisTime returns the server's time.
func redisTime(ctx context.Context, s *Server) (time.Time, error) {
	text, err := redisDo(ctx, s, "TIME")
	if err != nil {
		return time.Time{}, err
	}
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return time.Time{}, fmt.Errorf("%s: unexpected reply to TIME: %q", s, text)
	}
	seconds, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	micros, err := strconv.ParseInt(fields[1], 10, 64)
	return time.Unix(seconds, micros*1000), err
}

// redisDo sends a command and returns the reply: a string, or the strings of an array joined by
// newlines.
func redisDo(ctx context.Context, s *Server, command string) (string, error) {
	conn, err := dial(ctx, s)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	return readReply(bufio.NewReader(conn))
}

func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	kind, rest := line[:min(1, len(line))], line[min(1, len(line)):]
	n, _ := strconv.Atoi(rest) // zero if rest is not a number
	switch kind {
	case "+", ":":
		return rest, nil
	case "$":
		text := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	case "*":
		var all []string
		for range n {
			one, err := readReply(r)
			if err != nil {
				return "", err
			}
			all = append(all, one)
		}
		return strings.Join(all, "\n"), nil
	default:
		return "", fmt.Errorf("redis replied %s", line)
	}
}

// dial connects to the server. The deadline of ctx is that of the connection.
func dial(ctx context.Context, s *Server) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return nil, err
	}
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return nil, err
		}
	}
	return conn, nil
}
