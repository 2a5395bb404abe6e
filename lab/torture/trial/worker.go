//go:build linux

package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/nemesis"
	"github.com/stilelock/stile/lab/torture/site"
	"github.com/stilelock/stile/lab/torture/workload"
)

// A process is the process of a worker or of the resource.
type process struct {
	name    string
	node    *site.Node // nil if no fault affects the process
	tracker *tracker
	cmd     *exec.Cmd
	in      io.Closer // its standard input; closing it makes the process end in order
	done    chan struct{}
	err     error // the error of Wait; set before done is closed
}

// Name, Pid, Node, Holds and Kill implement [nemesis.Worker].
func (p *process) Name() string     { return p.name }
func (p *process) Pid() int         { return p.tracker.pid(p.name, p.cmd.Process.Pid) }
func (p *process) Node() *site.Node { return p.node }
func (p *process) Holds() bool      { return p.tracker.holds(p.name) }
func (p *process) Kill() error      { return syscall.Kill(p.Pid(), syscall.SIGKILL) }

// startProcess starts the worker program on a node, or on none, with a configuration.
func (r *run) startProcess(node *site.Node, config workload.Config, args ...string) (*process, error) {
	cmd := exec.Command(r.programs.Worker, args...)
	if node != nil {
		cmd = node.Command(r.programs.Worker, args...)
	}
	cmd.Stderr = r.output
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p := &process{name: config.Worker, node: node, tracker: r.tracker, cmd: cmd, in: in, done: make(chan struct{})}
	if err := r.network.Start(cmd); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	line, err := json.Marshal(config)
	if err == nil {
		_, err = in.Write(append(line, '\n'))
	}
	return p, err
}

// stop asks a process to end in order, and kills it after the timeout. It returns its status.
func (p *process) stop(timeout time.Duration) string {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.in.Close()
	select {
	case <-p.done:
		return p.status()
	case <-time.After(timeout):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // prints its goroutines
		select {
		case <-p.done:
		case <-time.After(time.Second):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
		return history.ExitHung
	}
}

func (p *process) status() string {
	if p.err == nil {
		return "ended"
	}
	return p.err.Error()
}

// A workerPool is the workers of a run. A worker that is killed is replaced by another one, with a
// new name, on the same node.
type workerPool struct {
	run         *run
	stopTimeout time.Duration // for each worker

	mu       sync.Mutex
	workers  []*process
	started  int
	stopping bool
	startErr error
	watchers sync.WaitGroup
}

// start starts a worker on a node.
func (c *workerPool) start(node *site.Node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return nil
	}
	c.started++
	config := c.run.config(fmt.Sprintf("w%d", c.started))
	p, err := c.run.startProcess(node, config)
	if err != nil {
		return err
	}
	c.workers = append(c.workers, p)
	c.watchers.Go(func() { c.supervise(p) })
	return nil
}

// supervise waits for the end of a worker, and replaces it unless the run is ending.
func (c *workerPool) supervise(p *process) {
	<-p.done
	c.mu.Lock()
	c.workers = slices.DeleteFunc(c.workers, func(other *process) bool { return other == p })
	stopping := c.stopping
	c.mu.Unlock()
	if stopping {
		return // stopAll records the end
	}
	c.run.recordExit(p.name, p.status())
	if err := c.start(p.node); err != nil {
		c.mu.Lock()
		c.startErr = err
		c.mu.Unlock()
	}
}

// running returns the workers that have not ended.
func (c *workerPool) running() []nemesis.Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []nemesis.Worker
	for _, p := range c.workers {
		all = append(all, p)
	}
	return all
}

// stopAll stops all workers in order. It returns an error if a killed worker could not be replaced.
func (c *workerPool) stopAll() error {
	c.mu.Lock()
	c.stopping = true
	workers := slices.Clone(c.workers)
	c.mu.Unlock()
	var ends sync.WaitGroup
	for _, p := range workers {
		ends.Go(func() { c.run.recordExit(p.name, p.stop(c.stopTimeout)) })
	}
	ends.Wait()
	c.watchers.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startErr
}

// runFinal runs a worker that makes the last attempt at every lock.
func (r *run) runFinal(ctx context.Context, node *site.Node, locks []string) error {
	config := r.config("final")
	config.Workload, config.Locks, config.Resource, config.FinalTimeout = workload.Final, locks, "", r.TTL+busyMargin
	p, err := r.startProcess(node, config)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("last attempts at the locks: %w: %s", context.Cause(ctx), p.stop(time.Second))
	}
}

// openOutput creates the file for the standard error of a run's processes.
func openOutput(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
}
