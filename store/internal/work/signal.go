package work

// Signal wakes a goroutine that receives from it. It holds one: what happens before the goroutine has been woken needs no
// second signal, because it looks at everything then. Make one with [NewSignal].
type Signal chan struct{}

// NewSignal returns a signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set wakes the goroutine, now or as soon as it receives. It never blocks, and may be called with any mutex held.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Clear takes the signal back, if it is set and has not been received.
func (s Signal) Clear() {
	select {
	case <-s:
	default:
	}
}
