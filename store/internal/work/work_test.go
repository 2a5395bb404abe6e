package work_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store/internal/work"
)

func TestGroup_waitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g work.Group
		start := time.Now()
		for _, d := range []time.Duration{time.Second, time.Minute} {
			if !g.Start(func() { time.Sleep(d) }) {
				t.Error("Start before Refuse: got false")
			}
		}
		g.Refuse() // stops no goroutine
		g.Wait()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("Wait took %v, want 1m", took)
		}
	})
}

func TestGroup_refuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g work.Group
		g.Refuse()
		if g.Start(func() { t.Error("the function was called") }) {
			t.Error("Start after Refuse: got true")
		}
		g.Wait()
	})
}

// A goroutine of the group may start another one while Wait is running.
func TestGroup_waitsForGoroutinesStartedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g work.Group
		start := time.Now()
		g.Start(func() {
			time.Sleep(time.Second)
			g.Start(func() { time.Sleep(time.Second) })
		})
		g.Wait()
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("Wait took %v, want 2s", took)
		}
	})
}
