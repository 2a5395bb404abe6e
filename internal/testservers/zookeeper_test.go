package testservers

import (
	"strings"
	"testing"
	"time"
)

func TestZooKeeperServesPausedKilledAndRestarted(t *testing.T) {
	t.Parallel()
	z := StartZooKeeper(t)
	answers := func() bool { a, err := z.Say("ruok"); return err == nil && a == "imok" }
	if !answers() {
		t.Error("a server that was started does not answer")
	}
	z.Pause()
	heard := make(chan bool, 1)
	go func() { heard <- answers() }()
	select {
	case <-heard:
		t.Error("a paused server answered, or refused to")
	case <-time.After(200 * time.Millisecond):
	}
	z.Resume()
	zkAwait(t, "an answer of a server that was resumed", answers)
	z.Kill()
	if answers() {
		t.Error("a killed server answers")
	}
	z.Restart()
	if !answers() {
		t.Error("a restarted server does not answer")
	}
}

// One ensemble for both, because each of its servers takes seconds of the processor to start.
func TestZooKeeperEnsembleLosesItsLeaderAndFindsAnother(t *testing.T) {
	t.Parallel()
	e := StartZooKeeperEnsemble(t, 3)
	if n := len(e.Followers(t)); n != 2 {
		t.Fatalf("there are %d followers, want 2", n)
	}
	t.Run("a follower that is cut off goes on serving, and then does not", func(t *testing.T) { cutOffAFollower(t, e) })
	t.Run("the leader is paused", func(t *testing.T) {
		first := e.Leader(t)
		first.Pause()
		e.Abandon(first)
		zkAwait(t, "another leader", func() bool {
			for _, z := range e.Members() {
				if z != first && z.mode() == "leader" {
					return true
				}
			}
			return false
		})
		first.Resume()
		zkAwait(t, "the leader of before to follow", func() bool { return first.mode() == "follower" })
	})
	t.Run("the leader is killed", func(t *testing.T) {
		first := e.Leader(t)
		first.Kill()
		if second := e.Leader(t); second == first {
			t.Error("the leader that was killed leads")
		}
		first.Restart()
		zkAwait(t, "the leader that was killed to follow after its restart", func() bool { return first.mode() == "follower" })
	})
}

// It takes a follower ten seconds to notice.
func cutOffAFollower(t *testing.T, e *ZooKeeperEnsemble) {
	follower := e.Followers(t)[0]
	served := false
	for range 5 { // a machine may be so busy that ten seconds pass before anybody looks
		follower.CutOff()
		if served = follower.mode() == "follower"; served {
			break
		}
		follower.Reconnect()
		follower.AwaitReady()
	}
	if !served {
		t.Error("a follower that was cut off just now serves nobody")
	}
	zkAwait(t, "the follower that was cut off to notice", func() bool { return follower.mode() != "follower" })
	follower.Reconnect()
	follower.AwaitReady()
	if answer, err := follower.Say("srvr"); err != nil || !strings.Contains(answer, "Mode: follower") {
		t.Errorf("the follower that was reconnected says %q, %v", answer, err)
	}
}

func zkAwait(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(zkPatience); !met(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain for %s", zkPatience, what)
		}
	}
}
