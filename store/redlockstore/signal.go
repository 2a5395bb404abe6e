package redlockstore

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/store/internal/work"
)

// debounce is how long a quorum signal waits for the other masters when one has published something.
const debounce = 5 * time.Millisecond

// quorumSignal is set when a majority of the masters have published the same: that an entry is out, or that they are listened
// to from now on. If they have not, it is set all the same, a moment after the first has: some may be out of reach.
type quorumSignal struct {
	work.Signal
	quorum int

	mu    sync.Mutex
	heard map[string]int
}

func newQuorumSignal(quorum int) *quorumSignal {
	return &quorumSignal{Signal: work.NewSignal(), quorum: quorum, heard: make(map[string]int)}
}

// received takes in what one master has published.
func (q *quorumSignal) received(n news) {
	if !n.begun && !strings.HasPrefix(n.payload, "-") {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.heard[n.payload]++
	switch q.heard[n.payload] {
	case q.quorum:
		q.Set()
	case 1:
		time.AfterFunc(debounce, func() { q.late(n.payload) })
	}
}

// late forgets a payload, and sets the signal if no majority has published it.
func (q *quorumSignal) late(payload string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.heard[payload] < q.quorum {
		q.Set()
	}
	delete(q.heard, payload)
}

// wait reports whether the signal was set before the timeout passed and before ctx ended. A negative timeout never passes.
func (q *quorumSignal) wait(ctx context.Context, timeout time.Duration) bool {
	var late <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-q.Signal:
		return true
	case <-late:
		return false
	case <-ctx.Done():
		return false
	}
}
