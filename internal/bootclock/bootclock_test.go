package bootclock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestNow_followsFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := Now()
		time.Sleep(time.Hour)
		// Real suspends of the machine would be included, so check only the lower bound.
		if got := Now().Sub(before); got < time.Hour {
			t.Errorf("got %v after an hour of sleep", got)
		}
	})
}

func TestNow_isMonotonic(t *testing.T) {
	last := Now()
	for range 100_000 {
		now := Now()
		if now.Before(last) {
			t.Fatalf("the clock went back from %v to %v", last, now)
		}
		last = now
	}
}

func TestInstant_time(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got, want := Now().Add(time.Minute).Time(), time.Now().Add(time.Minute)
		if d := got.Sub(want).Abs(); d > noise {
			t.Errorf("a minute from now is off by %v", d)
		}
	})
}
