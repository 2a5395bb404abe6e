package observer_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stilelock/stile/internal/testservers"
)

// A killed waiter remains until its lease ends: it still decides whether the lock is a semaphore. What
// remains of a line without leases keeps nobody from the lock.
func TestRemaining_redisLeases(t *testing.T) {
	server := testservers.StartRedis(t)
	s := newFixture(t, "redis", "redis://"+server.Addr(), server.Addr())
	const name = "torture/slots"
	leases := "{" + name + "}//x"
	server.Do("SET", "{"+name+"}//f", "7", "PX", "3600000")
	for _, c := range []struct {
		lease string
		end   time.Duration
		want  []string
	}{
		{"that has ended", -time.Minute, nil},
		{"that lasts", time.Hour, []string{leases + " on " + server.Addr()}},
	} {
		t.Run(c.lease, func(t *testing.T) {
			server.Do("ZADD", leases, strconv.FormatInt(time.Now().Add(c.end).UnixMilli(), 10), c.lease)
			server.Do("PEXPIRE", leases, "3600000")
			left, err := s.obs.Remaining(s.ctx)
			must(t, err)
			if !slices.Equal(left[name], c.want) {
				t.Errorf("got %v, want %v", left[name], c.want)
			}
		})
	}
}
