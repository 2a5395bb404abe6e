package workload

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
)

const (
	// keyPeriod is how long the workers of the workload Once use one key, all of them the same.
	keyPeriod = time.Second / 2
	// exitSkipped is the exit status of `stile once` that skips its command. No command here has it.
	exitSkipped = 3
)

// once runs `stile once` for the key of this time. A third of the commands fail.
func (s *sequence) once(ctx context.Context) error {
	key := fmt.Sprintf("key-%d", history.Now()/int64(keyPeriod))
	c := childConfig{Config: s.config, Lock: s.pickLock(), Fails: s.rng.IntN(3) == 0}
	c.HoldUnit = s.config.holdUnit() / 4 // so that several calls for a key come after its first success
	args := []string{"once", "--verbose", "--key", key, "--keep", "60s", "--skip-exit-code", strconv.Itoa(exitSkipped)}
	return s.runStile(ctx, c, args, func(c childConfig, r stileRun, sender *history.Sender) {
		sender.Send(history.Event{Once: &history.Once{
			Lock: c.Lock, Key: key, Grant: c.Grant, Call: c.Call, Ran: r.ran,
			Recorded: r.ran && strings.Contains(r.stderr, "the success is recorded"),
			Skipped:  !r.ran && r.code == exitSkipped,
		}})
	})
}
