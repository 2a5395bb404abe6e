package redisstore

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/attempts"
	"github.com/stilelock/stile/store/internal/work"
)

// message is a part of a reply.
type message = rueidis.RedisMessage

// pollInterval bounds the interval between polls of waiting entries. It starts at min and doubles
// up to max while nothing changes. Clients are also notified of an admission, so max is the delay
// that a lost notification costs.
type pollInterval struct{ min, max time.Duration }

const (
	minPollInterval      = 100 * time.Millisecond
	maxPollInterval      = time.Second
	pollIntervalPerEntry = 500 * time.Microsecond // added to minPollInterval for each polled entry
	// nearHead is the largest number of entries ahead with which an entry is polled as soon as the
	// first lease in the line ends.
	nearHead = 3
	// leaseSlack is the delay of that poll after the end of the lease: servers count milliseconds.
	leaseSlack = 2 * time.Millisecond
)

// first returns the interval at the start and after a change.
func (p pollInterval) first(members int) time.Duration {
	return min(p.min+time.Duration(members)*pollIntervalPerEntry, p.max)
}

// next returns the interval after the given one; changed reports whether the last poll found a
// change.
func (p pollInterval) next(before time.Duration, changed bool, members int) time.Duration {
	if changed {
		return p.first(members)
	}
	return min(2*before, p.max)
}

// poller polls one line for the entries of one store that wait in it, or whose owners want to be
// notified of waiters behind them.
type poller struct {
	store   *Store
	line    lineKeys
	section uint16
	wakeup  work.Signal   // wakes run
	ended   chan struct{} // closed when run has returned

	// Guarded by the store's mutex.
	members       map[*entry]struct{}
	urgent        bool               // poll now
	cancelRequest context.CancelFunc // cancels the request in flight; nil before the first one
}

// startPolling polls for an entry until it neither waits nor is armed. nextExpiry is the time until
// the first lease in the line ends, or zero if it is not known.
func (s *Store) startPolling(e *entry, nextExpiry time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[e.id] != e {
		return // it was unregistered meanwhile
	}
	section := s.server.section(e.line)
	p := s.pollers[section][e.req.Name]
	if p != nil {
		p.members[e] = struct{}{}
		p.urgent = p.urgent || nextExpiry == 0
		p.wakeup.Set()
		return
	}
	p = &poller{
		store: s, line: e.line, section: section, wakeup: work.NewSignal(), ended: make(chan struct{}),
		members: map[*entry]struct{}{e: {}}, urgent: nextExpiry == 0,
	}
	if s.pollers[section] == nil {
		s.pollers[section] = make(map[string]*poller)
	}
	s.pollers[section][e.req.Name] = p
	s.subscriberLocked(section)
	go p.run(nextExpiry)
}

// register delivers published messages for an entry to it.
func (s *Store) register(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.id] = e
}

// unregister is the inverse of register and startPolling.
func (s *Store) unregister(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, e.id)
	p := s.pollers[s.server.section(e.line)][e.req.Name]
	if p == nil {
		return
	}
	delete(p.members, e)
	if len(p.members) == 0 {
		if p.cancelRequest != nil {
			p.cancelRequest()
		}
		p.wakeup.Set()
	}
}

// pollAll polls all lines of a section now.
func (s *Store) pollAll(section uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pollers[section] {
		p.urgent = true
		p.wakeup.Set()
	}
}

// isSubscribed reports whether this store is subscribed to the wake-ups of a line.
func (s *Store) isSubscribed(l lineKeys) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subscribers[s.server.section(l)]
	return sub != nil && sub.active.Load()
}

// flag returns the flag that the information about an undetached entry is to have: see line.lua.
func (s *Store) flag(l lineKeys) string {
	if s.isSubscribed(l) {
		return "l"
	}
	return ""
}

// run polls until the poller has no members.
func (p *poller) run(nextExpiry time.Duration) {
	defer close(p.ended)
	interval := p.store.interval.min
	due := time.Now().Add(p.pause(interval, nextExpiry, nil))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		ctx, members, urgent := p.gather()
		switch now := time.Now(); {
		case len(members) == 0:
			if p.stop() {
				return
			}
			continue
		case urgent || !now.Before(due):
			changed, nextExpiry := p.poll(ctx, members)
			interval = p.store.interval.next(interval, changed || urgent, len(members))
			due = time.Now().Add(p.pause(interval, nextExpiry, members))
		default: // a new member has joined, and its standing is known
			if sooner := now.Add(p.store.interval.first(len(members))); sooner.Before(due) {
				due = sooner
			}
		}
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-p.wakeup:
		}
	}
}

// gather returns the members that still wait or are armed, the context of the next request, and
// whether to send it now.
func (p *poller) gather() (ctx context.Context, members []*entry, urgent bool) {
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	members = make([]*entry, 0, len(p.members))
	for e := range p.members {
		if e.waits() || e.armed() {
			members = append(members, e)
		} else {
			delete(p.members, e)
		}
	}
	if p.cancelRequest != nil {
		p.cancelRequest() // the previous request
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), attempts.MaxDuration, errNoSuccess)
	p.cancelRequest = cancel
	urgent, p.urgent = p.urgent, false
	return ctx, members, urgent
}

// stop ends the poller and reports true, unless an entry has joined it.
func (p *poller) stop() bool {
	s := p.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p.members) > 0 {
		return false
	}
	p.cancelRequest()
	delete(s.pollers[p.section], p.line.name)
	if len(s.pollers[p.section]) == 0 {
		delete(s.pollers, p.section)
	}
	return true
}

// pause returns the time until the next poll: the interval or, if an entry near the head is polled
// and the first lease in the line ends sooner, the time until just after that. members is nil
// before the first poll.
func (p *poller) pause(interval, nextExpiry time.Duration, members []*entry) time.Duration {
	if nextExpiry <= 0 || nextExpiry+leaseSlack > interval {
		return interval
	}
	near := func(e *entry) bool { return e.ahead() <= nearHead }
	if members == nil || slices.ContainsFunc(members, near) {
		return nextExpiry + leaseSlack
	}
	return interval
}

// poll requests the standings of the members and updates them. It returns whether anything has
// changed, and the time until the first lease in the line ends.
func (p *poller) poll(ctx context.Context, members []*entry) (changed bool, nextExpiry time.Duration) {
	s := p.store
	var waiting, armed []*entry
	for _, e := range members {
		if e.waits() {
			waiting = append(waiting, e)
		}
		if e.armed() {
			armed = append(armed, e)
		}
	}
	var operations []operation
	visits := s.visits(p.line, waiting)
	for _, v := range visits {
		operations = append(operations, v.operation(0))
	}
	for _, e := range armed {
		operations = append(operations, operation{line: p.line, op: "arm", args: []string{e.id}})
	}
	var all []reply
	err := retry(ctx, func(ctx context.Context) error {
		all = s.server.evalAll(ctx, 0, nil, operations)
		return firstError(all)
	})
	if err != nil {
		if ctx.Err() == nil {
			s.logger.LogAttrs(ctx, slog.LevelWarn, "poll of waiters failed",
				slog.String("lock", p.line.name), slog.Any("error", err))
		}
		return false, 0
	}
	for i, v := range visits {
		updated, first, err := v.apply(all[i])
		if err != nil {
			s.logger.LogAttrs(ctx, slog.LevelWarn, "unexpected poll reply",
				slog.String("lock", p.line.name), slog.Any("error", err))
		}
		if changed = changed || updated; i == 0 || first < nextExpiry {
			nextExpiry = first
		}
	}
	for i, r := range all[len(visits):] {
		if n, err := r.number(); err == nil && n == 1 {
			armed[i].callContended()
		}
	}
	return changed, nextExpiry
}

// visit requests, in one operation, the standings of entries of one line.
type visit struct {
	store   *Store
	line    lineKeys
	entries []*entry
	in      []bool // whether each was known to be admitted before
}

// batchSize is the largest number of entries in one visit.
const batchSize = 500

// visits splits entries of one line into visits.
func (s *Store) visits(l lineKeys, entries []*entry) []visit {
	var all []visit
	for chunk := range slices.Chunk(entries, batchSize) {
		v := visit{store: s, line: l, entries: chunk, in: make([]bool, len(chunk))}
		for i, e := range chunk {
			v.in[i] = e.admitted()
		}
		all = append(all, v)
	}
	return all
}

// operation returns the visit's operation. If keep is positive, it also renews the leases for that
// long.
func (v visit) operation(keep time.Duration) operation {
	args := append(make([]string, 0, 2+len(v.entries)), milliseconds(keep), v.store.flag(v.line))
	for _, e := range v.entries {
		args = append(args, e.id)
	}
	return operation{line: v.line, op: "visit", args: args}
}

// apply updates the entries with the reply. It returns whether anything has changed, and the time
// until the first lease in the line ends.
func (v visit) apply(r reply) (changed bool, nextExpiry time.Duration, err error) {
	if r.err != nil {
		return false, 0, r.err
	}
	words, err := r.AsStrSlice()
	if err != nil || len(words) != 1+2*len(v.entries) {
		return false, 0, errors.New("unexpected script reply")
	}
	for i, e := range v.entries {
		now := parseStanding(words[1+2*i], words[2+2*i], e)
		// A failover may lose an admission, and then admit others first.
		forgotten := v.in[i] && now.State == store.Waiting
		if forgotten {
			now = store.Standing{State: store.Gone, Cause: e.goneErr("forgotten")}
		}
		if !e.update(now) {
			continue
		}
		changed = true
		if forgotten {
			e.discard()
		}
	}
	return changed, time.Duration(parseInt(words[0])) * time.Millisecond, nil
}

// ahead returns how many entries are known to be ahead; zero if the entry does not wait.
func (e *entry) ahead() int {
	now, _ := e.last()
	return now.Ahead
}
