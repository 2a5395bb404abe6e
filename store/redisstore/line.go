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

// pollInterval bounds the interval at which waiting entries are polled, although their client is woken when it is their
// turn: it begins with min, and doubles up to max while nothing changes. A wake-up that is lost costs max.
type pollInterval struct{ min, max time.Duration }

const (
	shortestPoll = 100 * time.Millisecond
	longestPoll  = time.Second
	perWaiter    = 500 * time.Microsecond // is added to shortestPoll for each entry that is polled
	// nearHead is how many may be ahead of an entry that is polled at the very moment at which the first lease in the line
	// ends.
	nearHead = 3
	// leaseSlack is how long after that moment: servers count milliseconds.
	leaseSlack = 2 * time.Millisecond
)

// first is the interval at first, and after something has happened.
func (p pollInterval) first(members int) time.Duration {
	return min(p.min+time.Duration(members)*perWaiter, p.max)
}

// next is the interval after the one before, and after a poll that brought news or did not.
func (p pollInterval) next(before time.Duration, news bool, members int) time.Duration {
	if news {
		return p.first(members)
	}
	return min(2*before, p.max)
}

// poller polls one line for the entries of one store that want to know what happens there: because they wait, or because
// they want to know of others who do.
type poller struct {
	store   *Store
	line    lineKeys
	section uint16
	kick    work.Signal   // makes it look at its members now
	ended   chan struct{} // closed when it polls no more

	// Guarded by the store's mutex.
	members map[*entry]struct{}
	urgent  bool               // poll at once
	giveUp  context.CancelFunc // ends the request under way, if there is one
}

// follow has an entry polled until it neither waits nor is armed. soonest is after what time the first lease in the line
// ends, or zero if that is not known.
func (s *Store) follow(e *entry, soonest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[e.id] != e {
		return // it has left meanwhile
	}
	section := s.server.section(e.line)
	p := s.pollers[section][e.req.Name]
	if p != nil {
		p.members[e] = struct{}{}
		p.urgent = p.urgent || soonest == 0
		p.kick.Set()
		return
	}
	p = &poller{
		store: s, line: e.line, section: section, kick: work.NewSignal(), ended: make(chan struct{}),
		members: map[*entry]struct{}{e: {}}, urgent: soonest == 0,
	}
	if s.pollers[section] == nil {
		s.pollers[section] = make(map[string]*poller)
	}
	s.pollers[section][e.req.Name] = p
	s.listenIn(section)
	go p.run(soonest)
}

// register passes what is published for an entry on to it.
func (s *Store) register(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.id] = e
}

// unregister is the opposite of register and of follow.
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
		if p.giveUp != nil {
			p.giveUp()
		}
		p.kick.Set()
	}
}

// pollAll polls the lines of a section at once.
func (s *Store) pollAll(section uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pollers[section] {
		p.urgent = true
		p.kick.Set()
	}
}

// listens reports whether this store is woken if something happens in a line.
func (s *Store) listens(l lineKeys) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subscribers[s.server.section(l)]
	return sub != nil && sub.listening.Load()
}

// run polls for the members until there are none.
func (p *poller) run(soonest time.Duration) {
	defer close(p.ended)
	interval := p.store.interval.min
	due := time.Now().Add(p.pause(interval, soonest, nil))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		ctx, members, urgent := p.gather()
		switch now := time.Now(); {
		case len(members) == 0:
			if p.over() {
				return
			}
			continue
		case urgent || !now.Before(due):
			changed, soonest := p.poll(ctx, members)
			interval = p.store.interval.next(interval, changed || urgent, len(members))
			due = time.Now().Add(p.pause(interval, soonest, members))
		default: // somebody has joined, and knows how it stands
			if sooner := now.Add(p.store.interval.first(len(members))); sooner.Before(due) {
				due = sooner
			}
		}
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-p.kick:
		}
	}
}

// gather returns the members who still wait or are armed, the context of a request for them, and whether it is urgent.
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
	if p.giveUp != nil {
		p.giveUp() // of the request before
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), attempts.Patience, errPatience)
	p.giveUp = cancel
	urgent, p.urgent = p.urgent, false
	return ctx, members, urgent
}

// over ends the poller, unless an entry has joined it.
func (p *poller) over() bool {
	s := p.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p.members) > 0 {
		return false
	}
	p.giveUp()
	delete(s.pollers[p.section], p.line.name)
	if len(s.pollers[p.section]) == 0 {
		delete(s.pollers, p.section)
	}
	return true
}

// pause is how long to wait before the next poll.
func (p *poller) pause(interval, soonest time.Duration, members []*entry) time.Duration {
	if soonest <= 0 || soonest+leaseSlack > interval {
		return interval
	}
	near := func(e *entry) bool { return e.ahead() <= nearHead }
	if members == nil || slices.ContainsFunc(members, near) {
		return soonest + leaseSlack
	}
	return interval
}

// poll asks the server how the members stand and updates them. It returns whether anything has changed, and after what time
// the first lease in the line ends.
func (p *poller) poll(ctx context.Context, members []*entry) (changed bool, soonest time.Duration) {
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
	err := attempt(ctx, func(ctx context.Context) error {
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
		news, first, err := v.report(all[i])
		if err != nil {
			s.logger.LogAttrs(ctx, slog.LevelWarn, "unexpected poll reply",
				slog.String("lock", p.line.name), slog.Any("error", err))
		}
		if changed = changed || news; i == 0 || first < soonest {
			soonest = first
		}
	}
	for i, r := range all[len(visits):] {
		if n, err := r.number(); err == nil && n == 1 {
			armed[i].callContended()
		}
	}
	return changed, soonest
}

// visit asks, in one operation, how some entries of one line stand.
type visit struct {
	store   *Store
	line    lineKeys
	entries []*entry
	in      []bool // which of them had been admitted before, as far as was known
}

// batchSize is how many entries one visit asks for.
const batchSize = 500

// visits returns what asks how entries of one line stand.
func (s *Store) visits(l lineKeys, entries []*entry) []visit {
	var all []visit
	for some := range slices.Chunk(entries, batchSize) {
		v := visit{store: s, line: l, entries: some, in: make([]bool, len(some))}
		for i, e := range some {
			v.in[i] = e.admitted()
		}
		all = append(all, v)
	}
	return all
}

// operation returns what asks how the entries stand and, if keep is not zero, keeps them for so long.
func (v visit) operation(keep time.Duration) operation {
	flag := ""
	if v.store.listens(v.line) {
		flag = "l"
	}
	args := append(make([]string, 0, 2+len(v.entries)), milliseconds(keep), flag)
	for _, e := range v.entries {
		args = append(args, e.id)
	}
	return operation{line: v.line, op: "visit", args: args}
}

// report updates the entries with what the reply says. It returns whether anything was news, and after what time the first lease in
// the line ends.
func (v visit) report(r reply) (changed bool, soonest time.Duration, err error) {
	if r.err != nil {
		return false, 0, r.err
	}
	words, err := r.AsStrSlice()
	if err != nil || len(words) != 1+2*len(v.entries) {
		return false, 0, errors.New("unexpected script reply")
	}
	for i, e := range v.entries {
		now := standingOf(words[1+2*i], words[2+2*i], e)
		// A failover may forget that somebody was let in, and then let others in first.
		forgotten := v.in[i] && now.State == store.Waiting
		if forgotten {
			now = store.Standing{State: store.Gone, Cause: e.evicted("forgotten")}
		}
		if !e.update(now) {
			continue
		}
		changed = true
		if forgotten {
			e.discard()
		}
	}
	return changed, time.Duration(integer(words[0])) * time.Millisecond, nil
}

// ahead is how many are ahead of the entry, as far as is known; none if it does not wait.
func (e *entry) ahead() int {
	now, _ := e.last()
	return now.Ahead
}
