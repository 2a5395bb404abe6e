package workload

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/lab/torture/history"
	"github.com/stilelock/stile/lab/torture/locker"
	"github.com/stilelock/stile/lab/torture/resource"
)

// activeHold is a lock that is held. It does the work under the lock and records the hold.
type activeHold struct {
	*sequence
	lock, grant string
	hold        locker.Hold
	as          resource.Writer // how it writes to the resource

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
		as:   resource.Writer{Lock: a.Lock, Grant: a.Grant, Token: h.Token()},
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
	version, err := t.resource.Read(t.as.Lock)
	if err != nil {
		return false, err
	}
	if t.think() {
		return true, nil // valid returns false next
	}
	if err := t.resource.Unfenced(t.as, version); err != nil {
		return false, err
	}
	if accepted, err := t.fenced(); !accepted || err != nil {
		return accepted, err
	}
	return true, t.resource.Audit(t.as)
}

// think works for a random time, or until the holder is notified of the loss.
func (t *activeHold) think() (lost bool) {
	select {
	case <-time.After(t.randomUpTo(maxThinkTime)):
		return false
	case <-t.lost:
		return true
	}
}

// read reads twice in each round, as one of several holders that only read, and records whether what
// it has read changed meanwhile. It ends like work.
func (t *activeHold) read(ctx context.Context, rounds int) error {
	for ; rounds > 0 && ctx.Err() == nil && t.valid(); rounds-- {
		version, err := t.resource.Read(t.as.Lock)
		if err != nil {
			return err
		}
		if t.think() {
			return nil
		}
		if err := t.resource.Reread(t.as, version); err != nil {
			return err
		}
	}
	return nil
}

// audit writes to the audit log, as one of several holders. It ends like work.
func (t *activeHold) audit(ctx context.Context, rounds int) error {
	for ; rounds > 0 && ctx.Err() == nil && t.valid(); rounds-- {
		if t.think() {
			return nil
		}
		if err := t.resource.Audit(t.as); err != nil {
			return err
		}
	}
	return nil
}

// fenced writes to the fenced cell, if the hold has a token.
func (t *activeHold) fenced() (accepted bool, err error) {
	if t.as.Token == 0 {
		return true, nil
	}
	return t.resource.Fenced(t.as)
}

// release releases the lock.
func (t *activeHold) release() {
	t.endWith(func(ctx context.Context) (history.Outcome, error) {
		err := t.hold.Release(ctx)
		return endOutcome(err), err
	})
}

// endOutcome is the outcome of a call that ends a hold.
func endOutcome(err error) history.Outcome {
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, locker.ErrLost), errors.Is(err, stile.ErrLost):
		return history.Failed
	default:
		return history.Unknown
	}
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
	e := t.beginEnd()
	ctx, cancel := context.WithTimeout(context.Background(), t.config.Locker.TTL)
	defer cancel()
	outcome, err := release(ctx)
	t.recordEnd(e, history.Now(), outcome, err)
}

// beginEnd stops monitoring the hold, and records its End as it is before the call that ends it.
func (t *activeHold) beginEnd() history.End {
	e := t.finish()
	before := e
	t.say(history.Event{At: e.Call, End: &before})
	return e
}

// recordEnd records the End after the call that ended the hold.
func (t *activeHold) recordEnd(e history.End, at int64, outcome history.Outcome, err error) {
	e.Return, e.Outcome, e.Err = at, outcome, errText(err)
	t.say(history.Event{At: e.Return, End: &e})
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
