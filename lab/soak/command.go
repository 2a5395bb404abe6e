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

// use is one use of the command.
type use struct {
	took   time.Duration
	cpu    time.Duration
	memory int64 // at most
	output int   // bytes
}

func (u use) String() string {
	return fmt.Sprintf("%v, of which the command computes %v; it has %s and writes %d kB", show(u.took), show(u.cpu), megabytes(u.memory),
		u.output/1000)
}

// command uses a verb of the command on the server, and returns what it has written.
func (s *server) command(ctx context.Context, args ...string) (use, string, error) {
	cmd := exec.CommandContext(ctx, s.stile, args...)
	cmd.Env = append(cmd.Environ(), "STILE_URL="+s.url())
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return use{}, "", err
	}
	peak := peakOf(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		return use{}, "", fmt.Errorf("stile %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return use{took: time.Since(began), cpu: computed(cmd), memory: <-peak, output: out.Len()}, out.String(), nil
}

func computed(cmd *exec.Cmd) time.Duration {
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// watched is how a stile watch went.
type watched struct {
	first   time.Duration // until everything was written as it is
	changes times         // until a change was written
	cpu     time.Duration
	memory  int64 // at most
}

// watch starts stile watch, waits until it has written so many events, and then has changes made, which it is to write.
// change makes one, to a line whose name is returned.
func (s *server) watch(ctx context.Context, events, changes int, change func() (string, error)) (w watched, err error) {
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
	peak := peakOf(cmd.Process.Pid)
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		w.cpu, w.memory = computed(cmd), <-peak
	}()
	lines := bufio.NewReader(out)
	for range events {
		if _, err := lines.ReadString('\n'); err != nil {
			return w, fmt.Errorf("stile watch: %w", err)
		}
	}
	w.first = time.Since(began)
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
