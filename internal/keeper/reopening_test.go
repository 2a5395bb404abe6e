package keeper

import (
	"testing"
	"time"
)

// Each scenario lists sessions in order: how long each lived, and the longest wait after it.
func TestReopening(t *testing.T) {
	const ttl = 10 * time.Second
	type lost struct {
		lived   time.Duration
		maximum time.Duration // of the wait
	}
	for name, sessions := range map[string][]lost{
		"one is lost soon":          {{ttl, 0}},
		"each was there for long":   {{4 * ttl, 0}, {4 * ttl, 0}, {4 * ttl, 0}},
		"one after the other":       {{0, 0}, {ttl, 4 * ttl}, {4*ttl - 1, 8 * ttl}, {ttl, 8 * ttl}},
		"one of them is there long": {{ttl, 0}, {ttl, 4 * ttl}, {4 * ttl, 0}, {ttl, 0}, {ttl, 4 * ttl}},
	} {
		for _, random := range []float64{0, 0.25, 0.999} {
			var r Reopening
			now := at(-100) // in tests with a fake clock, instants are negative
			if got := r.Wait(now); got > 0 {
				t.Errorf("before the first session: got a wait of %v, want none", got)
			}
			for i, s := range sessions {
				r.Opened(now)
				now = now.Add(s.lived)
				r.Lost(now, ttl, random)
				want := time.Duration(random * float64(s.maximum))
				if got := r.Wait(now); got != want {
					t.Errorf("%s, random %v: after session %d: got a wait of %v, want %v", name, random, i, got, want)
				}
				now = now.Add(want)
				if got := r.Wait(now); got > 0 {
					t.Errorf("%s: after that wait: got a wait of %v, want none", name, got)
				}
			}
		}
	}
}

// A client whose store does not recover loses sessions for ever.
func TestReopening_forever(t *testing.T) {
	var r Reopening
	for range 1000 {
		r.Lost(r.opened, time.Second, 0.5)
	}
	if got := r.Wait(r.opened); got != maxWaitTTLs*time.Second/2 {
		t.Errorf("after a thousand sessions: got a wait of %v, want half of %d s", got, maxWaitTTLs)
	}
	if got := r.InRow(); got != 1000 {
		t.Errorf("got %d in a row, want 1000", got)
	}
}

func TestReopening_longTTL(t *testing.T) {
	var r Reopening
	for range 10 {
		r.Lost(r.opened, 5*time.Minute, 0.5)
	}
	if got := r.Wait(r.opened); got != maxWait/2 {
		t.Errorf("got a wait of %v, want half of %v", got, maxWait)
	}
}

// A client that needs no session for a while has waited already.
func TestReopening_noticedLate(t *testing.T) {
	var r Reopening
	for range 5 {
		r.Opened(at(0))
		r.Lost(at(40), 10*time.Second, 0.5)
	}
	if got := r.Wait(at(40)); got != 0 {
		t.Errorf("got a wait of %v, want none", got)
	}
}
