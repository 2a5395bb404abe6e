//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// worker is a process with some of the clients.
type worker struct {
	job       string
	url       string
	contender string
	first, n  int
	flock     string
}

// The values of -job.
const (
	jobHold = "hold" // hold locks; see holder
	jobWait = "wait" // wait for many locks, each with a session of its own
	jobPass = "pass" // pass through one line, each waiter with a session of its own
)

// flags defines the flags with which a worker is started.
func (w *worker) flags(flags *flag.FlagSet) {
	flags.StringVar(&w.job, "job", "", "for internal use: run a worker")
	flags.StringVar(&w.url, "url", "", "for internal use")
	flags.StringVar(&w.contender, "contender", "", "for internal use")
	flags.StringVar(&w.flock, "flock", "", "for internal use")
	flags.IntVar(&w.first, "first", 0, "for internal use")
	flags.IntVar(&w.n, "count", 0, "for internal use")
}

func (w *worker) args() []string {
	return []string{
		"-job=" + w.job, "-url=" + w.url, "-contender=" + w.contender, "-flock=" + w.flock, "-first=" + strconv.Itoa(w.first), "-count=" + strconv.Itoa(w.n),
	}
}

func (w *worker) run(ctx context.Context, in io.Reader, out io.Writer) error {
	conn, err := connect(ctx, w.contender, w.url)
	if err != nil {
		return err
	}
	defer conn.close()
	switch w.job {
	case jobHold:
		return runHolder(ctx, conn, in, out)
	case jobWait:
		return waitEach(ctx, conn, w.first, w.n, out)
	case jobPass:
		debug.SetGCPercent(25) // many clients of ZooKeeper have large buffers
		return passAll(ctx, conn, w.n, w.flock)
	}
	return fmt.Errorf("unknown job %q", w.job)
}

// passAll waits for the lock with n sessions, and returns when all have had it or failed. It prints each error at once:
// if one waiter fails to join, the measurement gives up before the others have passed.
func passAll(ctx context.Context, conn connection, n int, flock string) error {
	var failed atomic.Int64
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			if err := pass(ctx, conn, flock); err != nil {
				failed.Add(1)
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	running.Wait()
	if failed.Load() > 0 {
		return fmt.Errorf("%d of %d waiters failed", failed.Load(), n)
	}
	return nil
}

// pass waits for the lock and releases it.
func pass(ctx context.Context, conn connection, flock string) error {
	unlock, err := lockOnce(ctx, conn, lockName)
	if err != nil {
		return err
	}
	f, err := os.Open(flock)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("two waiters hold the lock at once: %w", err)
	}
	if err := f.Close(); err != nil { // ends the flock
		return err
	}
	return unlock(ctx)
}

// workers are processes with clients.
type workers struct {
	cmds   []*exec.Cmd
	stderr []*bytes.Buffer
}

// maxWorkers is how many processes the waiters are divided among.
const maxWorkers = 10

// startWorkers starts the processes for n clients. ctx bounds their lives. stdout returns the standard
// output of each; nil discards it.
func startWorkers(ctx context.Context, w worker, n int, stdout func() io.Writer) (*workers, error) {
	ws := &workers{}
	left := n
	for i := range min(maxWorkers, n) {
		w.n = left / (min(maxWorkers, n) - i)
		left -= w.n
		cmd, stderr, err := w.command(ctx)
		if err == nil && stdout != nil {
			cmd.Stdout = stdout()
		}
		if err == nil {
			err = cmd.Start()
		}
		w.first += w.n
		if err != nil {
			ws.kill()
			return nil, err
		}
		ws.cmds, ws.stderr = append(ws.cmds, cmd), append(ws.stderr, stderr)
	}
	return ws, nil
}

// command returns the command that runs the worker.
func (w *worker) command(ctx context.Context) (*exec.Cmd, *bytes.Buffer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, self, w.args()...)
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr, nil
}

// wait waits until all workers have succeeded.
func (w *workers) wait() error {
	var errs []error
	for i, cmd := range w.cmds {
		if err := cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("a worker failed: %w: %s", err, tail(w.stderr[i].String())))
		}
	}
	w.cmds = nil
	return errors.Join(errs...)
}

// err kills the workers and returns how they ended.
func (w *workers) err() error {
	for _, cmd := range w.cmds {
		_ = cmd.Process.Kill()
	}
	return w.wait()
}

func (w *workers) kill() { _ = w.err() }

func tail(text string) string { return text[max(0, len(text)-500):] }
