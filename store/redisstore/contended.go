package redisstore

// notifyContended is [store.Extensions.NotifyContended].
func (e *entry) notifyContended(f func()) {
	e.mu.Lock()
	over := e.delivery.Over()
	if !over {
		e.contended = f
	}
	e.mu.Unlock()
	if !over {
		e.session.store.follow(e, 0)
	}
}

// armed reports whether the owner wants to know of those who wait behind the entry, and has not been notified.
func (e *entry) armed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.contended != nil && !e.delivery.Over()
}

// callContended notifies the owner that somebody waits behind the entry.
func (e *entry) callContended() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.contended; f != nil { // nil when the owner has been silenced
		e.contended = nil
		f()
	}
}
