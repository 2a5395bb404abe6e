//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stilelock/stile"
)

// A holder is a process with one session that holds many locks.
type holder struct {
	cmd     *exec.Cmd
	stderr  *bytes.Buffer
	in      io.WriteCloser
	replies *json.Decoder
}

// A command is what a holder is told to do.
type command struct {
	Op  string        `json:"op"`
	N   int           `json:"n,omitempty"`
	TTL time.Duration `json:"ttl,omitempty"`
}

// The values of command.Op.
const (
	opOpen    = "open"    // open the session, with a TTL, and acquire one lock
	opTake    = "take"    // acquire N locks, which the holder then has
	opState   = "state"   // report the state
	opRenewal = "renewal" // wait until N renewals more are confirmed, or three TTLs have passed
	opLines   = "lines"   // read the lines of all names
	opClose   = "close"   // release all, and close the session
)

// state is a holder's state at the end of a command.
type state struct {
	Err        string        `json:"err,omitempty"`
	Took       time.Duration `json:"took_ns"` // by the command
	CPU        time.Duration `json:"cpu_ns"`
	Heap       int64         `json:"heap"` // of objects and stacks, after a collection; only after opState and opLines
	Goroutines int           `json:"goroutines"`
	Renewals   int           `json:"renewals"` // confirmed
	Failed     int           `json:"failed"`   // renewals that were not confirmed
	Lost       int           `json:"lost"`     // held locks
	Lines      int           `json:"lines"`    // that opLines has read
}

// startHolder starts a holder that uses the servers at a URL.
func startHolder(ctx context.Context, contender, url string) (*holder, error) {
	w := worker{job: jobHold, url: url, contender: contender}
	cmd, stderr, err := w.command(ctx)
	if err != nil {
		return nil, err
	}
	h := &holder{cmd: cmd, stderr: stderr}
	if h.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.replies = json.NewDecoder(out)
	return h, cmd.Start()
}

// do lets the holder execute a command.
func (h *holder) do(c command) (s state, err error) {
	if err := json.NewEncoder(h.in).Encode(c); err != nil {
		return s, errors.Join(fmt.Errorf("%s: %w", c.Op, err), h.kill())
	}
	if err := h.replies.Decode(&s); err != nil {
		return s, errors.Join(fmt.Errorf("%s: %w", c.Op, err), h.kill())
	}
	if s.Err != "" {
		return s, fmt.Errorf("%s: %s", c.Op, s.Err)
	}
	return s, nil
}

// kill ends the process and returns how it ended.
func (h *holder) kill() error {
	if h.cmd.ProcessState != nil {
		return nil
	}
	_ = h.cmd.Process.Kill()
	err := h.cmd.Wait()
	return fmt.Errorf("the holder ended: %w: %s", err, tail(h.stderr.String()))
}

// holding is the work of a holder in its own process.
type holding struct {
	conn    connection
	ttl     time.Duration
	session session

	renewals, failed atomic.Int64
	renewed          chan struct{} // receives when a renewal is confirmed

	held []held
}

// runHolder executes commands until in ends.
func runHolder(ctx context.Context, conn connection, in io.Reader, out io.Writer) error {
	h := &holding{conn: conn, renewed: make(chan struct{}, 1)}
	commands, replies := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var c command
		if err := commands.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		began := time.Now()
		s := state{}
		err := h.execute(ctx, c, &s)
		s.Took = time.Since(began)
		if err != nil {
			s.Err = err.Error()
		}
		if c.Op == opState {
			s.Heap = heap()
		}
		s.Goroutines, s.Renewals, s.Failed = runtime.NumGoroutine(), int(h.renewals.Load()), int(h.failed.Load())
		if s.CPU, err = cpuOf(os.Getpid()); err != nil {
			return err
		}
		for _, l := range h.held {
			if l, ok := l.(stileHeld); ok && !l.Valid() {
				s.Lost++
			}
		}
		if err := replies.Encode(s); err != nil {
			return err
		}
	}
}

// heap returns the bytes of all objects and stacks in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers have released
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func (h *holding) execute(ctx context.Context, c command, s *state) error {
	switch c.Op {
	case opOpen:
		h.ttl = c.TTL
		return h.open(ctx)
	case opTake:
		return h.take(ctx, c.N)
	case opRenewal:
		return h.awaitRenewals(ctx, c.N)
	case opLines:
		return h.lines(ctx, s)
	case opClose:
		return h.session.close(ctx)
	case opState:
		return nil
	}
	return fmt.Errorf("unknown command %q", c.Op)
}

func (h *holding) open(ctx context.Context) (err error) {
	if conn, ok := h.conn.(stileConnection); ok {
		h.session, err = conn.openWith(&stile.Options{TTL: h.ttl, Hooks: stile.Hooks{SessionRenewed: h.countRenewal}})
	} else {
		h.session, err = h.conn.open(ctx, h.ttl)
	}
	if err != nil {
		return err
	}
	_, err = h.session.lock(ctx, "first")
	return err
}

func (h *holding) countRenewal(e stile.RenewalEvent) {
	if e.Err != nil {
		h.failed.Add(1)
		return
	}
	h.renewals.Add(1)
	select {
	case h.renewed <- struct{}{}:
	default:
	}
}

// parallelism is the number of concurrent requests while a holder acquires its locks.
const parallelism = 64

func (h *holding) take(ctx context.Context, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.held = make([]held, n)
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(n, parallelism) {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				l, err := h.session.lock(ctx, manyName(i))
				if err != nil {
					cancel(err)
					return
				}
				h.held[i] = l
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// manyName returns the name of the i-th of many locks.
func manyName(i int) string { return fmt.Sprintf("many/%06d", i) }

func (h *holding) awaitRenewals(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	if _, ok := h.session.(*stileSession); !ok {
		return errors.New("the renewals of this contender are not known")
	}
	ctx, cancel := context.WithTimeout(ctx, 3*h.ttl) // a lost session is not renewed
	defer cancel()
	for want := h.renewals.Load() + int64(n); h.renewals.Load() < want; {
		select {
		case <-h.renewed:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// lines reads the lines of all names. The heap is what the result takes.
func (h *holding) lines(ctx context.Context, s *state) error {
	client := h.session.(*stileSession).client
	before := heap()
	began := time.Now()
	lines, err := client.Lines(ctx, "many/")
	if err != nil {
		return err
	}
	s.Took, s.Lines = time.Since(began), len(lines)
	s.Heap = heap() - before
	runtime.KeepAlive(lines)
	return nil
}
