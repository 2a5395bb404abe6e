package observer_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

// A killed waiter remains until its lease ends: it still decides whether the lock is a semaphore. What
// remains of a line without leases keeps nobody from the lock, but must expire.
func TestRemaining_redisLeases(t *testing.T) {
	server := testservers.StartRedis(t)
	s := newFixture(t, "redis", "redis://"+server.Addr(), server.Addr())
	const name = "torture/slots"
	leases := "{" + name + "}//x"
	server.Do("SET", "{"+name+"}//f", "7", "PX", "3600000")
	for _, c := range []struct {
		lease string
		end   time.Duration
		stays bool // the key does not expire
		want  []string
	}{
		{"that has ended", -time.Minute, false, nil},
		{"that has ended, in a key that stays", -time.Minute, true, []string{leases + " on " + server.Addr()}},
		{"that lasts", time.Hour, false, []string{leases + " on " + server.Addr()}},
	} {
		t.Run(c.lease, func(t *testing.T) {
			server.Do("ZADD", leases, strconv.FormatInt(time.Now().Add(c.end).UnixMilli(), 10), c.lease)
			if c.stays {
				server.Do("PERSIST", leases)
			} else {
				server.Do("EXPIRE", leases, "3600")
			}
			left, err := s.obs.Remaining(s.ctx)
			must(t, err)
			if !slices.Equal(left[name], c.want) {
				t.Errorf("got %v, want %v", left[name], c.want)
			}
		})
	}
}
