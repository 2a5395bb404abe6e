package redlockstore

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/store/internal/work"
)

// debounce is how long a quorum signal waits for other masters after the first message.
const debounce = 5 * time.Millisecond

// quorumSignal is set when a majority of the masters has published the same payload (an entry was
// removed) or has confirmed the subscription. Otherwise it is set debounce after the first message:
// other masters may be unreachable.
type quorumSignal struct {
	work.Signal
	quorum int

	mu     sync.Mutex
	counts map[string]int
}

func newQuorumSignal(quorum int) *quorumSignal {
	return &quorumSignal{Signal: work.NewSignal(), quorum: quorum, counts: make(map[string]int)}
}

// received handles an event from one master.
func (q *quorumSignal) received(n event) {
	if !n.subscribed && !strings.HasPrefix(n.payload, "-") {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.counts[n.payload]++
	switch q.counts[n.payload] {
	case q.quorum:
		q.Set()
	case 1:
		time.AfterFunc(debounce, func() { q.expire(n.payload) })
	}
}

// expire forgets a payload, and sets the signal if no majority has published it.
func (q *quorumSignal) expire(payload string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.counts[payload] < q.quorum {
		q.Set()
	}
	delete(q.counts, payload)
}

// wait reports whether the signal was set before the timeout and before ctx ended. A negative
// timeout is none.
func (q *quorumSignal) wait(ctx context.Context, timeout time.Duration) bool {
	var expired <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-q.Signal:
		return true
	case <-expired:
		return false
	case <-ctx.Done():
		return false
	}
}
