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

// A process is a worker, or the resource.
type process struct {
	name string
	node *site.Node // nil for what no fault concerns
	live *live
	cmd  *exec.Cmd
	in   io.Closer // its standard input; closed, it ends in order
	done chan struct{}
	err  error // how it ended; read it after done
}

// Name, Pid, Node, Holds and Kill are for the faults.
func (p *process) Name() string     { return p.name }
func (p *process) Pid() int         { return p.live.pid(p.name, p.cmd.Process.Pid) }
func (p *process) Node() *site.Node { return p.node }
func (p *process) Holds() bool      { return p.live.holds(p.name) }
func (p *process) Kill() error      { return syscall.Kill(p.Pid(), syscall.SIGKILL) }

// begin starts a worker, or another of its programs, and tells it what to do.
func (r *run) begin(node *site.Node, conf workload.Config, args ...string) (*process, error) {
	cmd := exec.Command(r.programs.Worker, args...)
	if node != nil {
		cmd = node.Command(r.programs.Worker, args...)
	}
	cmd.Stderr = r.said
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p := &process{name: conf.Worker, node: node, live: r.live, cmd: cmd, in: in, done: make(chan struct{})}
	if err := r.network.Start(cmd); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	line, err := json.Marshal(conf)
	if err == nil {
		_, err = in.Write(append(line, '\n'))
	}
	return p, err
}

// end has a process end in order, and kills it if it does not do so in time. It returns how it ended.
func (p *process) end(most time.Duration) string {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.in.Close()
	select {
	case <-p.done:
		return p.how()
	case <-time.After(most):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines, for whoever wants to know why
		select {
		case <-p.done:
		case <-time.After(time.Second):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
		return history.HowHung
	}
}

func (p *process) how() string {
	if p.err == nil {
		return "ended"
	}
	return p.err.Error()
}

// A crew is the workers of a run. Who is killed is replaced, under another name, on the same node.
type crew struct {
	run  *run
	most time.Duration // how long a worker may take to end

	mu      sync.Mutex
	workers []*process
	hired   int
	ending  bool
	failed  error
	watched sync.WaitGroup
}

// hire starts a worker on a node.
func (c *crew) hire(node *site.Node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil
	}
	c.hired++
	conf := c.run.config(fmt.Sprintf("w%d", c.hired))
	p, err := c.run.begin(node, conf)
	if err != nil {
		return err
	}
	c.workers = append(c.workers, p)
	c.watched.Go(func() { c.watch(p) })
	return nil
}

// watch waits for the end of a worker, and replaces it unless the run is ending.
func (c *crew) watch(p *process) {
	<-p.done
	c.mu.Lock()
	c.workers = slices.DeleteFunc(c.workers, func(other *process) bool { return other == p })
	ending := c.ending
	c.mu.Unlock()
	if ending {
		return // its end is recorded by who asked for it
	}
	c.run.exited(p.name, p.how())
	if err := c.hire(p.node); err != nil {
		c.mu.Lock()
		c.failed = err
		c.mu.Unlock()
	}
}

// Workers returns those that live.
func (c *crew) Workers() []nemesis.Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []nemesis.Worker
	for _, p := range c.workers {
		all = append(all, p)
	}
	return all
}

// dismiss ends all workers in order, and returns what went wrong with replacing killed ones.
func (c *crew) dismiss() error {
	c.mu.Lock()
	c.ending = true
	workers := slices.Clone(c.workers)
	c.mu.Unlock()
	var ends sync.WaitGroup
	for _, p := range workers {
		ends.Go(func() { c.run.exited(p.name, p.end(c.most)) })
	}
	ends.Wait()
	c.watched.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// final has a worker try for every lock once more.
func (r *run) final(ctx context.Context, node *site.Node, locks []string) error {
	conf := r.config("final")
	conf.Workload, conf.Locks, conf.Resource, conf.FinalTimeout = workload.Final, locks, "", r.TTL+busy
	p, err := r.begin(node, conf)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("the last attempts: %w: %s", context.Cause(ctx), p.end(time.Second))
	}
}

// words is a file to which the processes of a run write what they have to say.
func words(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
}
