package workload

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
)

// A stubborn hold says that it is valid until its deadline, and goes on to say so.
type stubborn int64

func (stubborn) Token() uint64                 { return 1 }
func (s stubborn) Until() int64                { return int64(s) }
func (stubborn) Valid() bool                   { return true }
func (stubborn) Lost() <-chan struct{}         { return nil }
func (stubborn) Why() string                   { return "" }
func (stubborn) Release(context.Context) error { return nil }

// believed returns until when the holder of h is said to have believed in it, and when it last
// asked and was told that it is valid.
func believed(t *testing.T, h locker.Hold) (until, asked int64) {
	dir, err := os.MkdirTemp("", "hold") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file, err := os.Create(filepath.Join(dir, "history.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var mu sync.Mutex
	recorder, err := history.Record(filepath.Join(dir, "recorder"), history.NewWriter(file, history.Run{}), func(e history.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case e.Acquire != nil:
			until = e.Acquire.Until
		case e.Extend != nil:
			until = max(until, e.Extend.Until)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	voice, err := history.Speak(filepath.Join(dir, "recorder"), "w1")
	if err != nil {
		t.Fatal(err)
	}
	s := &sequence{worker: &worker{config: Config{Locker: locker.Config{TTL: 200 * time.Millisecond}}, voice: voice}}
	began := history.Now()
	held := s.startHold(&history.Acquire{Call: began, Return: began, Outcome: history.OK}, h)
	for asked < began+int64(50*time.Millisecond) {
		asked = history.Now()
		if !held.valid() {
			t.Fatal("it is not valid")
		}
		time.Sleep(5 * time.Millisecond)
	}
	held.release()
	if err := voice.Close(); err != nil {
		t.Error(err)
	}
	if err := recorder.Close(); err != nil {
		t.Error(err)
	}
	return until, asked
}

func TestWhoIsToldThatAHoldIsValidBelievesSo(t *testing.T) {
	past, future := history.Now(), history.Now()+int64(time.Hour)
	if until, asked := believed(t, stubborn(past)); until < asked-minExtension {
		t.Errorf("its deadline was %v before it was last said to be valid, and counts", time.Duration(asked-until))
	}
	if until, _ := believed(t, stubborn(future)); until != future {
		t.Errorf("its deadline was %d, and %d is said", future, until)
	}
	if until, _ := believed(t, stubborn(0)); until != 0 {
		t.Errorf("it had no deadline, and %d is said", until)
	}
}
