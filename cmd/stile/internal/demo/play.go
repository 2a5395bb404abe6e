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

// play is the demo as the parent sees it.
type play struct {
	Config
	job    job           // of every worker, but for its number
	client *stile.Client // on the workers' store; nil without a lock
	start  chan struct{} // closed when all workers are ready
	began  time.Time

	mu      sync.Mutex // guards what follows
	screen  screen
	parts   []part
	line    stile.Line // as last read
	lineErr error      // why it could not be read
	said    string     // of the line, last
	number  int        // in the file, as last read

	halves   int // workers that have been halfway
	killedAt time.Time
	reopened time.Time // when the next worker had the lock after the kill
}

// part is what is known of one worker.
type part struct {
	pid   int
	last  event // as the worker reports it; the store alone says where the worker stands in the line
	added int   // acknowledged
}

func newPlay(c Config, j job) *play {
	return &play{
		Config: c, job: j, start: make(chan struct{}), screen: newScreen(c.Out, c.Workers),
		parts: make([]part, c.Workers),
	}
}

// run returns when all workers have ended, or when one has failed or ctx has ended. No process is left then.
func (p *play) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	var workers, viewers sync.WaitGroup
	for i := range p.parts {
		workers.Go(func() {
			if err := p.employ(ctx, i); err != nil {
				stop(err)
			}
		})
	}
	viewers.Go(func() {
		tick := time.Tick(interval)
		for ctx.Err() == nil {
			select {
			case now := <-tick:
				if err := p.look(now); err != nil {
					stop(err)
				}
			case <-ctx.Done():
			}
		}
	})
	if p.client != nil {
		viewers.Go(func() {
			for line, err := range p.client.WatchLine(ctx, p.job.Lock) {
				if err := p.saw(line, err, time.Now()); err != nil {
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

// employ runs worker i until it ends. The error says why, unless it has done its part or was killed by p.
func (p *play) employ(ctx context.Context, i int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, p.Worker(i+1)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, inErr := cmd.StdinPipe() // which ends with us however we end
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
	_ = orders.Encode(j) // if it has ended, its exit says why; and so below
	for err == nil {
		var r report
		if reports.Decode(&r) != nil {
			break // it has ended, or is about to
		}
		var kill bool
		if kill, err = p.told(i, r, time.Now()); kill {
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
		cancel() // which kills it
	}
	if exited := p.exited(i, cmd.Wait(), stderr.String()); err == nil {
		err = exited
	}
	return err
}

// told takes in what worker i has reported. It reports whether the worker is to be killed.
func (p *play) told(i int, r report, now time.Time) (kill bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.parts[i]
	if w.last == killed {
		return false, nil // it reported this before it died
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
		// The worker in the middle is killed: another one comes after it, and shows when the lock is free again.
		p.halves++
		kill = p.halves == len(p.parts)/2
	default:
	}
	return kill, p.say(now, workerName(i), r.Text)
}

// kill kills worker i, and shows that nothing has changed in the store.
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
	return p.saw(line, err, time.Now())
}

// exited takes in that worker i's process has ended. It returns an error if it should not have.
func (p *play) exited(i int, err error, stderr string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.parts[i]
	if w.last == done && err == nil || w.last == killed {
		return nil
	}
	why := "it has ended too early"
	if said, _, _ := strings.Cut(stderr, "\n"); said != "" {
		why = strings.TrimPrefix(said, "stile: ")
	} else if err != nil {
		why = err.Error()
	}
	return fmt.Errorf("worker %d (pid %d) has failed after acknowledging %d: %s", i+1, w.pid, w.added, why)
}

// saw takes in a reading of the line.
func (p *play) saw(l stile.Line, err error, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lineErr = err; err == nil {
		p.line = l
	}
	text := p.lineText()
	if text == p.said {
		return nil
	}
	p.said = text
	return p.say(now, "line", text)
}

// look reads the number in the file, to be shown.
func (p *play) look(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number, _ = readCounter(p.job.Counter) // if it cannot be read, that is an error at the end
	return p.draw(now)
}

// acknowledged is how many increments the workers have acknowledged, the killed one too.
func (p *play) acknowledged() (n int) {
	for _, w := range p.parts {
		n += w.added
	}
	return n
}
