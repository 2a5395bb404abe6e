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
	if !<-heard {
		t.Error("a resumed server does not answer")
	}
	z.Kill()
	if answers() {
		t.Error("a killed server answers")
	}
	z.Restart()
	if !answers() {
		t.Error("a restarted server does not answer")
	}
}

func TestZooKeeperEnsembleLosesItsLeaderAndFindsAnother(t *testing.T) {
	t.Parallel()
	e := StartZooKeeperEnsemble(t, 3)
	first := e.Leader(t)
	if n := len(e.Followers(t)); n != 2 {
		t.Fatalf("there are %d followers, want 2", n)
	}
	first.Kill()
	if second := e.Leader(t); second == first {
		t.Error("the leader that was killed leads")
	}
	first.Restart()
	if mode := first.mode(); mode != "follower" {
		t.Errorf("the leader that was killed is a %q after its restart, want a follower", mode)
	}
}

func TestAFollowerThatIsCutOffGoesOnServingAndThenDoesNot(t *testing.T) {
	t.Parallel()
	e := StartZooKeeperEnsemble(t, 3, "syncLimit=4")
	follower := e.Followers(t)[0]
	follower.CutOff()
	if mode := follower.mode(); mode != "follower" {
		t.Errorf("the follower that was cut off just now is a %q", mode)
	}
	for end := time.Now().Add(20 * time.Second); follower.mode() == "follower"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the follower that was cut off has not noticed")
		}
	}
	follower.Reconnect()
	follower.AwaitReady()
	if answer, err := follower.Say("srvr"); err != nil || !strings.Contains(answer, "Mode: follower") {
		t.Errorf("the follower that was reconnected says %q, %v", answer, err)
	}
}
