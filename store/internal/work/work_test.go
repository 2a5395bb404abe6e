package work_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store/internal/work"
)

func TestWaitWaitsForAllThatWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g work.Group
		start := time.Now()
		for _, d := range []time.Duration{time.Second, time.Minute} {
			if !g.Start(func() { time.Sleep(d) }) {
				t.Error("a group that was refused nothing does not start")
			}
		}
		g.Refuse() // ends nobody
		g.Wait()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("waited for %v, and one worked for a minute", took)
		}
	})
}

func TestNothingStartsAfterRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g work.Group
		g.Refuse()
		if g.Start(func() { t.Error("it was started") }) {
			t.Error("Start says that it was started")
		}
		g.Wait()
	})
}

// What works may itself need help: also while somebody waits for the end.
func TestWaitWaitsForThoseWhoAreStartedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g work.Group
		start := time.Now()
		g.Start(func() {
			time.Sleep(time.Second)
			g.Start(func() { time.Sleep(time.Second) })
		})
		g.Wait()
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("waited for %v", took)
		}
	})
}
