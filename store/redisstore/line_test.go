package redisstore

import (
	"testing"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/delivery"
)

// What a wake-up costs that is lost: until those who wait ask the next time, however many they are and whatever they have
// heard. While nothing happens they ask less and less often.
// Promise: P7
func TestNobodyAsksMoreRarelyThanOnceAHeartbeat(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3, 100, 10_000, 1_000_000} {
		all := pollInterval{minPollInterval, maxPollInterval}
		pace := all.first(members)
		if members <= 3 && pace > 2*minPollInterval {
			t.Errorf("%d ask for the first time after %v", members, pace)
		}
		for n := range 10 {
			if pace < minPollInterval || pace > maxPollInterval {
				t.Errorf("%d ask for time %d after %v, want %v to %v", members, n, pace, minPollInterval, maxPollInterval)
			}
			next := all.next(pace, false, members)
			if next < pace || next == pace && pace < maxPollInterval {
				t.Errorf("nothing happens, and %d ask after %v and then after %v", members, pace, next)
			}
			if again := all.next(next, true, members); again != all.first(members) {
				t.Errorf("something has happened, and %d ask after %v, not %v", members, again, all.first(members))
			}
			pace = next
		}
		if pace != maxPollInterval {
			t.Errorf("for long nothing has happened, and %d ask every %v, want %v", members, pace, maxPollInterval)
		}
	}
}

// Those whose turn may come when a lease ends ask at that moment, and nobody asks later than it is time to anyway.
func TestWhoIsNearAsksWhenALeaseEnds(t *testing.T) {
	t.Parallel()
	waiter := func(ahead int) []*entry {
		e := &entry{delivery: delivery.New(nil)}
		e.update(store.Standing{State: store.Waiting, Ahead: ahead})
		return []*entry{e}
	}
	for _, c := range []struct {
		what          string
		pace, soonest time.Duration
		members       []*entry
		want          time.Duration
	}{
		{"it ends soon, one is near", maxPollInterval, 300 * time.Millisecond, waiter(1), 300*time.Millisecond + leaseSlack},
		{"it ends soon, one is near enough", maxPollInterval, 300 * time.Millisecond, waiter(nearHead), 300*time.Millisecond + leaseSlack},
		{"it ends soon, all are far", maxPollInterval, 300 * time.Millisecond, waiter(nearHead + 1), maxPollInterval},
		{"it ends soon, who waits is not known", maxPollInterval, 300 * time.Millisecond, nil, 300*time.Millisecond + leaseSlack},
		{"it ends later than they ask", minPollInterval, 300 * time.Millisecond, waiter(1), minPollInterval},
		{"it is not known when it ends", maxPollInterval, 0, waiter(1), maxPollInterval},
	} {
		if got := new(poller).pause(c.pace, c.soonest, c.members); got != c.want {
			t.Errorf("%s: they ask after %v, want %v", c.what, got, c.want)
		}
	}
}
