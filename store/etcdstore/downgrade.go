package etcdstore

import (
	"bytes"
	"context"

	"github.com/stilelock/stile/line"
)

// downgrade is [store.Extensions.Downgrade]. The mode is part of the value, so the key stays the same.
// Other clients wait for the deletion of the key, and an earlier version of Stile takes the key for that
// of an exclusive entry: both wait until the entry has left.
func (e *entry) downgrade(ctx context.Context) error {
	return e.change(ctx, "make the entry shared", false, func(v *value) { v.Mode = line.Shared })
}

// sharedValue is how the value of a shared entry begins. That of an exclusive entry is smaller, and
// package etcdguard relies on it.
const sharedValue = `{"stile":1,"mode":"shared"`

// isShared reports whether an entry whose key was made for an exclusive one has become shared.
func isShared(text []byte) bool { return bytes.HasPrefix(text, []byte(sharedValue)) }

// choosePuts decides whether the watch that is opened next delivers puts. Readers that wait need them,
// to be admitted when an entry ahead is downgraded. All other waiters do not, and puts would be half of
// the events of a line.
func (w *lineWatch) choosePuts() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.puts = w.needsPutsLocked()
	return w.puts
}

func (w *lineWatch) needsPutsLocked() bool {
	for e := range w.mine {
		if e.req.Mode == line.Shared && (e.state == joining || e.state == inLine && e.blockingLocked() > 0) {
			return true
		}
	}
	return false
}

// lacksPuts reports whether the watch must be replaced by one that delivers puts.
func (w *lineWatch) lacksPuts() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lacksPutsLocked()
}

func (w *lineWatch) lacksPutsLocked() bool { return !w.puts && w.needsPutsLocked() }
