//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"time"
)

// namesResult is what it costs to list the names in a store.
type namesResult struct {
	Lines     time.Duration `json:"lines_ns"`   // of Client.Lines
	LinesHeap int64         `json:"lines_heap"` // that its result takes, in bytes
	LinesRest phase         `json:"lines_phase"`
	Ls        *lsResult     `json:"ls,omitempty"` // not in memory: another process cannot read it
}

// lsResult is one run of the command that lists.
type lsResult struct {
	First  time.Duration `json:"first_ns"` // until its first line, which is the heading
	Name   time.Duration `json:"name_ns"`  // until the first name
	Took   time.Duration `json:"took_ns"`
	CPU    time.Duration `json:"cpu_ns"` // of the command
	Memory int64         `json:"memory"` // the peak of the command, in bytes
	Server time.Duration `json:"server_cpu_ns"`
}

// measureNames lists r.N held names, in the client that holds them, and with `stile ls`. The names are
// not all that is in the store: the holder has one more.
func measureNames(ctx context.Context, c config, r row) (row, error) {
	s, err := startServers(ctx, c, r.Store, 1)
	if err != nil {
		return r, err
	}
	defer s.stop()
	h, err := startHolder(ctx, r.Contender, s.url)
	if err != nil {
		return r, err
	}
	defer func() { _ = h.kill() }()
	held := &heldResult{TTL: ttl}
	if err := held.fill(ctx, s, h, r.N); err != nil {
		return r, err
	}
	before, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	lines, err := h.do(command{Op: opLines})
	if err != nil {
		return r, err
	}
	after, err := s.sample(ctx)
	if err != nil {
		return r, err
	}
	if lines.Lines != r.N {
		return r, fmt.Errorf("got %d names from Lines, want %d", lines.Lines, r.N)
	}
	result := &namesResult{Lines: lines.Took, LinesHeap: lines.Heap, LinesRest: after.since(before)}
	if r.Store != memoryStore {
		if result.Ls, err = runLs(ctx, c.stile, s, r.N); err != nil {
			return r, err
		}
	}
	r.Names = result
	return r, nil
}

// runLs runs `stile ls` and checks that it prints n names.
func runLs(ctx context.Context, program string, s *servers, n int) (*lsResult, error) {
	cpu, err := s.cpu()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "ls", "--url", s.url, "many/")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	peak := trackPeak(cmd.Process.Pid)
	r, read := &lsResult{}, 0
	lines := bufio.NewReader(out)
	for {
		_, err := lines.ReadSlice('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		switch read++; read {
		case 1:
			r.First = time.Since(began)
		case 2:
			r.Name = time.Since(began)
		}
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("stile ls: %w: %s", err, tail(stderr.String()))
	}
	r.Took, r.CPU, r.Memory = time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime(), peak()
	if read != n+1 {
		return nil, fmt.Errorf("stile ls has printed %d lines, want a heading and %d names", read, n)
	}
	now, err := s.cpu()
	r.Server = now - cpu
	return r, err
}

// trackPeak polls the peak of a process's memory until it ends. peak waits until then and returns it.
// (The rusage of a child that has ended would not do: it includes what the parent used when it forked.)
func trackPeak(pid int) (peak func() int64) {
	result := make(chan int64, 1)
	go func() {
		most := int64(0)
		for {
			now, err := statusOf(pid, "VmHWM")
			if err != nil {
				result <- most
				return
			}
			most = max(most, now)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return func() int64 { return <-result }
}

func namesTable(rs rows) string {
	var lines [][]string
	for _, r := range rs {
		n := r.Names
		heap := "–"
		if r.N >= 1000 && n.LinesHeap > 0 { // otherwise what else has changed matters more
			heap = fmt.Sprintf("%.1f kB", float64(n.LinesHeap)/float64(r.N)/1000)
		}
		cells := []string{r.Store, strconv.Itoa(r.N), short(n.Lines), heap}
		if n.Ls == nil {
			cells = append(cells, "–", "–", "–", "–", "–", "–")
		} else {
			cells = append(cells, fmt.Sprintf("%.0f", n.LinesRest.Requests), short(n.Ls.Name), short(n.Ls.Took), short(n.Ls.CPU),
				short(n.Ls.Server), fmt.Sprintf("%d MB", n.Ls.Memory/1e6))
		}
		lines = append(lines, cells)
	}
	return table([]string{
		"", "names", "`Lines`", "heap each", "requests", "`stile ls`: first name", "all", "CPU of the command", "CPU of the server", "memory",
	}, lines)
}

// short prints a duration with two or three digits.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
