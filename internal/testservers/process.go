package testservers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// processTimeout is how long to wait until a process is ready or has ended. It is generous, because
// other tests may keep the machine busy.
const processTimeout = 3 * time.Minute

// A process is one run of a server's program.
type process struct {
	pid  int
	proc *os.Process
	done chan struct{} // closed when the process has ended
	err  error         // result of Wait; valid once done is closed
}

// startProcess starts the program with its output appended to the file at log, and env added to its
// environment.
func startProcess(path string, args []string, log string, env ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = sysProcAttr()
	cmd.Env = append(environ(), env...)

	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// On Linux, Pdeathsig kills the child when the thread that started it exits, so the thread
		// must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.proc, p.pid = cmd.Process, cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// environ returns this process's environment without variables that configure etcd.
func environ() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ETCD_") && !strings.HasPrefix(e, "ETCDCTL_") {
			env = append(env, e)
		}
	}
	return env
}

// running reports whether the process has not ended.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// exitReason describes how the process ended. It must be called after done is closed.
func (p *process) exitReason() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// kill sends SIGKILL and waits until the process is gone. It returns nil if the process has ended
// before.
func (p *process) kill() error {
	if err := p.proc.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return p.wait(processTimeout)
}

// terminate sends SIGTERM and waits until the process is gone.
func (p *process) terminate() error {
	if err := p.proc.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return p.wait(processTimeout)
}

func (p *process) wait(timeout time.Duration) error {
	select {
	case <-p.done:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("process %d did not exit within %v", p.pid, timeout)
	}
}

// tail returns about the last n bytes of the file at path, starting with a whole line.
func tail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	cut := false
	if info, err := f.Stat(); err == nil && info.Size() > n {
		_, err := f.Seek(-n, io.SeekEnd)
		cut = err == nil
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	text := string(b)
	if cut {
		_, text, _ = strings.Cut(text, "\n")
		text = "…\n" + text
	}
	return text
}

// logs returns the ends of the servers' logs.
func logs[S Server](servers []S) string {
	var all []string
	for _, s := range servers {
		all = append(all, s.Log())
	}
	return strings.Join(all, "\n")
}

// closeAll closes all servers.
func closeAll[S Server](servers []S) error {
	var all []error
	for _, s := range servers {
		all = append(all, s.Close())
	}
	return errors.Join(all...)
}
