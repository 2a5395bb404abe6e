package supervise

import (
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/store"
)

// Certain returns how long a session with these terms lasts at least after a confirmed renewal: its
// TTL less the slack.
func Certain(granted store.Terms) time.Duration { return granted.TTL - granted.Slack }

// MaxKillAfter returns how much of a certain TTL may be reserved for stopping a command. Renewals
// are due when three tenths have passed and take some time; the hold is lost after nine tenths.
func MaxKillAfter(ttl time.Duration) time.Duration { return min(ttl, stile.MaxTTL) * 3 / 8 }

// DefaultKillAfter returns the time that is reserved by default.
func DefaultKillAfter(ttl time.Duration) time.Duration { return min(5*time.Second, ttl/4) }

// MinTTL returns the shortest TTL, in whole seconds, for which MaxKillAfter is at least killAfter.
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
