package zkstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stilelock/stile"
)

// A follower that is cut off from its leader goes on answering its clients' pings. The leader hears nothing of these
// clients, and ends their sessions. Clients that take an answer to a ping for a sign that they still hold something hold
// on for as long as the follower takes to notice: ten seconds here.
//
// Each round has several holders, whose confirmations are at different phases when the cut comes.
func TestAHolderWhoseServerIsCutOffHearsOfItBeforeAnotherIsAdmitted(t *testing.T) {
	t.Parallel()
	const (
		rounds, holders = 2, 6
		ttl             = 2 * time.Second
	)
	e := ensemble3(t)
	follower := e.Followers(t)[0]
	var rest []string
	for _, z := range e.Members() {
		if z != follower {
			rest = append(rest, z.Endpoint())
		}
	}
	waiting := newClient(t, newStore(t, nil, rest...), 10*time.Second)

	for round := range rounds {
		plain := connect(t, follower.Endpoint())
		var held []*stile.Hold
		var next []*stile.Place
		for i := range holders {
			name := fmt.Sprintf("%s/%d/%d", t.Name(), round, i)
			holding := newClient(t, newStore(t, nil, follower.Endpoint()), ttl)
			held = append(held, lock(t, holding, name))
			next = append(next, join(t, waiting, name))
			time.Sleep(ttl / 3 / holders)
		}

		follower.CutOff()
		cut := time.Now()
		for i, p := range next {
			select {
			case <-p.Ready():
			case <-time.After(ttl + soon):
				t.Fatalf("round %d: nobody is admitted in place of a holder who was cut off", round)
			}
			if held[i].Context().Err() == nil {
				t.Errorf("round %d: another was admitted %v after the cut, and the context of holder %d has not ended",
					round, time.Since(cut), i)
			}
			if held[i].Valid() {
				t.Errorf("round %d: another was admitted, and holder %d takes its own hold for valid", round, i)
			}
		}
		// What makes this hard: to who believes in pings, all is well.
		if _, _, err := plain.Exists("/"); err != nil {
			t.Errorf("round %d: the follower that was cut off does not answer its clients (%v): this test has tested nothing",
				round, err)
		}
		follower.Reconnect()
		follower.AwaitReady()
		for _, p := range next {
			h, err := p.Hold()
			if err == nil {
				err = h.Release(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
}
