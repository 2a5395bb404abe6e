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
		e.session.store.startPolling(e, 0)
	}
}

// armed reports whether the owner waits for a notification of contention.
func (e *entry) armed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.contended != nil && !e.delivery.Over()
}

// callContended notifies the owner, once, that an entry waits behind this one.
func (e *entry) callContended() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f := e.contended; f != nil { // nil after silence
		e.contended = nil
		f()
	}
}
