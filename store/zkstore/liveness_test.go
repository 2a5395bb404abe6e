package zkstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
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

// A leader that all others have left, and that has not noticed, goes on answering all that takes no majority: pings,
// readings and syncs. Meanwhile the others may have ended the session.
func TestAnAnswerThatTakesNoMajorityConfirmsNoHold(t *testing.T) {
	t.Parallel()
	m := newMeddler(t, server(t).Endpoint())
	withoutMajority := func(to int32, _ []byte) verdict {
		if to == opMulti {
			return swallow
		}
		return pass
	}
	other := openSession(t, newStore(t, nil, server(t).Endpoint()))
	confirm := func(se store.Session) error {
		ctx, cancel := until(t, time.Second)
		defer cancel()
		return se.Confirm(ctx)
	}

	se := openSession(t, newStore(t, nil, m.addr()))
	m.on(nil, withoutMajority)
	if err := confirm(se); err != nil {
		t.Errorf("a session that holds nothing: %v", err)
	}
	p := enqueue(t, se, newName(t), line.Exclusive)
	p.await(t, store.Admitted)
	if err := confirm(se); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a session that holds something is confirmed without a majority: %v", err)
	}
	m.on(nil, nil)
	if err := confirm(se); err != nil {
		t.Errorf("with a majority: %v", err)
	}
	p.withdraw(t)

	// The turn of who waits comes while a sync is under way.
	name := newName(t)
	holder := enqueue(t, other, name, line.Exclusive)
	p = enqueue(t, se, name, line.Exclusive)
	p.await(t, store.Waiting)
	m.quiet(t, "getData")
	m.on(func(op int32, _ []byte) verdict {
		if op == opSync {
			holder.withdraw(t)
		}
		return pass
	}, withoutMajority)
	if err := confirm(se); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a session whose turn came meanwhile is confirmed without a majority: %v", err)
	}
	p.admitted(t)
}

func TestAHoldIsConfirmedWhereTheTopMayNotBeRead(t *testing.T) {
	t.Parallel()
	z := testservers.StartZooKeeper(t)
	conn := connect(t, z.Endpoint())
	if _, err := conn.Create("/team", nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.SetACL("/", zk.DigestACL(zk.PermAll, "ann", "secret"), -1); err != nil {
		t.Fatal(err)
	}
	se := openSession(t, newStore(t, &zkstore.Options{Root: "/team"}, z.Endpoint()))
	enqueue(t, se, "a", line.Exclusive).await(t, store.Admitted)
	if err := se.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
}
