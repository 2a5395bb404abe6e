//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// cpuOf returns the processor time that a process has used, with all of its threads.
func cpuOf(pid int) (time.Duration, error) {
	const schedClock = 2 // CPUCLOCK_SCHED, in the lowest bits; the others are the complement of the process id
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// statusOf returns a value of /proc/pid/status in bytes: VmRSS, or VmHWM for the peak of it.
func statusOf(pid int, key string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no %s", pid, key) // as when it has ended
}

// children returns the ids of this process's children.
func children() (pids []int) {
	paths, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, task := range paths {
		text, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// limitMemory ends the returned context if this process and its children use more than limit bytes
// together. peak returns the most that they have used so far.
func limitMemory(ctx context.Context, limit int64) (_ context.Context, peak func() int64, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var most atomic.Int64
	look := func() {
		sum := int64(0)
		for _, pid := range append(children(), os.Getpid()) {
			if rss, err := statusOf(pid, "VmRSS"); err == nil {
				sum += rss
			}
		}
		most.Store(max(most.Load(), sum))
		if sum > limit {
			cancel(fmt.Errorf("the processes use %d MB together, more than -memory allows", sum/1e6))
		}
	}
	look()
	go func() {
		ticker := time.NewTicker(250 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				look()
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, most.Load, func() { cancel(nil) }
}
