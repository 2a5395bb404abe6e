package watchdog

import (
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// watched is a watchdog in the making, with its pipe.
type watched struct {
	pipe  *io.PipeWriter
	began time.Time
	kills atomic.Int64
	left  atomic.Int64 // the deadline with which it was orphaned; -1 if it was not
	gone  chan struct{}
}

// watch starts one. The test must close the pipe.
func watch() *watched {
	read, write := io.Pipe()
	w := &watched{pipe: write, began: time.Now(), gone: make(chan struct{})}
	w.left.Store(-1)
	go func() {
		defer close(w.gone)
		await(read, func() time.Duration { return time.Since(w.began) }, func() { w.kills.Add(1) },
			func(deadline time.Duration) { w.left.Store(int64(deadline)) })
	}()
	return w
}

func (w *watched) tell(text string) { fmt.Fprintln(w.pipe, text) }

func (w *watched) wants(t *testing.T, kills int) {
	t.Helper()
	synctest.Wait()
	if got := int(w.kills.Load()); got != kills {
		t.Errorf("after %v: %d kills, want %d", time.Since(w.began), got, kills)
	}
}

func deadline(d time.Duration) string { return fmt.Sprint(int64(d)) }

func TestWhoIsNotToldInTimeKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.tell(deadline(5 * time.Second))
		time.Sleep(3 * time.Second)
		w.tell(deadline(8 * time.Second)) // renewed
		time.Sleep(5*time.Second - time.Nanosecond)
		w.wants(t, 0)
		time.Sleep(time.Nanosecond)
		w.wants(t, 1)
		w.tell(over)
		<-w.gone
		w.pipe.Close()
		w.wants(t, 1)
	})
}

// wantsOrphaned checks with which deadline it was orphaned, if it was.
func (w *watched) wantsOrphaned(t *testing.T, deadline time.Duration) {
	t.Helper()
	if got := time.Duration(w.left.Load()); got != deadline {
		t.Errorf("orphaned with the deadline %v, want %v", got, deadline)
	}
}

func TestTheEndOfTheOtherProcessIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.tell(deadline(5 * time.Second))
		w.tell(deadline(8 * time.Second))
		w.pipe.Close()
		<-w.gone
		w.wants(t, 0)
		w.wantsOrphaned(t, 8*time.Second)
	})
}

// The command was killed, because the other process was stopped for too long. The lock is not its own any more.
func TestTheEndOfTheOtherProcessAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.tell(deadline(5 * time.Second))
		time.Sleep(10 * time.Second)
		w.wants(t, 1)
		w.pipe.Close()
		<-w.gone
		w.wants(t, 1)
		w.wantsOrphaned(t, 5*time.Second) // it is over
	})
}

func TestWhoIsDismissedKillsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.tell(deadline(time.Second))
		w.tell(over)
		w.pipe.Close()
		<-w.gone
		time.Sleep(time.Minute)
		w.wants(t, 0)
		w.wantsOrphaned(t, -1)
	})
}

func TestWithoutADeadlineNobodyIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		time.Sleep(time.Hour)
		w.tell(deadline(time.Hour + time.Second))
		w.tell("0")
		time.Sleep(time.Hour)
		w.wants(t, 0)
		w.tell(over)
		<-w.gone
		w.pipe.Close()
	})
}
