package supervise

import (
	"testing"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
)

// If a renewal is not answered, a second one must have a chance, at another server, before the stop
// signal.
func TestDeadlines_secondRenewalBeforeStopSignal(t *testing.T) {
	t.Parallel()
	for _, slack := range []time.Duration{0, 3} { // ZooKeeper's slack is a third
		for _, ttl := range []time.Duration{time.Second, 15 * time.Second, 5 * time.Minute} {
			granted := store.Terms{TTL: ttl}
			if slack > 0 {
				granted.Slack = ttl / slack
			}
			schedule := keeper.ScheduleFor(granted)
			stopSignal := schedule.Validity - DefaultKillAfter(GuaranteedTTL(granted)) - busyTime(ttl)
			secondRenewal := schedule.Interval + schedule.AttemptTimeout + schedule.RetryInterval
			if room := stopSignal - secondRenewal; room < ttl/20 {
				t.Errorf("%+v: the stop signal comes %v after a confirmation, but the second renewal is sent after %v",
					granted, stopSignal, secondRenewal)
			}
		}
	}
}

func TestMinTTL(t *testing.T) {
	t.Parallel()
	for _, killAfter := range []time.Duration{0, time.Millisecond, 5 * time.Second, 10 * time.Second, MaxKillAfter(5 * time.Minute)} {
		ttl := MinTTL(killAfter)
		if MaxKillAfter(ttl) < killAfter {
			t.Errorf("MinTTL(%v) = %v, which allows only %v", killAfter, ttl, MaxKillAfter(ttl))
		}
		if ttl > 0 && MaxKillAfter(ttl-time.Second) >= killAfter {
			t.Errorf("MinTTL(%v) = %v, but a second less is enough", killAfter, ttl)
		}
	}
}
