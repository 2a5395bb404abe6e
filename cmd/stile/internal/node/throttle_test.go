package node

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestStrangersCannotFillTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		var events *throttle
		logged := func() (lines []string) {
			events.mu.Lock()
			defer events.mu.Unlock()
			defer said.Reset()
			return strings.Split(strings.TrimSpace(said.String()), "\n")
		}
		events = &throttle{logger: slog.New(slog.NewTextHandler(&said, nil)), level: slog.LevelWarn, text: "login failed"}
		for i := range 1000 {
			events.log("from", fmt.Sprint("host", i))
		}
		if lines := logged(); len(lines) != 10 || !strings.Contains(lines[0], "host0") || !strings.Contains(lines[9], "host9") {
			t.Errorf("of 1000 events at once: %q", lines)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], "host999") || !strings.Contains(lines[0], "times=990") ||
			!strings.Contains(lines[0], "level=WARN") {
			t.Errorf("at the end of the minute: %q", lines)
		}
		events.log("from", "later")
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], "later") {
			t.Errorf("of the first event of another minute: %q", lines)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if lines := logged(); lines[0] != "" {
			t.Errorf("after a minute of few events: %q", lines)
		}
		for range 12 {
			events.log("from", "last")
		}
		logged()
		events.close()
		events.log("from", "nobody")
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], "times=2") {
			t.Errorf("in the end: %q", lines)
		}
	})
}
