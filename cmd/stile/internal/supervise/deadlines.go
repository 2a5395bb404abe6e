package supervise

import (
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// Certain is how long a session with these terms lasts at least after a confirmed renewal: its TTL, less what the store may
// take back of it.
func Certain(granted store.Terms) time.Duration { return granted.TTL - granted.Slack }

// MaxKillAfter is how much of a TTL that is certain can be left for stopping a command. Renewals are due when three tenths of
// it have passed and may take some time; what is lost is lost after nine tenths.
func MaxKillAfter(ttl time.Duration) time.Duration { return min(ttl, stile.MaxTTL) * 3 / 8 }

// DefaultKillAfter is how much of it is left if the user has not chosen.
func DefaultKillAfter(ttl time.Duration) time.Duration { return min(5*time.Second, ttl/4) }

// MinTTL is the shortest TTL, in whole seconds, that leaves so much time for stopping a command.
func MinTTL(killAfter time.Duration) time.Duration {
	return (killAfter*8/3 + time.Second - 1).Truncate(time.Second)
}

// busyTime is what a busy machine may need besides.
func busyTime(ttl time.Duration) time.Duration { return DefaultKillAfter(ttl) / 16 }

// preparation is how long a command that is to be suspended may take to put its screen in order. One that does not handle TSTP
// stops at once; one that ignores it keeps its user waiting so long.
const preparation = 5 * time.Second

// settling is how long the signals that have come with CONT may take to arrive, on a busy machine too.
const settling = time.Second

// lookInterval bounds the time between two looks at the clock. Timers stand still while the machine is suspended, so that they
// would be late afterwards.
const lookInterval = time.Second
