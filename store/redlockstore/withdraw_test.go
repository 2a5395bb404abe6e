package redlockstore_test

import (
	"errors"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// All connections break before a withdrawal is answered, and the repetition finds no entry. The
// lost requests may have removed it, or another client before them: a withdrawal that returned nil
// might be wrong.
// Promise: P5
func TestWithdraw_repliesLost(t *testing.T) {
	t.Parallel()
	for what, broken := range map[string]bool{"removed by the requests": false, "broken before": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, 3)
			proxies, options := through(t, servers)
			other := newStore(t, optionsFor(servers))
			se := openSession(t, newStore(t, options), longTTL)
			ticket, order := hold(t, se, "lock")
			everywhere(t, se, servers, "lock")
			for _, p := range proxies {
				p.CutReplies()
			}
			if broken {
				if _, err := other.Break(t.Context(), "lock", order); err != nil {
					t.Fatal(err)
				}
				eventually(t, "no master has it", func() bool { return countKeys(servers, "lock") == 0 })
			}
			asked := scriptsRun(servers)
			withdrawn := make(chan error, 1)
			go func() { withdrawn <- ticket.Withdraw(timeout(t, testTimeout)) }()
			eventually(t, "all masters have been asked", func() bool { return scriptsRun(servers) >= asked+len(servers) })
			for _, p := range proxies {
				p.Reset()
				p.Release()
			}
			if err := <-withdrawn; !errors.Is(err, store.ErrNotKnown) || errors.Is(err, store.ErrGone) {
				t.Errorf("Withdraw: got %v, want ErrNotKnown only", err)
			}
			if err := ticket.Withdraw(timeout(t, testTimeout)); !errors.Is(err, store.ErrGone) {
				t.Errorf("second Withdraw: got %v, want ErrGone", err)
			}
		})
	}
}

// One of three masters has lost the entry, and another does not answer. That one decides whether a
// majority had it.
func TestWithdraw_decisiveMasterSilent(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	servers[0].Do("DEL", "lock")
	proxies[1].Hold()
	if err := ticket.Withdraw(timeout(t, testTimeout)); !errors.Is(err, store.ErrNotKnown) {
		t.Errorf("Withdraw: got %v, want ErrNotKnown", err)
	}
}

// The reply of one master is lost; the others suffice.
func TestWithdraw_minorityOfRepliesLost(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), longTTL)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	proxies[0].CutReplies()
	proxies[0].Reset()
	withdraw(t, ticket)
}
