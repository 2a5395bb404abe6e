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
)

// message is a part of a reply.
type message = rueidis.RedisMessage

// rhythm is how often those who wait ask how they stand, although they are woken when it is their turn: at first after the
// shorter time, and, while nothing changes, less and less often. The longer is what a wake-up costs that is lost.
type rhythm struct{ shorter, longer time.Duration }

const (
	soon      = 100 * time.Millisecond // the shorter
	heartbeat = time.Second            // the longer
	crowding  = 500 * time.Microsecond // by which the shorter is longer for each who asks
	// near is how many may be ahead of those who ask at the very moment at which the first lease in the line ends.
	near = 3
	// late is how long after that moment: servers count milliseconds.
	late = 2 * time.Millisecond
)

// first is after what time so many ask at first, and after something has happened.
func (r rhythm) first(members int) time.Duration {
	return min(r.shorter+time.Duration(members)*crowding, r.longer)
}

// next is after what time they ask again who have asked after the time before, and if that brought news.
func (r rhythm) next(before time.Duration, news bool, members int) time.Duration {
	if news {
		return r.first(members)
	}
	return min(2*before, r.longer)
}

// party is those of one store who want to know what happens in one line: because they wait, or because they want to hear of
// others who do. One goroutine asks for all of them.
type party struct {
	store   *Store
	line    lineKeys
	section uint16
	kick    chan struct{} // asks it to look at its members now; holds one request
	ended   chan struct{} // closed when it asks no more

	// Guarded by the store's mutex.
	members map[*entry]struct{}
	urgent  bool               // ask at once
	giveUp  context.CancelFunc // ends the request under way, if there is one
}

// follow has an entry followed until it neither waits nor is armed. soonest is after what time the first lease in the line
// ends, or zero if that is not known.
func (s *Store) follow(e *entry, soonest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries[e.id] != e {
		return // it has left meanwhile
	}
	section := s.server.section(e.line)
	p := s.parties[section][e.req.Name]
	if p != nil {
		p.members[e] = struct{}{}
		p.urgent = p.urgent || soonest == 0
		p.nudge()
		return
	}
	p = &party{
		store: s, line: e.line, section: section, kick: make(chan struct{}, 1), ended: make(chan struct{}),
		members: map[*entry]struct{}{e: {}}, urgent: soonest == 0,
	}
	if s.parties[section] == nil {
		s.parties[section] = make(map[string]*party)
	}
	s.parties[section][e.req.Name] = p
	s.listenIn(section)
	go p.run(soonest)
}

// register lets an entry hear what is said on the store's channels.
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
	p := s.parties[s.server.section(e.line)][e.req.Name]
	if p == nil {
		return
	}
	delete(p.members, e)
	if len(p.members) == 0 {
		if p.giveUp != nil {
			p.giveUp()
		}
		p.nudge()
	}
}

// askAgain has all who wait in the lines of a section ask how they stand.
func (s *Store) askAgain(section uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parties[section] {
		p.urgent = true
		p.nudge()
	}
}

// listens reports whether this store is woken if something happens in a line.
func (s *Store) listens(l lineKeys) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ear := s.ears[s.server.section(l)]
	return ear != nil && ear.listening.Load()
}

// nudge has the party look at its members.
func (p *party) nudge() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// run asks how the members stand until there are none.
func (p *party) run(soonest time.Duration) {
	defer close(p.ended)
	pace := p.store.pace.shorter
	due := time.Now().Add(p.pause(pace, soonest, nil))
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
			changed, soonest := p.ask(ctx, members)
			pace = p.store.pace.next(pace, changed || urgent, len(members))
			due = time.Now().Add(p.pause(pace, soonest, members))
		default: // somebody has joined, and knows how it stands
			if sooner := now.Add(p.store.pace.first(len(members))); sooner.Before(due) {
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
func (p *party) gather() (ctx context.Context, members []*entry, urgent bool) {
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

// over ends the party, unless somebody has joined it.
func (p *party) over() bool {
	s := p.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(p.members) > 0 {
		return false
	}
	p.giveUp()
	delete(s.parties[p.section], p.line.name)
	if len(s.parties[p.section]) == 0 {
		delete(s.parties, p.section)
	}
	return true
}

// pause is how long to wait before the next request.
func (p *party) pause(pace, soonest time.Duration, members []*entry) time.Duration {
	if soonest <= 0 || soonest+late > pace {
		return pace
	}
	near := func(e *entry) bool { return e.ahead() <= near }
	if members == nil || slices.ContainsFunc(members, near) {
		return soonest + late
	}
	return pace
}

// ask asks how the members stand and tells them. It returns whether anything has changed, and after what time the first lease
// in the line ends.
func (p *party) ask(ctx context.Context, members []*entry) (changed bool, soonest time.Duration) {
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
			s.logger.LogAttrs(ctx, slog.LevelWarn, "who waits cannot ask how it stands",
				slog.String("lock", p.line.name), slog.Any("error", err))
		}
		return false, 0
	}
	for i, v := range visits {
		news, first, err := v.report(all[i])
		if err != nil {
			s.logger.LogAttrs(ctx, slog.LevelWarn, "who waits does not understand how it stands",
				slog.String("lock", p.line.name), slog.Any("error", err))
		}
		if changed = changed || news; i == 0 || first < soonest {
			soonest = first
		}
	}
	for i, r := range all[len(visits):] {
		if n, err := r.number(); err == nil && n == 1 {
			armed[i].ring()
		}
	}
	return changed, soonest
}

// visit asks, in one operation, how some entries of one line stand.
type visit struct {
	store   *Store
	line    lineKeys
	entries []*entry
	in      []bool // which of them had heard before that they were let in
}

// batch is how many entries one visit asks for.
const batch = 500

// visits returns what asks how entries of one line stand.
func (s *Store) visits(l lineKeys, entries []*entry) []visit {
	var all []visit
	for some := range slices.Chunk(entries, batch) {
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

// report tells the entries what the reply says. It returns whether anything was news, and after what time the first lease in
// the line ends.
func (v visit) report(r reply) (changed bool, soonest time.Duration, err error) {
	if r.err != nil {
		return false, 0, r.err
	}
	words, err := r.AsStrSlice()
	if err != nil || len(words) != 1+2*len(v.entries) {
		return false, 0, errors.New("the script's reply makes no sense")
	}
	for i, e := range v.entries {
		now := standingOf(words[1+2*i], words[2+2*i], e)
		// A failover may forget that somebody was let in, and then let others in first.
		forgotten := v.in[i] && now.State == store.Waiting
		if forgotten {
			now = store.Standing{State: store.Gone, Cause: e.evicted("forgotten")}
		}
		if !e.hear(now) {
			continue
		}
		changed = true
		if forgotten {
			e.discard()
		}
	}
	return changed, time.Duration(integer(words[0])) * time.Millisecond, nil
}

// ahead is how many are ahead of the entry, as far as it has heard; none if it does not wait.
func (e *entry) ahead() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.heard.State != store.Waiting {
		return 0
	}
	return e.heard.Ahead
}
