package uptime

import (
	"testing"
	"time"
)

func TestAt(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{-time.Hour, 0, time.Hour} {
		before := Now()
		moment := time.Now().Add(d)
		at := At(moment)
		if after := Now(); at < before+d-time.Hour || at > after+d {
			t.Errorf("At(now%+v): got %v, want at most %v", d, at, after+d)
		}
	}
	if now := Now(); now <= 0 {
		t.Errorf("Now: got %v, want a positive uptime", now)
	}
}
