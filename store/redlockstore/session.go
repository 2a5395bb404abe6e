package redlockstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/internal/bootclock"
	"github.com/stilelock/stile/line"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// session is a set of entries that are renewed together. The masters know only of the entries: that the session has
// ended is decided here, by the same clock by which the keeper decides, and enforced by taking the entries out.
type session struct {
	store *Store
	id    string
	ttl   time.Duration
	opts  store.SessionOptions

	// life ends, with a cause that matches store.ErrSessionLost, when the session is closed or lost. What works for the
	// session ends with it, and is counted in work.
	life context.Context
	end  context.CancelCauseFunc
	work work.Group

	// telling is done when everybody has been told of a loss, so that nobody is told after Close.
	telling sync.WaitGroup

	mu      sync.Mutex
	entries map[*entry]struct{} // those that were not withdrawn
	kept    map[*entry]struct{}
	asked   bootclock.Instant // when the last confirmation was begun
	expires bootclock.Instant // unless it is confirmed
	timer   *time.Timer       // fires then
	ended   bool              // life has ended
}

func newSession(s *Store, opts store.SessionOptions) *session {
	se := &session{
		store: s, id: rand.Text()[:16], ttl: opts.TTL, opts: opts,
		entries: make(map[*entry]struct{}), kept: make(map[*entry]struct{}),
	}
	se.life, se.end = context.WithCancelCause(s.life)
	return se
}

// slack is by how much a master may let a key expire early: its clock may run fast by a hundredth, and it counts in
// milliseconds.
func slack(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ID implements [store.Session]. The values of the session's entries have it in them.
func (se *session) ID() string { return se.id }

// Terms implements [store.Session]. The slack is the drift that Redlock reckons with.
func (se *session) Terms() store.Terms { return store.Terms{TTL: se.ttl, Slack: slack(se.ttl)} }

// begin makes sure that there is a majority to lock with.
func (se *session) begin(ctx context.Context) error {
	sent, err := se.store.patiently(ctx, func() error {
		_, err := se.store.ask(ctx, straggle, renewScript, []string{se.store.keys.index()}, []string{millis(se.ttl), millis(fenceTTL)})
		return err
	})
	if err != nil {
		return err
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	se.expires = sent.Add(se.ttl - slack(se.ttl))
	se.timer = time.AfterFunc(se.expires.Sub(bootclock.Now()), se.look)
	return nil
}

// look ends the session if it is time to.
func (se *session) look() {
	se.mu.Lock()
	left := se.expires.Sub(bootclock.Now())
	if left > 0 && !se.ended {
		se.timer.Reset(left)
	}
	se.mu.Unlock()
	if left <= 0 {
		_ = se.expired()
	}
}

// expired ends the session because it was not confirmed in time, and returns the error that says so.
func (se *session) expired() error {
	err := fmt.Errorf("%s: %w: session %s was not confirmed for %v", se.store, store.ErrSessionLost, se.id, se.ttl)
	se.finish(err, true)
	return se.alive()
}

// alive returns why the session has ended, or nil.
func (se *session) alive() error {
	if err := context.Cause(se.life); err != nil {
		if se.store.life.Err() != nil {
			return fmt.Errorf("%s: %w: %w", se.store, store.ErrSessionLost, errClosed)
		}
		return err
	}
	return nil
}

// most is how many locks are renewed by one request.
const most = 256

// Confirm implements [store.Session]. It proves that a majority of the masters has answered, and of each entry that is
// admitted, that a majority has it; an entry that no majority can have any more is reported gone. At masters where an
// entry is missing it is put in again, while a majority has it: after a restart, for example.
func (se *session) Confirm(ctx context.Context) error {
	sent := bootclock.Now()
	se.mu.Lock()
	overdue := se.expires.Before(sent) && !se.ended
	se.asked = sent
	held := make([]*entry, 0, len(se.kept))
	for e := range se.kept {
		held = append(held, e)
	}
	se.mu.Unlock()
	if overdue {
		return se.expired()
	}
	if err := se.alive(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return se.store.explain("renew the session", err)
	}
	bounded, cancel := attempts.Within(ctx, se.life)
	defer cancel()
	for first := 0; first == 0 || first < len(held); first += most {
		if err := se.renew(bounded, held[first:min(first+most, len(held))]); err != nil {
			return se.explain(ctx, "renew the session", err)
		}
	}
	return se.confirmed(sent)
}

func (se *session) confirmed(sent bootclock.Instant) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.ended {
		return se.alive()
	}
	se.expires = max(se.expires, sent.Add(se.ttl-slack(se.ttl)))
	se.timer.Reset(se.expires.Sub(bootclock.Now()))
	return nil
}

// renew has entries renewed, and returns when it is known of each that a majority has it, or that none can have. It
// tells the latter that they are gone.
func (se *session) renew(ctx context.Context, held []*entry) error {
	claims := make([]*claim, len(held))
	for i, e := range held {
		claims[i] = e.claim
	}
	lost, err := se.store.renew(ctx, claims, se.ttl)
	for _, i := range lost {
		held[i].goneAlone()
	}
	return err
}

// renew has claims renewed, and returns when it is known of each that a majority has it, or that none can have: the
// numbers of the latter it returns.
func (s *Store) renew(ctx context.Context, claims []*claim, ttl time.Duration) (lost []int, err error) {
	keys, args := []string{s.keys.index()}, []string{millis(ttl), millis(fenceTTL)}
	for _, c := range claims {
		keys = append(keys, s.keys.lock(c.name), s.keys.fence(c.name))
		args = append(args, c.id, c.name)
	}
	r := &renewal{store: s, claims: claims, have: make([]int, len(claims)), lack: make([]int, len(claims)), heard: s.newTally()}
	answers := s.poll(ctx, renewScript, keys, args)
	defer r.finish(answers)
	for !r.decided() {
		if r.heard.all() {
			return nil, r.heard.err()
		}
		select {
		case a := <-answers:
			r.count(a)
		case <-ctx.Done():
			return nil, attempts.EndedBy(ctx, r.heard.err())
		}
	}
	for i := range claims {
		if r.lack[i] > len(s.masters)-s.quorum {
			lost = append(lost, i)
		}
	}
	return lost, nil
}

// renewal counts the answers to the renewal of some claims.
type renewal struct {
	store      *Store
	claims     []*claim
	have, lack []int // masters, for each claim
	heard      *tally
	absent     [][2]int // claims and masters that have nothing in their place
}

// decided reports whether it is known how each claim stands.
func (r *renewal) decided() bool {
	n := len(r.store.masters)
	for i := range r.claims {
		if r.have[i] < r.store.quorum && r.lack[i] <= n-r.store.quorum {
			return false
		}
	}
	return r.heard.answered() >= r.store.quorum
}

func (r *renewal) count(a answer) {
	said, err := readRenewed(a, len(r.claims))
	r.heard.note(a.master, err)
	if err != nil {
		return
	}
	for i, c := range r.claims {
		if said[i] == 1 {
			r.have[i]++
		} else {
			r.lack[i]++
		}
		if c.said(a.master, said[i]) {
			r.absent = append(r.absent, [2]int{i, a.master.number})
		}
	}
}

func readRenewed(a answer, n int) ([]int64, error) {
	if a.err != nil {
		return nil, a.err
	}
	said, err := a.reply.AsIntSlice()
	if err == nil && len(said) != n {
		err = errStrange
	}
	return said, err
}

// finish has the claims that a majority has put in where they are missing, also at the masters that answer later. It
// does not wait for that, and of those masters none waits for another.
func (r *renewal) finish(answers <-chan answer) {
	r.store.work.Start(func() {
		for r.restore(); !r.heard.all(); r.restore() {
			r.count(<-answers)
		}
	})
}

// restore has the claims that a majority has put in where they are known to be missing.
func (r *renewal) restore() {
	r.absent = slices.DeleteFunc(r.absent, func(missing [2]int) bool {
		c, m := r.claims[missing[0]], r.store.masters[missing[1]]
		return r.have[missing[0]] >= r.store.quorum && r.store.work.Start(func() { c.adopt(m) })
	})
}

// Enqueue implements [store.Session].
func (se *session) Enqueue(ctx context.Context, req store.Request) (store.Ticket, error) {
	doing := fmt.Sprintf("join the line of lock %q", req.Name)
	if req.Mode != line.Exclusive {
		return nil, se.store.explain(doing, fmt.Errorf("%w: a lock of mode %v: Redlock has exclusive ones only",
			store.ErrUnsupported, req.Mode))
	}
	if err := ctx.Err(); err != nil {
		return nil, se.store.explain(doing, err)
	}
	e, err := se.join(req)
	if err != nil {
		return nil, err
	}
	bounded, cancel := attempts.Within(ctx, se.life)
	defer cancel()
	if err := e.arrive(bounded); err != nil {
		e.part()
		return nil, se.explain(ctx, doing, err)
	}
	return e, nil
}

// join notes that an entry is about to be put in.
func (se *session) join(req store.Request) (*entry, error) {
	se.mu.Lock()
	late := se.expires.Before(bootclock.Now()) && !se.ended
	se.mu.Unlock()
	if late {
		return nil, se.expired()
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.ended {
		return nil, se.alive()
	}
	e := newEntry(se, req)
	se.entries[e] = struct{}{}
	return e, nil
}

// keep has an entry renewed from now on. It reports false if it is not certain that the entry stands as long as the
// session: because it was renewed before the last confirmation was begun.
func (se *session) keep(e *entry, c *claim) (ok bool, err error) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.ended {
		return false, se.alive()
	}
	c.mu.Lock()
	renewed := c.renewed
	c.mu.Unlock()
	if !se.asked.Before(renewed) && se.asked != 0 {
		return false, nil
	}
	e.claim = c
	se.kept[e] = struct{}{}
	return true, nil
}

// release has an entry renewed no more.
func (se *session) release(e *entry) {
	se.mu.Lock()
	defer se.mu.Unlock()
	delete(se.entries, e)
	delete(se.kept, e)
}

// Close implements [store.Session].
func (se *session) Close(ctx context.Context) error {
	ended := se.finish(fmt.Errorf("%s: %w: session %s is closed", se.store, store.ErrSessionLost, se.id), false)
	se.telling.Wait()
	se.work.Wait()
	for _, e := range ended {
		if _, err := e.left(ctx); err != nil {
			return se.store.explain("end the session", attempts.EndedBy(ctx, err))
		}
	}
	return nil
}

// finish ends the session's life, and begins to take its entries out, which it returns. If it was lost, everybody who
// stands in a line under it is told, and the one who opened it.
func (se *session) finish(cause error, lost bool) []*entry {
	se.mu.Lock()
	if se.ended {
		se.mu.Unlock()
		return nil
	}
	se.ended = true
	se.timer.Stop()
	all := se.entries
	maps.Copy(all, se.kept)
	se.entries, se.kept = nil, nil
	se.work.Refuse()
	se.end(cause)
	se.telling.Add(1)
	defer se.telling.Done()
	se.mu.Unlock()

	for e := range all {
		e.sessionEnded(cause, lost)
	}
	if lost && se.opts.Lost != nil {
		se.opts.Lost(cause)
	}
	return slices.Collect(maps.Keys(all))
}

// explain is [Store.explain] for calls that were bounded by ctx and by the session's life.
func (se *session) explain(ctx context.Context, doing string, err error) error {
	if ctx.Err() == nil && se.alive() != nil {
		return se.alive()
	}
	return se.store.explain(doing, attempts.EndedBy(ctx, err))
}
