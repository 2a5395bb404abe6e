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

// A process is one run of a program.
type process struct {
	cmd    *exec.Cmd
	done   chan struct{} // closed when it has ended
	err    error         // how it ended; read it after done
	killed atomic.Bool   // by us
}

// launch starts a command and waits for its end.
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

// kill ends the process, paused or not, and returns when it is gone. That it had ended before is no error.
func (p *process) kill() error {
	p.killed.Store(true)
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("process %d has been killed and has not ended within a minute", p.pid())
	}
}

// Pause stops a process (SIGSTOP) and returns when all of its threads stand still: the signal alone only asks for that, and
// a thread that runs on another processor may yet answer a request. It fails if there is no such process, or no more.
func Pause(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause process %d: %w", pid, err)
	}
	const most = time.Minute
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch still, err := stopped(pid); {
		case err != nil:
			return fmt.Errorf("pause process %d: %w", pid, err)
		case still:
			return nil
		}
	}
	return fmt.Errorf("pause process %d: it has not stopped within %v", pid, most)
}

// Resume lets a paused process go on. It fails if there is no such process any more.
func Resume(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return fmt.Errorf("resume process %d: %w", pid, err)
	}
	return nil
}

// stopped reports whether all threads of a process stand still.
func stopped(pid int) (bool, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false, errors.Join(os.ErrProcessDone, err)
	}
	for _, path := range stats {
		text, _ := os.ReadFile(path) // nothing, of a thread that has just ended: look again
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

// state returns the letter for the state of a thread from its line in /proc. The name before it is in parentheses and may
// contain anything.
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
