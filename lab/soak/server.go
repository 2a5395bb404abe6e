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

// server is a stile serve, with its data and its socket in dir. It is started again and again, on the same data.
type server struct {
	stile, dir string
	cmd        *exec.Cmd
	done       chan struct{} // closed when it has ended
	ended      string        // how; read it after done
}

func (s *server) url() string  { return "etcd+unix://" + filepath.Join(s.dir, "socket") }
func (s *server) data() string { return filepath.Join(s.dir, "data") }
func (s *server) log() string  { return filepath.Join(s.dir, "log") }

// start starts the server and returns how long it took to be ready.
func (s *server) start(ctx context.Context) (time.Duration, error) {
	out, err := os.Create(s.log())
	if err != nil {
		return 0, err
	}
	defer out.Close()
	s.cmd = exec.Command(s.stile, "serve", "--socket", filepath.Join(s.dir, "socket"), "--data", s.data())
	s.cmd.Stdout, s.cmd.Stderr = out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C is for us; and Linux gives sessions equal shares
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return 0, err
	}
	s.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		s.ended = cmd.ProcessState.String()
		close(done)
	}(s.cmd, s.done)
	for {
		text, err := os.ReadFile(s.log())
		if err != nil {
			return 0, err
		}
		if bytes.Contains(text, []byte("msg=ready")) {
			return time.Since(began), nil
		}
		select {
		case <-s.done:
			return 0, errors.New("the server has ended before it was ready")
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// stop has the server end, by a signal, and returns how long that took.
func (s *server) stop(how syscall.Signal) (time.Duration, error) {
	began := time.Now()
	if err := s.cmd.Process.Signal(how); err != nil {
		return 0, err
	}
	select {
	case <-s.done:
		return time.Since(began), nil
	case <-time.After(time.Minute):
		return 0, fmt.Errorf("the server has not ended within a minute of %v", how)
	}
}

// end kills the server if it runs.
func (s *server) end() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

func (s *server) usage() (usage, error) { return usageOf(s.cmd.Process.Pid) }

// lastWords is the end of what the server has said, and how it has ended, in one line.
func (s *server) lastWords() string {
	text, err := os.ReadFile(s.log())
	if err != nil {
		return "nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[max(0, len(lines)-3):]
	select {
	case <-s.done:
		lines = append(lines, "and has ended: "+s.ended)
	default:
	}
	return strings.Join(lines, " | ")
}

// onDisk is how many bytes its data takes on the disk.
func (s *server) onDisk() (size int64, err error) {
	err = filepath.WalkDir(s.data(), func(path string, d os.DirEntry, err error) error {
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
