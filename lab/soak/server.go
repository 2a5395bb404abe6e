//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// server is a stile serve with its data and its socket in dir. It can be restarted on the same
// data.
type server struct {
	stile, dir string
	cmd        *exec.Cmd
	done       chan struct{} // closed when the process has ended
	exitState  string        // how it ended; read it only after done is closed
}

func (s *server) url() string     { return "etcd+unix://" + filepath.Join(s.dir, "socket") }
func (s *server) dataDir() string { return filepath.Join(s.dir, "data") }
func (s *server) logPath() string { return filepath.Join(s.dir, "log") }

// start starts the server and returns how long it took to become ready.
func (s *server) start(ctx context.Context) (time.Duration, error) {
	out, err := os.Create(s.logPath())
	if err != nil {
		return 0, err
	}
	defer out.Close()
	s.cmd = exec.Command(s.stile, "serve", "--socket", filepath.Join(s.dir, "socket"), "--data", s.dataDir())
	s.cmd.Stdout, s.cmd.Stderr = out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for this process only; also, Linux gives sessions equal CPU shares
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return 0, err
	}
	s.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		s.exitState = cmd.ProcessState.String()
		close(done)
	}(s.cmd, s.done)
	for {
		text, err := os.ReadFile(s.logPath())
		if err != nil {
			return 0, err
		}
		if bytes.Contains(text, []byte("msg=ready")) {
			return time.Since(began), nil
		}
		select {
		case <-s.done:
			return 0, errors.New("the server ended before it was ready")
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// stop sends the server a signal, waits until it has ended, and returns how long that took.
func (s *server) stop(sig syscall.Signal) (time.Duration, error) {
	began := time.Now()
	if err := s.cmd.Process.Signal(sig); err != nil {
		return 0, err
	}
	select {
	case <-s.done:
		return time.Since(began), nil
	case <-time.After(time.Minute):
		return 0, fmt.Errorf("the server did not end within a minute of %v", sig)
	}
}

// kill kills the server if it runs.
func (s *server) kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

func (s *server) usage() (usage, error) { return usageOf(s.cmd.Process.Pid) }

// logTail returns the last three lines of the server's log and how the server ended, in one line.
func (s *server) logTail() string {
	text, err := os.ReadFile(s.logPath())
	if err != nil {
		return "no log"
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[max(0, len(lines)-3):]
	select {
	case <-s.done:
		lines = append(lines, "ended: "+s.exitState)
	default:
	}
	return strings.Join(lines, " | ")
}

// diskUsage returns how many bytes the server's data takes on disk.
func (s *server) diskUsage() (size int64, err error) {
	err = filepath.WalkDir(s.dataDir(), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			return err
		}
		size += st.Blocks * 512
		return nil
	})
	return size, err
}
