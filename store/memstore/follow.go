package memstore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// follower is one call of followLines in progress. It implements [watchpump.Lines].
type follower struct {
	store   *Store
	prefix  string
	feed    *watchpump.Feed
	lines   map[string]store.Line // those with entries, as far as they were passed on
	delayed []store.Line          // states to be passed on, in order
}

// followLines is [store.Capabilities.Follow]. A fault on [Watch] applies to its start, and one on [Notify] delays
// what it reports.
func (s *Store) followLines(ctx context.Context, prefix string, changed func(store.Changes)) error {
	f := &follower{store: s, prefix: prefix, lines: make(map[string]store.Line)}
	return watchpump.Follow(ctx, f, changed, func(ctx context.Context, feed *watchpump.Feed) error {
		f.feed = feed
		defer s.unfollow(f)
		err := s.request(ctx, Call{Op: Watch, Name: prefix}, func() error {
			s.followers[f] = struct{}{}
			for name := range s.lines {
				if strings.HasPrefix(name, prefix) {
					f.lines[name] = s.followedLineLocked(name)
				}
			}
			feed.All(time.Now())
			return nil
		}, nil)
		if err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
}

func (s *Store) unfollow(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
}

// followedLineLocked returns a line without the remaining times of its sessions.
func (s *Store) followedLineLocked(name string) store.Line {
	l := s.readLocked(name)
	for i := range l.Entries {
		l.Entries[i].Remaining = 0
	}
	return l
}

func (f *follower) Lock()   { f.store.mu.Lock() }
func (f *follower) Unlock() { f.store.mu.Unlock() }

func (f *follower) LenLocked(name string) int         { return len(f.lines[name].Entries) }
func (f *follower) LineLocked(name string) store.Line { return f.lines[name] }

func (f *follower) AllLocked() []store.Line {
	var all []store.Line
	for _, name := range slices.Sorted(maps.Keys(f.lines)) {
		if l := f.lines[name]; len(l.Entries) > 0 {
			all = append(all, l)
		}
	}
	return all
}

// changedLocked passes the present state of a line on, after a delay and after those before it.
func (f *follower) changedLocked(name string, delay time.Duration) {
	if !strings.HasPrefix(name, f.prefix) {
		return
	}
	l := f.store.followedLineLocked(name)
	if delay <= 0 && len(f.delayed) == 0 {
		f.passOnLocked(l)
		return
	}
	f.delayed = append(f.delayed, l)
	time.AfterFunc(delay, func() {
		f.Lock()
		defer f.Unlock()
		l := f.delayed[0]
		f.delayed = f.delayed[1:]
		f.passOnLocked(l)
	})
}

func (f *follower) passOnLocked(l store.Line) {
	f.lines[l.Name] = l
	f.feed.Step([]string{l.Name}, time.Now())
}
