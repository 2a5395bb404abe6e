package observe

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile"
)

const (
	sampleInterval = 500 * time.Millisecond
	sampleBudget   = 25 // readings in each interval
	sampleReaders  = 8  // readings at the same time
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
}

// sample reads leases again until ctx ends. A renewal is no change that the store reports.
func (o *Observer) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		var readers sync.WaitGroup
		places := make(chan struct{}, sampleReaders)
		for _, name := range o.samples(time.Now()) {
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
	}
}

// samples returns the names whose lines must be read now, because they show leases: those that somebody looks
// at, then those of holders that may be dying, the earliest deadline first. One line shows a session's lease for
// all of its lines.
func (o *Observer) samples(now time.Time) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leases.forget(now)
	maps.DeleteFunc(o.looked, func(_ string, until time.Time) bool { return now.After(until) })
	type candidate struct {
		name string
		due  time.Time // zero if somebody looks
	}
	of := make(map[*lease]candidate)
	for name := range o.looked {
		for _, h := range o.holdersLocked(name) {
			if s := o.leases[h.Session]; s != nil && now.Sub(s.read) >= minSampleAge {
				of[s] = candidate{name, time.Time{}}
			}
		}
	}
	o.showLeasesLocked(now)
	for _, s := range o.leases {
		if _, looked := of[s]; !looked && s.line != "" && s.due().Before(now) && now.Sub(s.read) >= minSampleAge {
			of[s] = candidate{s.line, s.due()}
		}
	}
	all := slices.SortedFunc(maps.Values(of), func(a, b candidate) int { return a.due.Compare(b.due) })
	var names []string
	for _, c := range all[:min(len(all), sampleBudget)] {
		names = append(names, c.name)
	}
	return names
}

// showLeasesLocked finds another line for each lease that is due, and whose line has no holder of its session any
// more. It looks at all lines only if there is such a lease.
func (o *Observer) showLeasesLocked(now time.Time) {
	moved := make(map[string]*lease)
	for session, s := range o.leases {
		holds := func(e stile.Entry) bool { return e.Session == session }
		if s.line != "" && s.due().Before(now) && !slices.ContainsFunc(o.holdersLocked(s.line), holds) {
			s.line = ""
			moved[session] = s
		}
	}
	if len(moved) == 0 {
		return
	}
	for name, f := range o.lines {
		for _, h := range f.line.Holders {
			if s := moved[h.Session]; s != nil {
				s.line = name
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
