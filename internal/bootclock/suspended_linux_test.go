package bootclock

import (
	"testing"
	"time"
)

// A reading stands for a later one only if it is young and the clocks have kept their distance: a suspend
// moves the wall clock away from the monotonic clock.
func TestReading_standsFor(t *testing.T) {
	const at, ahead = time.Hour, 24 * time.Hour
	r := reading{at: at, ahead: ahead}
	for name, test := range map[string]struct {
		age, drift time.Duration
		stands     bool
	}{
		"at once":                    {0, 0, true},
		"soon":                       {50 * time.Millisecond, 100 * time.Microsecond, true},
		"too old":                    {maxReadingAge, 0, false},
		"after a suspend":            {time.Millisecond, time.Minute, false},
		"after a short suspend":      {time.Millisecond, maxReadingDrift, false},
		"after the clock was put on": {time.Millisecond, -time.Hour, false},
		"from another clock":         {-time.Minute, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := r.standsFor(reading{at: at + test.age, ahead: ahead + test.drift}); got != test.stands {
				t.Errorf("got %v, want %v", got, test.stands)
			}
		})
	}
}

// A suspend between two readings counts at once.
func TestSuspended_afterSuspend(t *testing.T) {
	before := suspended(time.Now())
	r := *last.Load()
	r.ahead -= time.Minute        // as if the wall clock had gone on for a minute since then
	r.suspended = before - 1e9*60 // what was measured before that minute
	last.Store(&r)
	if got := suspended(time.Now()); got < before {
		t.Errorf("got %v, want at least the %v that were measured now", got, before)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
