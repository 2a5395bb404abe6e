package work

// Signal wakes a goroutine that receives from it. It has a capacity of one: the goroutine examines
// its whole state when it wakes, so further signals before that are merged. Make one with
// [NewSignal].
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set wakes the goroutine, now or when it next receives. It never blocks, and may be called with
// any mutex held.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Clear unsets the signal if it is set and has not been received.
func (s Signal) Clear() {
	select {
	case <-s:
	default:
	}
}
