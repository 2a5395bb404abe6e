package bootclock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestNowFollowsFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := Now()
		time.Sleep(time.Hour)
		// Real suspends of the machine would show up here too: only the lower bound is certain.
		if got := Now().Sub(before); got < time.Hour {
			t.Errorf("an hour of sleep took %v", got)
		}
	})
}

func TestNowNeverGoesBack(t *testing.T) {
	last := Now()
	for range 100_000 {
		now := Now()
		if now.Before(last) {
			t.Fatalf("went from %v back to %v", last, now)
		}
		last = now
	}
}

func TestTimeIsRelativeToNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got, want := Now().Add(time.Minute).Time(), time.Now().Add(time.Minute)
		if d := got.Sub(want).Abs(); d > noise {
			t.Errorf("a minute from now is %v off", d)
		}
	})
}
