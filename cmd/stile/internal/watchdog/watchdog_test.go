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
	gone  chan struct{}
}

// watch starts one. The test must close the pipe.
func watch() *watched {
	read, write := io.Pipe()
	w := &watched{pipe: write, began: time.Now(), gone: make(chan struct{})}
	go func() {
		defer close(w.gone)
		Watch(read, func() time.Duration { return time.Since(w.began) }, func() { w.kills.Add(1) })
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

func TestTheEndOfTheOtherProcessKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch()
		w.pipe.Close()
		<-w.gone
		w.wants(t, 1)
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
