package demo

import "time"

// Parent and worker talk in JSON over the worker's stdin and stdout. The worker is told its job, tells that it is ready, and
// is told to start. At the beginning of each turn it tells so, and is told whether to do all of it. All else it tells
// unasked. When its stdin ends it ends.

// A job is what a worker has to do. It is not on the command line because the URL may contain a password.
type job struct {
	URL     string        `json:"url"`
	Lock    string        `json:"lock"` // empty: work without
	TTL     time.Duration `json:"ttl"`
	Worker  int           `json:"worker"`
	Counter string        `json:"counter"` // path
	Add     int           `json:"add"`     // in all
	Turns   int           `json:"turns"`
}

// end returns how many increments are done when a turn, counted from 1, is over: turns are as equal as they can be.
func (j job) end(turn int) int { return j.Add * turn / j.Turns }

// An order is what a worker is told to go on with.
type order struct {
	Halt bool `json:"halt"` // halfway through this turn, for ever
}

// An event is what a worker has to tell.
type event string

const (
	ready   event = "ready"   // to start
	waiting event = "waiting" // for the lock
	begun   event = "begun"   // a turn, or the rest of one: the lock is held, and the order awaited
	added   event = "added"   // some more
	halted  event = "halted"  // as ordered, still holding the lock
	lost    event = "lost"    // the lock; not a step was made since
	ended   event = "ended"   // a turn: the lock is about to be let go
	done    event = "done"    // with everything
)

// A report is an event, and how things are then.
type report struct {
	Event event `json:"event"`
	// Added is how many increments this worker has written: all of them are acknowledged by this.
	Added  int           `json:"added"`
	Token  uint64        `json:"token,omitempty"`  // begun
	Waited time.Duration `json:"waited,omitempty"` // begun: for the lock
	Held   time.Duration `json:"held,omitempty"`   // ended, lost: the lock
	Why    string        `json:"why,omitempty"`    // lost
}
