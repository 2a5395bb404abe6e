package watchdog

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// pipes returns a watchdog that nobody is, and what it is told.
func pipes(t *testing.T) (w *Watchdog, told *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	return &Watchdog{write}, read
}

func TestAWatchdogIsToldADeadlineAndThatAllIsOver(t *testing.T) {
	t.Parallel()
	w, told := pipes(t)
	w.Until(time.Hour)
	w.Close()
	text, err := io.ReadAll(told)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Fields(string(text)); len(lines) != 2 || lines[1] != over {
		t.Errorf("told %q, want a deadline and %q", text, over)
	}
}

// It may have been stopped, or be dead.
func TestAWatchdogThatDoesNotListenIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	w, told := pipes(t)
	for range 20_000 { // more than there is room for: it would wait for ever
		w.Until(time.Hour)
	}
	told.Close()
	w.Until(time.Hour)
	w.Close()
	w.Until(time.Hour)
	if err := w.pipe.Close(); err == nil {
		t.Error("the pipe was still open after Close")
	}
}
