package redlockstore

import (
	"context"
	"strings"
	"sync"
	"time"
)

// patter is how long a bell waits for the other masters when one has told of something.
const patter = 5 * time.Millisecond

// bell rings when a majority of the masters have told the same: that an entry is out, or that they are listened to from
// now on. If they have not, it rings all the same, a moment after the first has: some may be out of reach.
type bell struct {
	quorum int
	rung   chan struct{} // holds one

	mu    sync.Mutex
	heard map[string]int
}

func newBell(quorum int) *bell {
	return &bell{quorum: quorum, rung: make(chan struct{}, 1), heard: make(map[string]int)}
}

// hear takes what was heard from one master.
func (b *bell) hear(n news) {
	if !n.begun && !strings.HasPrefix(n.payload, "-") {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heard[n.payload]++
	switch b.heard[n.payload] {
	case b.quorum:
		b.ring()
	case 1:
		time.AfterFunc(patter, func() { b.late(n.payload) })
	}
}

// late forgets what was heard, and rings if not all that should have told of it have.
func (b *bell) late(payload string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard[payload] < b.quorum {
		b.ring()
	}
	delete(b.heard, payload)
}

func (b *bell) ring() {
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// forget forgets that the bell has rung: who is about to look need not look again for that.
func (b *bell) forget() {
	select {
	case <-b.rung:
	default:
	}
}

// wait waits until the bell has rung, and reports true; or for the time that is given, unless that is negative, or until
// ctx ends, and reports false.
func (b *bell) wait(ctx context.Context, most time.Duration) bool {
	var late <-chan time.Time
	if most >= 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-b.rung:
		return true
	case <-late:
		return false
	case <-ctx.Done():
		return false
	}
}
