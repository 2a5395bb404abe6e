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

// follower is one call of follow in progress. It implements [watchpump.Lines] for the lines with a prefix.
type follower struct {
	store  *Store
	prefix string
	feed   *watchpump.Feed
}

// follow is [store.Capabilities.Follow]. A fault on [Watch] applies to its start, and one on [Notify] delays
// what it reports.
func (s *Store) follow(ctx context.Context, prefix string, changed func(store.Changes)) error {
	f := &follower{store: s, prefix: prefix}
	return watchpump.Follow(ctx, f, changed, func(ctx context.Context, feed *watchpump.Feed) error {
		f.feed = feed
		defer s.unfollow(f)
		err := s.request(ctx, Call{Op: Watch, Name: prefix}, func() error {
			s.followers[f] = struct{}{}
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

func (f *follower) Lock()   { f.store.mu.Lock() }
func (f *follower) Unlock() { f.store.mu.Unlock() }

func (f *follower) Len(name string) int { return len(f.store.lines[name]) }

func (f *follower) Line(name string) store.Line {
	l := f.store.readLocked(name)
	for i := range l.Entries {
		l.Entries[i].Remaining = 0
	}
	return l
}

func (f *follower) All() []store.Line {
	var lines []store.Line
	for _, name := range slices.Sorted(maps.Keys(f.store.lines)) {
		if strings.HasPrefix(name, f.prefix) {
			lines = append(lines, f.Line(name))
		}
	}
	return lines
}

// changedLocked passes the state of a line on. With a delay it is the state after that.
func (f *follower) changedLocked(name string, delay time.Duration) {
	if delay <= 0 {
		f.feed.Step([]string{name}, time.Now())
		return
	}
	time.AfterFunc(delay, func() {
		f.Lock()
		defer f.Unlock()
		f.feed.Step([]string{name}, time.Now())
	})
}
