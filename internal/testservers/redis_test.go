package testservers

import (
	"strconv"
	"testing"
	"time"
)

func TestRedisRestartedIsEmpty(t *testing.T) {
	t.Parallel()
	r := StartRedis(t)
	id := r.RunID()
	r.Do("SET", "k", "v")
	r.Restart()
	if n, err := r.Do("DBSIZE").AsInt64(); err != nil || n != 0 {
		t.Errorf("after a restart there are %d keys, %v", n, err)
	}
	if r.RunID() == id {
		t.Errorf("the run id is still %s", id)
	}
}

func TestRedisReplicaTakesOverWhenItsMasterStands(t *testing.T) {
	t.Parallel()
	f := StartRedisFailover(t)
	master, replica := f.Servers[0], f.Servers[1]
	master.Do("SET", "k", "v")
	// It is asked on the connection that has made the change: on another it would be about nothing.
	if n, err := master.Do("WAIT", "1", "60000").AsInt64(); err != nil || n != 1 {
		t.Fatalf("%d replicas have it, %v", n, err)
	}
	master.Pause()
	f.AwaitMaster(t, replica)
	if v, err := replica.Do("GET", "k").ToString(); err != nil || v != "v" {
		t.Errorf("the new master has %q, %v", v, err)
	}
}

// A connection that was cut is not the end of Do.
func TestRedisDoesWhatIsAskedAfterItsConnectionWasCut(t *testing.T) {
	t.Parallel()
	r := StartRedis(t)
	r.Do("SET", "k", "v")
	other, err := dialRESP(r.Socket(), RedisUser, time.Now().Add(longEnough))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.do(time.Now().Add(longEnough), "CLIENT", "KILL", "TYPE", "normal"); err != nil {
		t.Fatal(err)
	}
	if v, err := r.Do("GET", "k").ToString(); err != nil || v != "v" {
		t.Errorf("it has %q, %v", v, err)
	}
}

func TestRedisClusterSendsAwayKeysOfOthers(t *testing.T) {
	t.Parallel()
	nodes := StartRedisCluster(t, 3)
	moved := 0
	for _, n := range nodes {
		if _, err := n.do("SET", "k", "v"); err != nil {
			moved++
		}
	}
	if moved != 2 {
		t.Errorf("%d of 3 nodes sent the key away, want 2", moved)
	}
}

func TestRedisClockJumps(t *testing.T) {
	t.Parallel()
	r := StartRedisAhead(t)
	for _, ahead := range []time.Duration{24 * time.Hour, -24 * time.Hour, 0} {
		r.SetAhead(ahead)
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
