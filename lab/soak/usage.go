//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used up to a moment.
type usage struct {
	at     time.Time
	cpu    time.Duration
	memory int64 // resident bytes
}

// usageOf reads the usage of a process from /proc.
func usageOf(pid int) (usage, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	_, rest, _ := strings.Cut(string(text), ") ") // after the name, which may contain anything
	fields := strings.Fields(rest)
	const utime, stime, rss = 14 - 3, 15 - 3, 24 - 3 // field numbers of proc(5), counted from the third field
	if len(fields) <= rss {
		return usage{}, fmt.Errorf("/proc/%d/stat: unexpected content %q", pid, text)
	}
	var sum [3]int64
	for i, field := range []int{utime, stime, rss} {
		if sum[i], err = strconv.ParseInt(fields[field], 10, 64); err != nil {
			return usage{}, err
		}
	}
	const tick = time.Second / 100 // on every Linux
	return usage{
		at: time.Now(), cpu: time.Duration(sum[0]+sum[1]) * tick, memory: sum[2] * int64(os.Getpagesize()),
	}, nil
}

// trackPeak polls the memory of a process until it has ended and then sends the peak. (The rusage
// of a child that has ended would not do: it includes what the parent used when it forked.)
func trackPeak(pid int) <-chan int64 {
	result := make(chan int64, 1)
	go func() {
		var peak int64
		for {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, rest, found := strings.Cut(string(text), "VmHWM:")
			if err != nil || !found { // the process has ended or is about to
				result <- peak
				return
			}
			if kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
				peak = max(peak, kilobytes<<10)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return result
}

// cpuShareSince returns the processor time used since an earlier usage, as a fraction of one
// processor.
func (u usage) cpuShareSince(earlier usage) float64 {
	return (u.cpu - earlier.cpu).Seconds() / u.at.Sub(earlier.at).Seconds()
}

func megabytes(bytes int64) string { return fmt.Sprintf("%d MB", (bytes+1<<19)>>20) }

func percent(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }
