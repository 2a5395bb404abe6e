package redlockstore

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/store/internal/work"
)

// debounce is how long a quorum signal waits for the other masters when one has told of something.
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

// late forgets what was heard, and is a signal if not all that should have told of it have.
func (q *quorumSignal) late(payload string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.heard[payload] < q.quorum {
		q.Set()
	}
	delete(q.heard, payload)
}

// wait waits until the signal is set, and reports true; or for the time that is given, unless that is negative, or until
// ctx ends, and reports false.
func (q *quorumSignal) wait(ctx context.Context, most time.Duration) bool {
	var late <-chan time.Time
	if most >= 0 {
		timer := time.NewTimer(most)
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
