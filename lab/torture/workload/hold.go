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

// held is a lock being held: what is done under it, and what is recorded of it.
type held struct {
	*strand
	lock, grant string
	hold        locker.Hold

	over    chan struct{} // closed when the holder has been told that the hold is lost
	stop    chan struct{} // closed to end watching
	watcher sync.WaitGroup

	mu    sync.Mutex
	until int64 // the last validity that was recorded
	told  int64
	why   string
}

// hold records that a lock is held, since returned, and begins to watch that.
func (s *strand) hold(a *history.Acquire, h locker.Hold) *held {
	t := &held{
		strand: s, lock: a.Lock, grant: a.Grant, hold: h, until: h.Until(),
		over: make(chan struct{}), stop: make(chan struct{}),
	}
	a.Token, a.Until = h.Token(), t.until
	s.say(history.Event{At: a.Return, Acquire: a})
	t.watcher.Go(t.watch)
	return t
}

// watch records what becomes of the hold, at the moment it is told, whatever the holder is doing then.
func (t *held) watch() {
	ticker := time.NewTicker(t.config.Locker.TTL / 20)
	defer ticker.Stop()
	for {
		select {
		case <-t.hold.Lost():
			t.tell(history.Now())
			return
		case <-ticker.C:
			t.look()
		case <-t.stop:
			return
		}
	}
}

// tell notes that the holder was told of the loss.
func (t *held) tell(at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told == 0 {
		t.told, t.why = at, t.hold.Why()
		close(t.over)
	}
}

// lookApart is how much further a validity must go to be recorded: less is the inexactness of asking for it.
const lookApart = int64(time.Millisecond)

// look records how long the hold is valid, if that is longer than was recorded. Whoever is told that it is valid believes so,
// whatever deadline it was shown.
func (t *held) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	until := t.hold.Until()
	if until != 0 {
		until = max(until, history.Now())
	}
	if until < t.until+lookApart || !t.hold.Valid() { // asked for later, so that until was true when it was told
		return
	}
	t.until = until
	t.say(history.Event{Extend: &history.Extend{Grant: t.grant, Until: until}})
}

// valid reports whether the holder may go on, as far as it knows.
func (t *held) valid() bool {
	select {
	case <-t.over:
		return false
	default:
	}
	asked := history.Now()
	if t.hold.Valid() {
		t.look()
		return true
	}
	t.tell(asked)
	return false
}

// work writes to the resource again and again, so many times and for so long at least, until ctx ends or the hold is lost.
// First it shows its token to the fenced cell, so that nothing that is older is taken there any more.
func (t *held) work(ctx context.Context, rounds int, atLeast time.Duration) error {
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

// thinking is the longest that a holder works between looking and writing.
const thinking = 20 * time.Millisecond

// round reads, thinks and writes. It reports whether the resource has not seen a newer holder.
func (t *held) round() (accepted bool, err error) {
	version, err := t.resource.Read(t.lock)
	if err != nil {
		return false, err
	}
	select {
	case <-time.After(t.upTo(thinking)):
	case <-t.over:
		return true, nil // the next look says so
	}
	if err := t.resource.Unfenced(t.writer(), version); err != nil {
		return false, err
	}
	if accepted, err := t.fenced(); !accepted || err != nil {
		return accepted, err
	}
	return true, t.resource.Audit(t.writer())
}

// fenced writes to the fenced cell, if there is a token to show to it.
func (t *held) fenced() (accepted bool, err error) {
	if t.hold.Token() == 0 {
		return true, nil
	}
	return t.resource.Fenced(t.writer())
}

func (t *held) writer() resource.Writer {
	return resource.Writer{Lock: t.lock, Grant: t.grant, Token: t.hold.Token()}
}

// release gives the lock up.
func (t *held) release() {
	t.end(func(ctx context.Context) (history.Outcome, error) {
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

// ended ends what is done about the hold on this side, and returns what is to be recorded of that.
func (t *held) ended() history.End {
	close(t.stop)
	t.watcher.Wait()
	return history.End{Grant: t.grant, Told: t.told, Why: t.why, Until: t.until, Call: history.Now()}
}

// end ends the hold in a way that may take as long as a TTL. It is recorded before that too: if the process is killed
// meanwhile, nobody is to think that the hold went on.
func (t *held) end(how func(context.Context) (history.Outcome, error)) {
	e := t.ended()
	before := e
	t.say(history.Event{At: e.Call, End: &before})

	ctx, cancel := context.WithTimeout(context.Background(), t.config.Locker.TTL)
	defer cancel()
	var err error
	e.Outcome, err = how(ctx)
	e.Return, e.Err = history.Now(), text(err)
	t.say(history.Event{At: e.Return, End: &e})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
