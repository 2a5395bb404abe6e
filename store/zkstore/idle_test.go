package zkstore

import (
	"testing"
	"time"
)

// A waiter that is far back need not know soon that an event was missed, so a long line costs little while
// nothing happens.
func TestRecheckPause_fewInLongLine(t *testing.T) {
	if got := recheckPause(recheckInterval, 1); got != recheckInterval {
		t.Errorf("the first waiter rechecks every %v, want %v", got, recheckInterval)
	}
	perSecond := 0.0
	for ahead := range 1000 {
		perSecond += float64(time.Second) / float64(recheckPause(recheckInterval, ahead+1))
	}
	if perSecond > 30 {
		t.Errorf("a thousand waiters make %.1f rechecks a second, want at most 30", perSecond)
	}
}
