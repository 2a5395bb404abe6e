package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile"
)

// play is the parent's state of the demo.
type play struct {
	Config
	job     job           // of every worker, without its number
	client  *stile.Client // on the workers' store; nil without a lock
	start   chan struct{} // closed when all workers are ready
	started time.Time

	mu        sync.Mutex // protects the fields below
	screen    screen
	parts     []part
	line      stile.Line // as last read
	lineErr   error      // why it could not be read
	lineShown string     // the last text about the line
	number    int        // in the file, as last read

	halves   int // number of workers that have reported halfway
	killedAt time.Time
	reopened time.Time // when the next worker got the lock after the kill
}

// part is the state of one worker.
type part struct {
	pid   int
	last  event // as reported by the worker; the worker's place in the line is read from the store
	added int   // acknowledged
}

func newPlay(c Config, j job) *play {
	return &play{
		Config: c, job: j, start: make(chan struct{}), screen: newScreen(c.Out, c.Workers),
		parts: make([]part, c.Workers),
	}
}

// run runs the workers. It returns when all of them have ended, or when one has failed or ctx has
// ended; no process is left then.
func (p *play) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	var workers, viewers sync.WaitGroup
	for i := range p.parts {
		workers.Go(func() {
			if err := p.runWorker(ctx, i); err != nil {
				stop(err)
			}
		})
	}
	viewers.Go(func() {
		tick := time.Tick(drawInterval)
		for ctx.Err() == nil {
			select {
			case now := <-tick:
				if err := p.update(now); err != nil {
					stop(err)
				}
			case <-ctx.Done():
			}
		}
	})
	if p.client != nil {
		viewers.Go(func() {
			for line, err := range p.client.WatchLine(ctx, p.job.Lock) {
				if err := p.handleLine(line, err, time.Now()); err != nil {
					stop(err)
				}
			}
		})
	}
	workers.Wait()
	err := context.Cause(ctx)
	stop(nil)
	viewers.Wait()
	return err
}

// runWorker runs worker i until it ends. It returns no error if the worker has done its part or was
// killed by p.
func (p *play) runWorker(ctx context.Context, i int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, p.Worker(i+1)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, inErr := cmd.StdinPipe() // ends when this process ends for any reason
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start worker %d: %w", i+1, err)
	}
	p.mu.Lock()
	p.parts[i].pid = cmd.Process.Pid
	p.mu.Unlock()
	orders, reports := json.NewEncoder(stdin), json.NewDecoder(stdout)
	j := p.job
	j.Worker = i + 1
	_ = orders.Encode(j) // if the worker has ended, exited reports the reason; so below
	for err == nil {
		var r report
		if reports.Decode(&r) != nil {
			break // the worker has ended or is about to
		}
		var kill bool
		if kill, err = p.handleReport(i, r, time.Now()); kill {
			err = p.kill(ctx, i, cmd.Process)
			continue
		}
		if r.Event == ready {
			select {
			case <-p.start:
			case <-ctx.Done():
			}
		}
		if r.Event == ready || r.Event == halfway {
			_ = orders.Encode(goOn{})
		}
	}
	if err != nil {
		cancel() // kills the worker
	}
	if exited := p.exited(i, cmd.Wait(), stderr.String()); err == nil {
		err = exited
	}
	return err
}

// handleReport handles a report of worker i. It reports whether the worker is to be killed.
func (p *play) handleReport(i int, r report, now time.Time) (kill bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.parts[i]
	if w.last == killed {
		return false, nil // sent before it was killed
	}
	w.added = r.Added
	if r.Event != added {
		w.last = r.Event
	}
	switch r.Event {
	case ready:
		if !slices.ContainsFunc(p.parts, func(w part) bool { return w.last != ready }) {
			close(p.start)
		}
	case adding:
		if !p.killedAt.IsZero() && p.reopened.IsZero() {
			p.reopened = now
		}
	case halfway:
		// A worker in the middle is killed: the one after it shows when the lock is free again.
		p.halves++
		kill = p.halves == len(p.parts)/2
	default:
	}
	return kill, p.say(now, workerName(i), r.Text)
}

// kill kills worker i, and shows that the store's line is unchanged.
func (p *play) kill(ctx context.Context, i int, process *os.Process) error {
	if err := process.Kill(); err != nil {
		return fmt.Errorf("kill worker %d: %w", i+1, err)
	}
	p.mu.Lock()
	p.killedAt, p.parts[i].last = time.Now(), killed
	err := p.say(p.killedAt, workerName(i), fmt.Sprintf("killed with -9, at %d", p.parts[i].added))
	p.mu.Unlock()
	if err != nil || p.client == nil {
		return err
	}
	line, err := p.client.Line(ctx, p.job.Lock)
	return p.handleLine(line, err, time.Now())
}

// exited handles the end of worker i's process. It returns an error if the end is unexpected.
func (p *play) exited(i int, err error, stderr string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.parts[i]
	if w.last == done && err == nil || w.last == killed {
		return nil
	}
	reason := "it ended before its work was done"
	if text, _, _ := strings.Cut(stderr, "\n"); text != "" {
		reason = strings.TrimPrefix(text, "stile: ")
	} else if err != nil {
		reason = err.Error()
	}
	return fmt.Errorf("worker %d (pid %d) failed after acknowledging %d: %s", i+1, w.pid, w.added, reason)
}

// handleLine handles a reading of the line.
func (p *play) handleLine(l stile.Line, err error, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lineErr = err; err == nil {
		p.line = l
	}
	text := p.lineText()
	if text == p.lineShown {
		return nil
	}
	p.lineShown = text
	return p.say(now, "line", text)
}

// update reads the number in the file and draws the table.
func (p *play) update(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, _ = readCounter(p.job.Counter) // Run reports a read error at the end
	return p.draw(now)
}

// acknowledged returns the number of increments that all workers have acknowledged, including the
// killed one.
func (p *play) acknowledged() (n int) {
	for _, w := range p.parts {
		n += w.added
	}
	return n
}
