package supervise

import (
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// GuaranteedTTL returns how long a session with these terms lasts at least after a confirmed renewal:
// its TTL less the slack.
func GuaranteedTTL(granted store.Terms) time.Duration { return granted.TTL - granted.Slack }

// MaxKillAfter returns the maximum of Job.KillAfter for a [GuaranteedTTL]. Renewals are due when
// three tenths of the TTL have passed and take some time; the hold is lost after nine tenths.
func MaxKillAfter(ttl time.Duration) time.Duration { return min(ttl, stile.MaxTTL) * 3 / 8 }

// DefaultKillAfter returns the default of Job.KillAfter for a [GuaranteedTTL].
func DefaultKillAfter(ttl time.Duration) time.Duration { return min(5*time.Second, ttl/4) }

// MinTTL returns the shortest guaranteed TTL, in whole seconds, for which MaxKillAfter is at least killAfter.
func MinTTL(killAfter time.Duration) time.Duration {
	return (killAfter*8/3 + time.Second - 1).Truncate(time.Second)
}

// busyTime returns the additional margin for a busy machine.
func busyTime(ttl time.Duration) time.Duration { return DefaultKillAfter(ttl) / 16 }

// suspendTimeout is how long a command may take to restore the screen before it is suspended. A
// command without a handler for TSTP stops at once; one that ignores TSTP makes its user wait this
// long.
const suspendTimeout = 5 * time.Second

// settleTime is how long signals sent together with CONT may take to arrive on a busy machine.
const settleTime = time.Second

// clockInterval bounds the time between two checks of the clock. Timers stand still while the
// machine is suspended and then fire late.
const clockInterval = time.Second
