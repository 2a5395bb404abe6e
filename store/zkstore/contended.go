package zkstore

import "github.com/stilelock/stile/line"

// notifyContended is [store.Extensions.NotifyContended]. Nobody who does not ask pays for it: for who does, every change of the line
// is followed by a reading of it.
func (e *entry) notifyContended(f func()) {
	w := e.line
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.state != standing || e.contended != nil {
		return
	}
	e.contended = f
	w.stale = true
	w.follow()
}

// waitsBehind reports whether somebody behind the entry at the given place is not admitted.
func waitsBehind(cs []contender, at int) bool {
	for i := at + 1; i < len(cs); i++ {
		if !line.Admits(cs[i].mode, modes(cs[:i])) {
			return true
		}
	}
	return false
}
