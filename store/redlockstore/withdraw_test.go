package redlockstore_test

import (
	"errors"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
)

// All connections break before a withdrawal is answered, and the repetition finds nothing. The lost requests may have taken the
// entry out, or somebody else before them: nobody can tell, so a withdrawal that returned nil might be wrong.
// Promise: P5
func TestWithdrawWhoseRepliesAreLost_isNotKnown(t *testing.T) {
	t.Parallel()
	for what, broken := range map[string]bool{"the requests take it out": false, "somebody has broken it before": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			servers := testservers.StartRedisServers(t, 3)
			proxies, options := through(t, servers)
			other := newStore(t, to(servers))
			se := openSession(t, newStore(t, options), long)
			before, _ := hold(t, se, "lock")
			everywhere(t, se, servers, "lock")
			withdraw(t, before) // so that the masters know the script
			eventually(t, "no master has it", func() bool { return holding(servers, "lock") == 0 })
			ticket, order := hold(t, se, "lock")
			everywhere(t, se, servers, "lock")
			for _, p := range proxies {
				p.CutReplies()
			}
			if broken {
				if _, err := other.Break(t.Context(), "lock", order); err != nil {
					t.Fatal(err)
				}
				eventually(t, "no master has it", func() bool { return holding(servers, "lock") == 0 })
			}
			asked := scriptsRun(servers)
			withdrawn := make(chan error, 1)
			go func() { withdrawn <- ticket.Withdraw(timeout(t, soon)) }()
			eventually(t, "all masters have been asked", func() bool { return scriptsRun(servers) >= asked+len(servers) })
			for _, p := range proxies {
				p.Reset()
				p.Release()
			}
			if err := <-withdrawn; !errors.Is(err, store.ErrNotKnown) || errors.Is(err, store.ErrGone) {
				t.Errorf("Withdraw returned %v, want an error that matches ErrNotKnown alone", err)
			}
			if err := ticket.Withdraw(timeout(t, soon)); !errors.Is(err, store.ErrGone) {
				t.Errorf("a second Withdraw returned %v, want ErrGone", err)
			}
		})
	}
}

// One of three masters has lost the entry, and another does not answer. What that one has decides whether a majority had it.
func TestWithdrawThatTheDecidingMasterDoesNotAnswer_isNotKnown(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), long)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	servers[0].Do("DEL", "lock")
	proxies[1].Hold()
	if err := ticket.Withdraw(timeout(t, soon)); !errors.Is(err, store.ErrNotKnown) {
		t.Errorf("Withdraw returned %v, want ErrNotKnown", err)
	}
}

// The reply of one master is lost; the others tell enough.
func TestWithdrawWhoseReplyIsLostByAMinority_isKnown(t *testing.T) {
	t.Parallel()
	servers := testservers.StartRedisServers(t, 3)
	proxies, options := through(t, servers)
	se := openSession(t, newStore(t, options), long)
	ticket, _ := hold(t, se, "lock")
	everywhere(t, se, servers, "lock")
	proxies[0].CutReplies()
	proxies[0].Reset()
	withdraw(t, ticket)
}
