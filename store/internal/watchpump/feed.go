package watchpump

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/work"
)

const (
	// maxQueued is the number of lines that are kept for a callback that blocks. If more have changed, the next
	// call has all lines instead.
	maxQueued = 4096
	// maxQueuedEntries is the same for the entries of these lines: about 64 MB.
	maxQueuedEntries = 1 << 18
	// longLineInterval is the time between two reports of a line with more than [store.MaxFollowed] entries.
	longLineInterval = 100 * time.Millisecond
)

// Lines are the lines that a store follows.
type Lines interface {
	sync.Locker

	// LenLocked returns the number of entries of a line, LineLocked the line, and AllLocked all lines with entries,
	// sorted by name.
	LenLocked(name string) int
	LineLocked(name string) store.Line
	AllLocked() []store.Line
}

// A Feed passes the states of lines to the callback of [store.Capabilities.Follow]. Its methods must be called
// with the lock of the lines held.
type Feed struct {
	of      Lines
	arrived work.Signal

	queued  []store.Changes
	lines   int // in queued
	entries int // of these lines

	all      bool // the next call has all lines
	allSince time.Time

	long map[string]struct{} // long lines whose present state is not queued
	tick *time.Timer         // queues it; nil if there is none
}

// Follow calls changed with what listen passes to the feed, until listen returns, and returns its error. listen
// runs in a goroutine of its own, and must return when its ctx ends. Follow waits for it before it returns.
func Follow(
	ctx context.Context, lines Lines, changed func(store.Changes), listen func(ctx context.Context, feed *Feed) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	var (
		err       error
		listening sync.WaitGroup
		feed      = &Feed{of: lines, arrived: work.NewSignal(), long: make(map[string]struct{})}
		done      = make(chan struct{})
	)
	listening.Go(func() {
		defer close(done)
		err = listen(ctx, feed)
	})
	defer feed.stop()
	defer listening.Wait() // also if changed panics
	defer cancel()
	for {
		select {
		case <-feed.arrived:
			for _, c := range feed.take() {
				if ctx.Err() != nil {
					break
				}
				changed(c)
			}
		case <-done:
			return err
		}
	}
}

// Step passes on the lines of these names, which have changed in one step. The names are sorted, each once.
func (f *Feed) Step(names []string, at time.Time) {
	if f.all {
		return // the call with all lines shows the step
	}
	lines := make([]store.Line, 0, len(names))
	for _, name := range names {
		if f.of.LenLocked(name) > store.MaxFollowed {
			f.long[name] = struct{}{}
			continue
		}
		delete(f.long, name)
		lines = append(lines, f.of.LineLocked(name))
	}
	f.queue(lines, at)
	if len(f.long) > 0 && f.tick == nil {
		f.tick = time.AfterFunc(longLineInterval, f.passLongLines)
	}
}

// passLongLines passes on the present state of the long lines that have changed.
func (f *Feed) passLongLines() {
	f.of.Lock()
	defer f.of.Unlock()
	if f.tick == nil {
		return // stopped
	}
	f.tick = nil
	lines := make([]store.Line, 0, len(f.long))
	for _, name := range slices.Sorted(maps.Keys(f.long)) {
		lines = append(lines, f.of.LineLocked(name))
	}
	clear(f.long)
	f.queue(lines, time.Now())
}

func (f *Feed) queue(lines []store.Line, at time.Time) {
	entries := 0
	for _, l := range lines {
		entries += len(l.Entries)
	}
	switch {
	case len(lines) == 0:
		return
	case f.lines+len(lines) > maxQueued || f.lines > 0 && f.entries+entries > maxQueuedEntries:
		f.All(at)
		return
	}
	f.queued, f.lines = append(f.queued, store.Changes{Lines: lines, At: at}), f.lines+len(lines)
	f.entries += entries
	f.arrived.Set()
}

// All replaces what is queued by one call with all lines, as they are then.
func (f *Feed) All(at time.Time) {
	f.queued, f.lines, f.entries = nil, 0, 0
	f.all, f.allSince = true, at
	clear(f.long)
	f.arrived.Set()
}

// Fail passes on that the lines are not known. All must be called when they are known again.
func (f *Feed) Fail(err error) {
	f.queued, f.lines = append(f.queued, store.Changes{Err: err, At: time.Now()}), f.lines+1
	f.all = false
	f.arrived.Set()
}

// take returns what has arrived.
func (f *Feed) take() []store.Changes {
	f.of.Lock()
	defer f.of.Unlock()
	f.arrived.Clear()
	taken := f.queued
	if f.all {
		taken = []store.Changes{{Lines: f.of.AllLocked(), All: true, At: f.allSince}}
	}
	f.queued, f.lines, f.entries, f.all = nil, 0, 0, false
	return taken
}

// stop stops the timer.
func (f *Feed) stop() {
	f.of.Lock()
	defer f.of.Unlock()
	if f.tick != nil {
		f.tick.Stop()
		f.tick = nil
	}
}
