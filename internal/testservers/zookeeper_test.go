package testservers

import (
	"strings"
	"testing"
	"time"
)

func TestZooKeeper_pauseKillRestart(t *testing.T) {
	t.Parallel()
	z := StartZooKeeper(t)
	answers := func() bool { a, err := z.Say("ruok"); return err == nil && a == "imok" }
	if !answers() {
		t.Error("a started server does not reply")
	}
	z.Pause()
	result := make(chan bool, 1)
	go func() { result <- answers() }()
	select {
	case <-result:
		t.Error("a paused server replied or refused the connection")
	case <-time.After(200 * time.Millisecond):
	}
	z.Resume()
	zkAwait(t, "a reply of the resumed server", answers)
	z.Kill()
	if answers() {
		t.Error("a killed server replied")
	}
	z.Restart()
	if !answers() {
		t.Error("a restarted server does not reply")
	}
}

// The subtests share one ensemble, because starting its servers takes seconds of CPU time.
func TestZooKeeperEnsemble_survivesLossOfMembers(t *testing.T) {
	t.Parallel()
	e := StartZooKeeperEnsemble(t, 3)
	if n := len(e.Followers(t)); n != 2 {
		t.Fatalf("got %d followers, want 2", n)
	}
	t.Run("a follower cut off stops serving after its syncLimit", func(t *testing.T) { testCutOffFollower(t, e) })
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
		zkAwait(t, "the former leader to become a follower", func() bool { return first.mode() == "follower" })
	})
	t.Run("the leader is killed", func(t *testing.T) {
		first := e.Leader(t)
		first.Kill()
		if second := e.Leader(t); second == first {
			t.Error("Leader returned the killed member")
		}
		first.Restart()
		zkAwait(t, "the killed leader to become a follower after its restart", func() bool { return first.mode() == "follower" })
	})
}

// testCutOffFollower takes 10 s, the follower's syncLimit.
func testCutOffFollower(t *testing.T, e *ZooKeeperEnsemble) {
	follower := e.Followers(t)[0]
	served := false
	for range 5 { // on a busy machine 10 s may pass before the check
		follower.CutOff()
		if served = follower.mode() == "follower"; served {
			break
		}
		follower.Reconnect()
		follower.AwaitReady()
	}
	if !served {
		t.Error("a follower does not serve right after it was cut off")
	}
	zkAwait(t, "the follower to stop serving", func() bool { return follower.mode() != "follower" })
	follower.Reconnect()
	follower.AwaitReady()
	if answer, err := follower.Say("srvr"); err != nil || !strings.Contains(answer, "Mode: follower") {
		t.Errorf("the reconnected follower: got %q, %v; want the mode follower", answer, err)
	}
}

func zkAwait(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(zkTimeout); !met(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout after %v waiting for %s", zkTimeout, what)
		}
	}
}
