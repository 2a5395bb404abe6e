package zkstore

import "github.com/stilelock/stile/line"

// notifyContended is [store.Extensions.NotifyContended]. From then on the line is read after each
// of its changes, so only entries for which it was called cost that.
func (e *entry) notifyContended(f func()) {
	w := e.line
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state != inLine || e.contended != nil {
		return
	}
	e.contended = f
	w.stale = true
	w.followLocked()
}

// waitsBehind reports whether an entry behind the one at the given index is not admitted.
func waitsBehind(cs []listedEntry, at int) bool {
	for i := at + 1; i < len(cs); i++ {
		if !line.Admits(cs[i].mode, modes(cs[:i])) {
			return true
		}
	}
	return false
}
