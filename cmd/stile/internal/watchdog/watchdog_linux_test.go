package watchdog

import (
	"errors"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stilelock/stile/cmd/stile/internal/child"
)

// pipes returns a watchdog without a process, and the file with its messages.
func pipes(t *testing.T) (w *Watchdog, messages *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	return &Watchdog{pipe: write}, read
}

func TestWatchdog_messages(t *testing.T) {
	t.Parallel()
	w, messages := pipes(t)
	w.Until(time.Hour)
	w.Close()
	text, err := io.ReadAll(messages)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Fields(string(text)); len(lines) != 2 || lines[1] != dismissal {
		t.Errorf("got messages %q, want a deadline and %q", text, dismissal)
	}
}

// A watchdog that does not read, because it is stopped or dead, blocks nobody.
func TestWatchdog_doesNotBlock(t *testing.T) {
	t.Parallel()
	w, messages := pipes(t)
	for range 20_000 { // more than fit into the pipe
		w.Until(time.Hour)
	}
	messages.Close()
	w.Until(time.Hour)
	w.Close()
	w.Until(time.Hour)
	if err := w.pipe.Close(); err == nil {
		t.Error("the pipe was still open after Close")
	}
}

func TestInbox(t *testing.T) {
	t.Parallel()
	w, messages := pipes(t)
	in := inbox{fd: int(messages.Fd())}
	wants := func(text string, err error) {
		t.Helper()
		if gotText, gotErr := in.receive(0); gotText != text || !errors.Is(gotErr, err) {
			t.Errorf("got %q, %v; want %q, %v", gotText, gotErr, text, err)
		}
	}
	wants("", errNoMessage)
	for i := range 10_000 { // more than one read
		w.send(strconv.Itoa(i))
		if i%1000 == 999 {
			for j := i - 999; j <= i; j++ {
				wants(strconv.Itoa(j), nil)
			}
			wants("", errNoMessage)
		}
	}
	w.Close()
	wants(dismissal, nil)
	wants("", io.EOF)
}

// A charge may be larger than a pipe's buffer, and may not be UTF-8.
func TestCharge_roundTrip(t *testing.T) {
	t.Parallel()
	c := Target{
		Tree: child.Tree{Group: 4711, Started: 1 << 40, Mark: "A=b"}, Holds: []Hold{{"demo", 1<<63 - 1, "ann@web-3"}, {"b", 2048, ""}},
		URL: "etcd://root:secret@host", Dir: "/", Env: []string{"BYTES=\xff\xfe", "LONG=" + strings.Repeat("x", 1<<20)},
		NotBefore: time.Hour, PID: 42,
	}
	f, err := c.write()
	if err != nil {
		t.Fatal(err)
	}
	again, err := readTarget(f)
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("got %+v, %v; want the target that was written", again, err)
	}
	if _, err := f.Stat(); err == nil {
		t.Error("the file is still open")
	}
}
