package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile"
)

// director starts the workers, hears what happens, and tells the stage and the screen.
type director struct {
	stage  *stage
	screen screen
	job    job           // but for the worker's number
	client *stile.Client // on the workers' store; nil without a lock
	crew   []*process
	news   chan any // reported, exit, reading

	listening sync.WaitGroup
}

// What there is to hear of.
type (
	reported struct { // by a worker
		worker int
		report report
	}
	exit struct { // of a worker
		worker int
		err    error // nil if the exit code is 0
	}
	reading struct { // of the line
		line stile.Line
		err  error
	}
)

// direct returns when all workers have ended as they should, or one has not, or ctx ends. No process is left then.
func (d *director) direct(ctx context.Context, c Config) error {
	ctx, stop := context.WithCancel(ctx)
	defer d.listening.Wait()
	defer stop()
	defer d.dismiss() // first: those who listen to them hear the end

	for i := range c.Workers {
		j := d.job
		j.Worker = i + 1
		p, err := start(c.Worker(j.Worker), j)
		if err != nil {
			return fmt.Errorf("start worker %d: %w", j.Worker, err)
		}
		d.crew = append(d.crew, p)
		d.stage.parts[i].pid = p.cmd.Process.Pid
		d.listening.Go(func() { d.listen(ctx, i, p) })
	}
	if d.client != nil {
		d.listening.Go(func() { d.watch(ctx) })
	}
	return d.hear(ctx)
}

// dismiss ends the workers that are left.
func (d *director) dismiss() {
	for _, p := range d.crew {
		_ = p.cmd.Process.Kill() // fails if it has ended
	}
}

// listen passes on what a worker tells, and its end.
func (d *director) listen(ctx context.Context, i int, p *process) {
	reports := json.NewDecoder(p.stdout)
	for {
		var r report
		if reports.Decode(&r) != nil {
			break // the process has ended, or is about to
		}
		d.pass(ctx, reported{i, r})
	}
	d.pass(ctx, exit{i, p.wait()})
}

// watch passes on what the store says of the line.
func (d *director) watch(ctx context.Context) {
	for line, err := range d.client.WatchLine(ctx, d.job.Lock) {
		d.pass(ctx, reading{line, err})
	}
}

// look reads the line once more: nothing has changed in the store, and that is worth knowing.
func (d *director) look(ctx context.Context) {
	if d.client != nil {
		d.listening.Go(func() {
			line, err := d.client.Line(ctx, d.job.Lock)
			d.pass(ctx, reading{line, err})
		})
	}
}

func (d *director) pass(ctx context.Context, news any) {
	select {
	case d.news <- news:
	case <-ctx.Done():
	}
}

// hear deals with what happens until all is over.
func (d *director) hear(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !d.stage.over() {
		var err error
		select {
		case news := <-d.news:
			err = d.deal(ctx, news, time.Now())
		case <-tick.C:
			d.stage.counter, _ = readCounter(d.job.Counter) // to look at; at the end it is read for good
			err = d.screen.tick(d.stage, time.Now())
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *director) deal(ctx context.Context, news any, now time.Time) error {
	switch n := news.(type) {
	case reported:
		if err := d.say(now, n.worker, d.stage.told(n.worker, n.report, now)); err != nil {
			return err
		}
		return d.answer(ctx, n, now)
	case exit:
		return d.stage.exited(n.worker, n.err)
	case reading:
		if text := d.stage.saw(n.line, n.err); text != "" {
			return d.screen.say(d.stage, now, "line", text)
		}
	}
	return nil
}

func (d *director) say(now time.Time, worker int, what string) error {
	if what == "" {
		return nil
	}
	return d.screen.say(d.stage, now, fmt.Sprintf("worker %d", worker+1), what)
}

// answer does what a report asks for. A worker that cannot be told anything has ended, of which its exit tells.
func (d *director) answer(ctx context.Context, n reported, now time.Time) error {
	switch n.report.Event {
	case ready:
		if d.stage.ready() {
			for _, p := range d.crew {
				_ = p.orders.Encode(order{})
			}
		}
	case begun:
		_ = d.crew[n.worker].orders.Encode(d.stage.order(n.worker))
	case halted:
		if n.worker != d.stage.victim { // it has lost the lock before it could be killed
			return nil
		}
		if err := d.crew[n.worker].cmd.Process.Kill(); err != nil {
			return fmt.Errorf("kill worker %d: %w", n.worker+1, err)
		}
		d.look(ctx)
		return d.say(now, n.worker, d.stage.killed(now))
	default: // the others only tell
	}
	return nil
}

// process is a worker, seen from outside.
type process struct {
	cmd    *exec.Cmd
	orders *json.Encoder // to its stdin, which ends with us however we end
	stdout io.Reader
	stderr bytes.Buffer
}

// start starts this program as a worker.
func start(args []string, j job) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self, args...)}
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if p.stdout, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.orders = json.NewEncoder(stdin)
	_ = p.orders.Encode(j) // if it has ended already, its exit says why
	return p, nil
}

// wait waits for the end, after all of stdout has been read. The error is what the process has said, or else what has
// ended it.
func (p *process) wait() error {
	err := p.cmd.Wait()
	said, _, _ := strings.Cut(p.stderr.String(), "\n")
	if err != nil && said != "" {
		return errors.New(strings.TrimPrefix(said, "stile: "))
	}
	return err
}
