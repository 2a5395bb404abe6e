package watchpump_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/internal/watchpump"
)

// What is kept for a callback that blocks is bounded, also if the lines are long.
func TestFollow_memoryOfLongLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &followedLines{lines: make(map[string]int)}
		release := make(chan struct{})
		stopped := errors.New("stopped")
		entries, calls := 0, 0
		err := watchpump.Follow(t.Context(), f, func(c store.Changes) {
			if calls++; calls == 1 {
				<-release
				return
			}
			for _, l := range c.Lines {
				entries += len(l.Entries)
			}
		}, func(_ context.Context, feed *watchpump.Feed) error {
			f.feed = feed
			f.set(1, "a")
			synctest.Wait()
			for range 600 { // a minute
				f.set(5000, "long")
				time.Sleep(100 * time.Millisecond)
			}
			close(release)
			synctest.Wait()
			return stopped
		})
		if !errors.Is(err, stopped) {
			t.Error(err)
		}
		if entries > 1<<18 {
			t.Errorf("%d entries in %d calls were kept for a callback that blocked for a minute", entries, calls-1)
		}
	})
}
