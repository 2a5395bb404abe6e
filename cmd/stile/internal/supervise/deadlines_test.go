package supervise

import (
	"testing"
	"time"

	"github.com/stilelock/stile/internal/keeper"
	"github.com/stilelock/stile/store"
)

// When a renewal is not answered another server must have a chance, before the command is told to end.
func TestDeadlines_secondRenewalBeforeStopSignal(t *testing.T) {
	t.Parallel()
	for _, slack := range []time.Duration{0, 3} { // of ZooKeeper: a third
		for _, ttl := range []time.Duration{time.Second, 15 * time.Second, 5 * time.Minute} {
			granted := store.Terms{TTL: ttl}
			if slack > 0 {
				granted.Slack = ttl / slack
			}
			terms := keeper.ScheduleFor(granted)
			told := terms.Valid - DefaultKillAfter(Certain(granted)) - busyTime(ttl)
			asked := terms.Every + terms.Attempt + terms.Retry
			if room := told - asked; room < ttl/20 {
				t.Errorf("%+v: the command is told to end %v after a confirmation, and the second request goes out after %v",
					granted, told, asked)
			}
		}
	}
}

func TestMinTTL(t *testing.T) {
	t.Parallel()
	for _, killAfter := range []time.Duration{0, time.Millisecond, 5 * time.Second, 10 * time.Second, MaxKillAfter(5 * time.Minute)} {
		ttl := MinTTL(killAfter)
		if MaxKillAfter(ttl) < killAfter {
			t.Errorf("a TTL of %v is recommended for %v and leaves %v", ttl, killAfter, MaxKillAfter(ttl))
		}
		if ttl > 0 && MaxKillAfter(ttl-time.Second) >= killAfter {
			t.Errorf("a TTL of %v is recommended for %v; a second less would do", ttl, killAfter)
		}
	}
}
