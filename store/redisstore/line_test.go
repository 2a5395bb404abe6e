package redisstore

import (
	"testing"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/delivery"
)

// The poll interval bounds the delay that a lost wake-up costs, for any number of waiters. It grows
// while nothing changes.
// Promise: P7
// Bug: solid_queue #630
func TestPollInterval_bounds(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 3, 100, 10_000, 1_000_000} {
		all := pollInterval{minPollInterval, maxPollInterval}
		interval := all.first(members)
		if members <= 3 && interval > 2*minPollInterval {
			t.Errorf("%d members: got first interval %v", members, interval)
		}
		for n := range 10 {
			if interval < minPollInterval || interval > maxPollInterval {
				t.Errorf("%d members: got interval %d of %v, want %v to %v", members, n, interval, minPollInterval, maxPollInterval)
			}
			next := all.next(interval, false, members)
			if next < interval || next == interval && interval < maxPollInterval {
				t.Errorf("%d members, no change: got interval %v, then %v", members, interval, next)
			}
			if again := all.next(next, true, members); again != all.first(members) {
				t.Errorf("%d members, after a change: got interval %v, want %v", members, again, all.first(members))
			}
			interval = next
		}
		if interval != maxPollInterval {
			t.Errorf("%d members, long without a change: got interval %v, want %v", members, interval, maxPollInterval)
		}
	}
}

// Entries near the head are polled when the first lease ends; that never makes a poll later.
func TestPoller_pauseEndsWithLease(t *testing.T) {
	t.Parallel()
	waiter := func(ahead int) []*entry {
		e := &entry{delivery: delivery.New(nil)}
		e.update(store.Standing{State: store.Waiting, Ahead: ahead})
		return []*entry{e}
	}
	for _, c := range []struct {
		what                 string
		interval, nextExpiry time.Duration
		members              []*entry
		want                 time.Duration
	}{
		{"ends early, next in line", maxPollInterval, 300 * time.Millisecond, waiter(1), 300*time.Millisecond + leaseSlack},
		{"ends early, still near the head", maxPollInterval, 300 * time.Millisecond, waiter(nearHead), 300*time.Millisecond + leaseSlack},
		{"ends early, far from the head", maxPollInterval, 300 * time.Millisecond, waiter(nearHead + 1), maxPollInterval},
		{"ends early, members unknown", maxPollInterval, 300 * time.Millisecond, nil, 300*time.Millisecond + leaseSlack},
		{"ends after the interval", minPollInterval, 300 * time.Millisecond, waiter(1), minPollInterval},
		{"end unknown", maxPollInterval, 0, waiter(1), maxPollInterval},
	} {
		if got := new(poller).pause(c.interval, c.nextExpiry, c.members); got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
	}
}
