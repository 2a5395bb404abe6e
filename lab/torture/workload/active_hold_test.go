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

// An alwaysValid hold has the deadline that it consists of, and is valid even after it.
type alwaysValid int64

func (alwaysValid) Token() uint64                 { return 1 }
func (s alwaysValid) Until() int64                { return int64(s) }
func (alwaysValid) Valid() bool                   { return true }
func (alwaysValid) Lost() <-chan struct{}         { return nil }
func (alwaysValid) Why() string                   { return "" }
func (alwaysValid) Release(context.Context) error { return nil }

// recordedValidity holds h for a while. It returns the recorded end of its validity, and the time
// of the last call of Valid.
func recordedValidity(t *testing.T, h locker.Hold) (until, lastCheck int64) {
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
	sender, err := history.Dial(filepath.Join(dir, "recorder"), "w1")
	if err != nil {
		t.Fatal(err)
	}
	s := &sequence{worker: &worker{config: Config{Locker: locker.Config{TTL: 200 * time.Millisecond}}, sender: sender}}
	began := history.Now()
	hold := s.startHold(&history.Acquire{Call: began, Return: began, Outcome: history.OK}, h)
	for lastCheck < began+int64(50*time.Millisecond) {
		lastCheck = history.Now()
		if !hold.valid() {
			t.Fatal("the hold is not valid")
		}
		time.Sleep(5 * time.Millisecond)
	}
	hold.release()
	if err := sender.Close(); err != nil {
		t.Error(err)
	}
	if err := recorder.Close(); err != nil {
		t.Error(err)
	}
	return until, lastCheck
}

// The recorded validity lasts at least until the last time that Valid returned true.
func TestActiveHold_recordsValidity(t *testing.T) {
	past, future := history.Now(), history.Now()+int64(time.Hour)
	if until, lastCheck := recordedValidity(t, alwaysValid(past)); until < lastCheck-minExtension {
		t.Errorf("passed deadline: got a validity that ended %v before the last check", time.Duration(lastCheck-until))
	}
	if until, _ := recordedValidity(t, alwaysValid(future)); until != future {
		t.Errorf("future deadline: got validity %d, want %d", until, future)
	}
	if until, _ := recordedValidity(t, alwaysValid(0)); until != 0 {
		t.Errorf("no deadline: got validity %d, want 0", until)
	}
}
