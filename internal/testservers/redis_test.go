package testservers

import (
	"strconv"
	"testing"
	"time"
)

func TestRedis_emptyAfterRestart(t *testing.T) {
	t.Parallel()
	r := StartRedis(t)
	id := r.RunID()
	r.Do("SET", "k", "v")
	r.Restart()
	if n, err := r.Do("DBSIZE").AsInt64(); err != nil || n != 0 {
		t.Errorf("after a restart: got %d keys, %v; want 0", n, err)
	}
	if r.RunID() == id {
		t.Errorf("after a restart: the run ID is still %s", id)
	}
}

func TestRedisFailover_promotesReplicaOfPausedMaster(t *testing.T) {
	t.Parallel()
	f := StartRedisFailover(t)
	master, replica := f.Servers[0], f.Servers[1]
	master.Do("SET", "k", "v")
	// WAIT covers only commands of its own connection, which is the one that made the change.
	if n, err := master.Do("WAIT", "1", "60000").AsInt64(); err != nil || n != 1 {
		t.Fatalf("WAIT: got %d replicas, %v; want 1", n, err)
	}
	master.Pause()
	f.AwaitMaster(t, replica)
	if v, err := replica.Do("GET", "k").ToString(); err != nil || v != "v" {
		t.Errorf("the new master: got %q, %v; want v", v, err)
	}
}

// Do reconnects after its connection was closed.
func TestRedis_doReconnects(t *testing.T) {
	t.Parallel()
	r := StartRedis(t)
	r.Do("SET", "k", "v")
	other, err := dialRESP(r.Socket(), RedisUser, time.Now().Add(processTimeout))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.do(time.Now().Add(processTimeout), "CLIENT", "KILL", "TYPE", "normal"); err != nil {
		t.Fatal(err)
	}
	if v, err := r.Do("GET", "k").ToString(); err != nil || v != "v" {
		t.Errorf("after reconnecting: got %q, %v; want v", v, err)
	}
}

func TestRedisCluster_redirectsKeysOfOtherNodes(t *testing.T) {
	t.Parallel()
	nodes := StartRedisCluster(t, 3)
	moved := 0
	for _, n := range nodes {
		if _, err := n.do("SET", "k", "v"); err != nil {
			moved++
		}
	}
	if moved != 2 {
		t.Errorf("%d of 3 nodes redirected the key, want 2", moved)
	}
}

func TestRedis_setAhead(t *testing.T) {
	t.Parallel()
	r := StartRedisWithClock(t)
	for _, ahead := range []time.Duration{24 * time.Hour, -24 * time.Hour, 0} {
		r.SetClockAhead(ahead)
		words, err := r.Do("TIME").AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		seconds, err := strconv.ParseInt(words[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Unix(seconds, 0).Sub(time.Now().Add(ahead)).Abs(); off > time.Hour {
			t.Errorf("the clock is off by %v", off)
		}
	}
}
