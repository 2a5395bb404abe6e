package watchdog

import (
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/cmd/stile/internal/child"
)

// pipes returns a watchdog that nobody is, and what it is told.
func pipes(t *testing.T) (w *Watchdog, told *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	return &Watchdog{pipe: write}, read
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

// What a watchdog has to know may be more than there is room for in a pipe, and not be UTF-8.
func TestAChargeIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	c := Charge{
		Tree: child.Tree{Group: 4711, Started: 1 << 40, Mark: "A=b"}, Name: "demo", Token: 1<<63 - 1, Owner: "ann@web-3",
		URL: "etcd://root:secret@host", Dir: "/", Env: []string{"BYTES=\xff\xfe", "LONG=" + strings.Repeat("x", 1<<20)},
		NotBefore: time.Hour, PID: 42,
	}
	f, err := c.write()
	if err != nil {
		t.Fatal(err)
	}
	again, err := readCharge(f)
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("read %+v, %v", again, err)
	}
	if _, err := f.Stat(); err == nil {
		t.Error("the file is still open")
	}
}
