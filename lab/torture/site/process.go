//go:build linux

package site

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// A process is a started program.
type process struct {
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
	err    error         // the error of Wait; set before done is closed
	killed atomic.Bool   // whether kill was called
}

// launch starts a command, and waits for its end in the background.
func (n *Network) launch(cmd *exec.Cmd) (*process, error) {
	if err := n.Start(cmd); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// running reports whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill kills the process, even if it is paused, and returns when it has ended. It returns nil if it
// had ended before.
func (p *process) kill() error {
	p.killed.Store(true)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("process %d was killed but has not ended within a minute", p.pid())
	}
}

// Pause stops a process (SIGSTOP), and returns when all of its threads have stopped: the signal
// only requests that, and a thread on another CPU may still answer a request. It fails if the
// process has ended.
func Pause(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause process %d: %w", pid, err)
	}
	const pauseTimeout = time.Minute
	for end := time.Now().Add(pauseTimeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch allStopped, err := stopped(pid); {
		case err != nil:
			return fmt.Errorf("pause process %d: %w", pid, err)
		case allStopped:
			return nil
		}
	}
	return fmt.Errorf("pause process %d: it has not stopped within %v", pid, pauseTimeout)
}

// Resume continues a paused process. It fails if the process has ended.
func Resume(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return fmt.Errorf("resume process %d: %w", pid, err)
	}
	return nil
}

// stopped reports whether all threads of a process are stopped.
func stopped(pid int) (bool, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false, errors.Join(os.ErrProcessDone, err)
	}
	for _, path := range stats {
		text, _ := os.ReadFile(path) // empty for a thread that has just ended, which counts as not stopped
		switch state(string(text)) {
		case 'T', 't':
		case 'Z', 'X':
			return false, os.ErrProcessDone
		default:
			return false, nil
		}
	}
	return true, nil
}

// state returns the letter for the state of a thread from its stat line in /proc. The name before
// it is in parentheses and may contain anything.
func state(stat string) byte {
	_, after, ok := strings.Cut(stat[strings.LastIndexByte(stat, ')')+1:], " ")
	if !ok || after == "" {
		return 0
	}
	return after[0]
}

// tail returns about the last n bytes of the file at path.
func tail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > n {
		if _, err := f.Seek(-n, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
