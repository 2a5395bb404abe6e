package workload

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/resource"
)

// activeHold is a lock that is held. It does the work under the lock and records the hold.
type activeHold struct {
	*sequence
	lock, grant string
	hold        locker.Hold

	lost       chan struct{} // closed when the holder has been notified that the hold is lost
	stop       chan struct{} // closed to stop monitor
	monitoring sync.WaitGroup

	mu     sync.Mutex
	until  int64 // the end of the validity that was recorded last
	lostAt int64
	why    string
}

// startHold records that a lock is held, as of a.Return, and starts to monitor the hold.
func (s *sequence) startHold(a *history.Acquire, h locker.Hold) *activeHold {
	t := &activeHold{
		sequence: s, lock: a.Lock, grant: a.Grant, hold: h, until: h.Until(),
		lost: make(chan struct{}), stop: make(chan struct{}),
	}
	a.Token, a.Until = h.Token(), t.until
	s.say(history.Event{At: a.Return, Acquire: a})
	t.monitoring.Go(t.monitor)
	return t
}

// monitor records extensions and the loss of the hold when they happen, independently of the
// holder's work.
func (t *activeHold) monitor() {
	ticker := time.NewTicker(t.config.Locker.TTL / 20)
	defer ticker.Stop()
	for {
		select {
		case <-t.hold.Lost():
			t.recordLoss(history.Now())
			return
		case <-ticker.C:
			t.recordValidity()
		case <-t.stop:
			return
		}
	}
}

// recordLoss stores the time at which the holder was notified of the loss.
func (t *activeHold) recordLoss(at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lostAt == 0 {
		t.lostAt, t.why = at, t.hold.Why()
		close(t.lost)
	}
}

// minExtension is the smallest extension of a validity that is recorded. Smaller differences are
// the inaccuracy of reading it.
const minExtension = int64(time.Millisecond)

// recordValidity records the end of the hold's validity if it has moved. A holder relies on a hold
// that Valid confirms, even if its deadline has passed; then the recorded validity ends now.
func (t *activeHold) recordValidity() {
	t.mu.Lock()
	defer t.mu.Unlock()
	until := t.hold.Until()
	if until != 0 {
		until = max(until, history.Now())
	}
	if until < t.until+minExtension || !t.hold.Valid() { // checked last: until was in force when it was read
		return
	}
	t.until = until
	t.say(history.Event{Extend: &history.Extend{Grant: t.grant, Until: until}})
}

// valid reports whether the holder may continue, as far as it knows.
func (t *activeHold) valid() bool {
	select {
	case <-t.lost:
		return false
	default:
	}
	checkedAt := history.Now()
	if t.hold.Valid() {
		t.recordValidity()
		return true
	}
	t.recordLoss(checkedAt)
	return false
}

// work writes to the resource in rounds: at least the given number of rounds and for at least the
// given time, until ctx ends or the hold is lost. Its first write shows the token to the fenced
// cell, which then refuses all writes of older holders.
func (t *activeHold) work(ctx context.Context, rounds int, atLeast time.Duration) error {
	accepted, err := t.fenced()
	if !accepted || err != nil {
		return err
	}
	for began := time.Now(); ctx.Err() == nil && t.valid(); rounds-- {
		if rounds <= 0 && time.Since(began) >= atLeast {
			break
		}
		accepted, err := t.round()
		if !accepted || err != nil {
			return err
		}
	}
	return nil
}

// maxThinkTime is the longest work between reading and writing.
const maxThinkTime = 20 * time.Millisecond

// round reads, works for a random time, and writes. It reports whether the resource accepted the
// writes, that is, has not seen a newer holder.
func (t *activeHold) round() (accepted bool, err error) {
	version, err := t.resource.Read(t.lock)
	if err != nil {
		return false, err
	}
	select {
	case <-time.After(t.randomUpTo(maxThinkTime)):
	case <-t.lost:
		return true, nil // valid returns false next
	}
	if err := t.resource.Unfenced(t.writer(), version); err != nil {
		return false, err
	}
	if accepted, err := t.fenced(); !accepted || err != nil {
		return accepted, err
	}
	return true, t.resource.Audit(t.writer())
}

// fenced writes to the fenced cell, if the hold has a token.
func (t *activeHold) fenced() (accepted bool, err error) {
	if t.hold.Token() == 0 {
		return true, nil
	}
	return t.resource.Fenced(t.writer())
}

func (t *activeHold) writer() resource.Writer {
	return resource.Writer{Lock: t.lock, Grant: t.grant, Token: t.hold.Token()}
}

// release releases the lock.
func (t *activeHold) release() {
	t.endWith(func(ctx context.Context) (history.Outcome, error) {
		err := t.hold.Release(ctx)
		switch {
		case err == nil:
			return history.OK, nil
		case errors.Is(err, locker.ErrLost):
			return history.Failed, err
		default:
			return history.Unknown, err
		}
	})
}

// finish stops monitoring the hold, and returns the End to record.
func (t *activeHold) finish() history.End {
	close(t.stop)
	t.monitoring.Wait()
	return history.End{Grant: t.grant, LostAt: t.lostAt, Why: t.why, Until: t.until, Call: history.Now()}
}

// endWith ends the hold with a function that may take as long as a TTL. It records the End before
// the call too: if the process is killed during the call, the hold must not appear to have
// continued.
func (t *activeHold) endWith(release func(context.Context) (history.Outcome, error)) {
	e := t.finish()
	before := e
	t.say(history.Event{At: e.Call, End: &before})

	ctx, cancel := context.WithTimeout(context.Background(), t.config.Locker.TTL)
	defer cancel()
	var err error
	e.Outcome, err = release(ctx)
	e.Return, e.Err = history.Now(), errText(err)
	t.say(history.Event{At: e.Return, End: &e})
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
