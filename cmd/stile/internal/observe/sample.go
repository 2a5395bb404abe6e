package observe

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile"
)

const (
	sampleInterval = 500 * time.Millisecond
	sampleBudget   = 25                    // readings in each interval
	sampleReaders  = 8                     // readings at the same time
	samplePause    = 50 * time.Millisecond // between two looks at all sessions
	sampleTimeout  = 5 * time.Second
	minSampleAge   = time.Second
	lookDuration   = 5 * time.Second
)

// Look says that somebody looks at the lines of these names. For five seconds their leases are read again
// each second, before others, as far as the budget of fifty readings a second allows.
func (o *Observer) Look(names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	until := time.Now().Add(lookDuration)
	for _, name := range names {
		if o.lines[name] != nil {
			o.looked[name] = until
		}
	}
	o.wakeSampler()
}

// wakeSampler makes sample begin before the next tick.
func (o *Observer) wakeSampler() {
	select {
	case o.unread <- struct{}{}:
	default:
	}
}

// sample reads leases again until ctx ends. A renewal is no change that the store reports.
func (o *Observer) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	budget := sampleBudget
	for {
		unread := o.unread
		if budget == 0 {
			unread = nil
		}
		select {
		case <-ticker.C:
			budget = sampleBudget
		case <-unread: // a short hold may be over at the next tick
		case <-ctx.Done():
			return
		}
		names := o.samples(time.Now(), budget)
		budget -= len(names)
		var readers sync.WaitGroup
		places := make(chan struct{}, sampleReaders)
		for _, name := range names {
			places <- struct{}{}
			readers.Go(func() {
				defer func() { <-places }()
				at := time.Now()
				bounded, cancel := context.WithTimeout(ctx, sampleTimeout)
				defer cancel()
				l, err := o.client.Line(bounded, name)
				if ctx.Err() != nil {
					return
				}
				o.reportReading(ReadLease, at, err)
				o.noteSampled(at, err)
				if err == nil {
					o.confirm(l, at)
				}
			})
		}
		readers.Wait()
		select {
		case <-time.After(samplePause):
		case <-ctx.Done():
		}
	}
}

// samples returns up to limit names whose lines must be read now, because they show leases: those that somebody
// looks at, then those of holders that may be dying, then those of waiters, each in the order in which they are due.
// One line shows a session's lease for all of its lines.
func (o *Observer) samples(now time.Time, limit int) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leases.forget(now, o.hasEntryLocked)
	maps.DeleteFunc(o.looked, func(_ string, until time.Time) bool { return now.After(until) })
	type candidate struct {
		*lease
		name   string
		looked bool
	}
	of := make(map[*lease]candidate)
	for name := range o.looked {
		for _, h := range o.holdersLocked(name) {
			if s := o.leases[h.Session]; s != nil && now.Sub(s.read) >= minSampleAge {
				of[s] = candidate{s, name, true}
			}
		}
	}
	o.showLeasesLocked(now)
	for _, s := range o.leases {
		if _, looked := of[s]; !looked && s.line != "" && s.isDue(now) {
			of[s] = candidate{s, s.line, false}
		}
	}
	if o.sampled.err != nil && len(of) == 0 { // nothing else may show for long that the store can be read again
		for _, s := range o.leases {
			if s.line != "" && now.Sub(s.asked) >= minSampleAge {
				of[s] = candidate{s, s.line, false}
				break
			}
		}
	}
	rank := func(c candidate) int {
		switch {
		case c.looked:
			return 0
		case c.holds:
			return 1
		default:
			return 2
		}
	}
	all := slices.SortedFunc(maps.Values(of), func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.due().Compare(b.due()))
	})
	var names []string
	for _, c := range all[:min(len(all), limit)] {
		names = append(names, c.name)
		c.asked = now
	}
	slices.Sort(names)
	return slices.Compact(names) // one reading of a line shows the leases of all of its sessions
}

func (s *lease) isDue(now time.Time) bool {
	return !s.due().After(now) && now.Sub(s.read) >= minSampleAge
}

// hasEntryLocked reports whether a session has an entry in a line.
func (o *Observer) hasEntryLocked(session, name string) bool {
	of := func(e stile.Entry) bool { return e.Session == session }
	f := o.lines[name]
	return f != nil && (slices.ContainsFunc(f.line.Holders, of) || slices.ContainsFunc(f.line.Waiters, of))
}

// showLeasesLocked finds another line for each lease that is due, and whose line has no entry of its session any
// more. It looks at all lines only if there is such a lease.
func (o *Observer) showLeasesLocked(now time.Time) {
	moved := make(map[string]*lease)
	for session, s := range o.leases {
		if s.line == "" || !s.isDue(now) {
			continue
		}
		of := func(e stile.Entry) bool { return e.Session == session }
		f := o.lines[s.line]
		switch {
		case f != nil && slices.ContainsFunc(f.line.Holders, of):
			s.holds = true
		case f != nil && !s.holds && slices.ContainsFunc(f.line.Waiters, of):
		default:
			s.line = ""
			moved[session] = s
		}
	}
	if len(moved) == 0 {
		return
	}
	for name, f := range o.lines {
		for _, p := range places(f.line) {
			if s := moved[p.entry.Session]; s != nil && (s.line == "" || p.holds) {
				s.line, s.holds = name, p.holds
			}
		}
	}
}

func (o *Observer) holdersLocked(name string) []stile.Entry {
	if f := o.lines[name]; f != nil {
		return f.line.Holders
	}
	return nil
}

// confirm uses only the leases of a reading. Entries that came or left are reported by the watch: its
// readings are in order, and this one may be older than the last of them.
func (o *Observer) confirm(l stile.Line, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leases.confirm(l, at)
}
