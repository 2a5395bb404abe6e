//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used so far.
type usage struct {
	at     time.Time
	cpu    time.Duration
	memory int64 // bytes of it that are in RAM
}

// usageOf asks the system what a process uses.
func usageOf(pid int) (usage, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	_, rest, _ := strings.Cut(string(text), ") ") // after the name, which may contain anything
	fields := strings.Fields(rest)
	const utime, stime, rss = 14 - 3, 15 - 3, 24 - 3 // as proc(5) counts them
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

// peakOf follows the memory of a process until it has ended, and then tells the most that it had. (What the system tells of a
// child that has ended counts what its parent had when it started it.)
func peakOf(pid int) <-chan int64 {
	told := make(chan int64, 1)
	go func() {
		var most int64
		for {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, rest, there := strings.Cut(string(text), "VmHWM:")
			if err != nil || !there { // gone, or about to go
				told <- most
				return
			}
			if kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
				most = max(most, kilobytes<<10)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return told
}

// since is how much processor time was used, as a part of one processor, since an earlier usage.
func (u usage) since(earlier usage) float64 {
	return (u.cpu - earlier.cpu).Seconds() / u.at.Sub(earlier.at).Seconds()
}

func megabytes(bytes int64) string { return fmt.Sprintf("%d MB", (bytes+1<<19)>>20) }

func percent(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }
