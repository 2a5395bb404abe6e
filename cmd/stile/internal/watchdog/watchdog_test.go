package watchdog

import (
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// watched is a watchdog in this process, with its messages.
type watched struct {
	messages chan string
	started  time.Time
	kills    atomic.Int64
	left     atomic.Int64 // the deadline passed to orphaned; -1 if it was not called
	gone     chan struct{}
}

// watch starts a watchdog. The test must dismiss it or close messages.
func watch() *watched {
	w := &watched{messages: make(chan string), started: time.Now(), gone: make(chan struct{})}
	w.left.Store(-1)
	go func() {
		defer close(w.gone)
		await(w.receive, func() time.Duration { return time.Since(w.started) }, func() { w.kills.Add(1) },
			func(deadline time.Duration) { w.left.Store(int64(deadline)) })
	}()
	return w
}

func (w *watched) receive(wait time.Duration) (string, error) {
	select {
	case text, ok := <-w.messages:
		if !ok {
			return "", io.EOF
		}
		return text, nil
	case <-time.After(wait):
		return "", errNoMessage
	}
}

func (w *watched) send(text string) { w.messages <- text }

func (w *watched) wants(t *testing.T, kills int) {
	t.Helper()
	synctest.Wait()
	if got := int(w.kills.Load()); got != kills {
		t.Errorf("after %v: %d kills, want %d", time.Since(w.started), got, kills)
	}
}

func deadline(d time.Duration) string { return fmt.Sprint(int64(d)) }

func TestAwait_killsAtDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.send(deadline(5 * time.Second))
		time.Sleep(3 * time.Second)
		w.send(deadline(8 * time.Second)) // renewed
		time.Sleep(5*time.Second - time.Nanosecond)
		w.wants(t, 0)
		time.Sleep(time.Nanosecond)
		w.wants(t, 1)
		w.send(dismissal)
		<-w.gone
		w.wants(t, 1)
	})
}

// The watchdog stood still until its deadline had passed, and the lock was renewed meanwhile.
func TestAwait_renewedMeanwhile(t *testing.T) {
	var clock time.Duration
	steps := []func() (string, error){
		func() (string, error) { return deadline(5 * time.Second), nil },
		func() (string, error) { clock = 10 * time.Second; return "", errNoMessage }, // stood still after it had found the pipe empty
		func() (string, error) { return deadline(8 * time.Second), nil },
		func() (string, error) { return deadline(14 * time.Second), nil },
		func() (string, error) { return "", errNoMessage },
		func() (string, error) { return dismissal, nil },
	}
	await(func(time.Duration) (string, error) {
		step := steps[0]
		steps = steps[1:]
		return step()
	}, func() time.Duration { return clock },
		func() { t.Error("killed a command whose lock was renewed") },
		func(time.Duration) { t.Error("orphaned, want dismissed") })
}

// wantsOrphaned checks the deadline passed to orphaned; -1 means that it was not called.
func (w *watched) wantsOrphaned(t *testing.T, deadline time.Duration) {
	t.Helper()
	if got := time.Duration(w.left.Load()); got != deadline {
		t.Errorf("orphaned with deadline %v, want %v", got, deadline)
	}
}

func TestAwait_orphanedWhenPipeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.send(deadline(5 * time.Second))
		w.send(deadline(8 * time.Second))
		close(w.messages)
		<-w.gone
		w.wants(t, 0)
		w.wantsOrphaned(t, 8*time.Second)
	})
}

// The other process was stopped for too long, the command was killed, and the lock may have another
// holder.
func TestAwait_orphanedAfterDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.send(deadline(5 * time.Second))
		time.Sleep(10 * time.Second)
		w.wants(t, 1)
		close(w.messages)
		<-w.gone
		w.wants(t, 1)
		w.wantsOrphaned(t, 5*time.Second) // a deadline that has passed
	})
}

func TestAwait_dismissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.send(deadline(time.Second))
		w.send(dismissal)
		close(w.messages)
		<-w.gone
		time.Sleep(time.Minute)
		w.wants(t, 0)
		w.wantsOrphaned(t, -1)
	})
}

func TestAwait_withoutDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		time.Sleep(time.Hour)
		w.send(deadline(time.Hour + time.Second))
		w.send("0")
		time.Sleep(time.Hour)
		w.wants(t, 0)
		w.send(dismissal)
		<-w.gone
	})
}
