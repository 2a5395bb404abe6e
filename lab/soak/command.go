//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// commandRun is what one run of the stile command used.
type commandRun struct {
	took       time.Duration
	cpu        time.Duration
	peakMemory int64 // bytes
	output     int   // bytes
}

func (u commandRun) String() string {
	return fmt.Sprintf("%v; the command uses %v of processor time and %s, and writes %d kB", formatDuration(u.took), formatDuration(u.cpu), megabytes(u.peakMemory),
		u.output/1000)
}

// command runs the stile command against the server and returns its output.
func (s *server) command(ctx context.Context, args ...string) (commandRun, string, error) {
	cmd := exec.CommandContext(ctx, s.stile, args...)
	cmd.Env = append(cmd.Environ(), "STILE_URL="+s.url())
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return commandRun{}, "", err
	}
	peak := trackPeak(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		return commandRun{}, "", fmt.Errorf("stile %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return commandRun{took: time.Since(began), cpu: cpuTime(cmd), peakMemory: <-peak, output: out.Len()}, out.String(), nil
}

func cpuTime(cmd *exec.Cmd) time.Duration {
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// watchResult is the measurement of a stile watch.
type watchResult struct {
	initial    time.Duration // until the state at the start was written
	changes    durations     // until a change was written
	cpu        time.Duration
	peakMemory int64 // bytes
}

// watch starts stile watch, reads as many events as the initial state has, and then calls change
// repeatedly. change acquires a lock and returns its name. watch measures the time until stile
// watch has written the new hold.
func (s *server) watch(ctx context.Context, events, changes int, change func() (string, error)) (w watchResult, err error) {
	cmd := exec.CommandContext(ctx, s.stile, "watch")
	cmd.Env = append(cmd.Environ(), "STILE_URL="+s.url())
	out, err := cmd.StdoutPipe()
	if err != nil {
		return w, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return w, err
	}
	peak := trackPeak(cmd.Process.Pid)
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		w.cpu, w.peakMemory = cpuTime(cmd), <-peak
	}()
	lines := bufio.NewReader(out)
	for range events {
		if _, err := lines.ReadString('\n'); err != nil {
			return w, fmt.Errorf("stile watch: %w", err)
		}
	}
	w.initial = time.Since(began)
	for range changes {
		changed := time.Now()
		name, err := change()
		if err != nil {
			return w, err
		}
		for line := ""; !strings.Contains(line, "  "+name+"  holds "); {
			if line, err = lines.ReadString('\n'); err != nil {
				return w, fmt.Errorf("stile watch: %w", err)
			}
		}
		w.changes = append(w.changes, time.Since(changed))
	}
	return w, nil
}
