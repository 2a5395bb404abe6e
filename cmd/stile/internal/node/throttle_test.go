package node

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestThrottle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		var events *throttle
		logged := func() (lines []string) {
			events.mu.Lock()
			defer events.mu.Unlock()
			defer out.Reset()
			return strings.Split(strings.TrimSpace(out.String()), "\n")
		}
		events = &throttle{logger: slog.New(slog.NewTextHandler(&out, nil)), level: slog.LevelWarn, text: "login failed"}
		for i := range 1000 {
			events.log("from", fmt.Sprint("host", i))
		}
		if lines := logged(); len(lines) != 10 || !strings.Contains(lines[0], "host0") || !strings.Contains(lines[9], "host9") {
			t.Errorf("1000 events at once: got %q, want the first ten", lines)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], "host999") || !strings.Contains(lines[0], "times=990") ||
			!strings.Contains(lines[0], "level=WARN") {
			t.Errorf("end of the minute: got %q, want a summary of 990", lines)
		}
		events.log("from", "later")
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], "later") {
			t.Errorf("first event of the next minute: got %q, want one line", lines)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if lines := logged(); lines[0] != "" {
			t.Errorf("after a minute of few events: got %q, want none", lines)
		}
		for range 12 {
			events.log("from", "last")
		}
		logged()
		events.close()
		events.log("from", "nobody")
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], "times=2") {
			t.Errorf("after close: got %q, want a summary of 2", lines)
		}
	})
}
